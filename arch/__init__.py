"""The models. Importing this package registers its own architectures, so that no plugin can take their names."""

from . import architectures as architectures
