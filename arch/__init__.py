"""The models. What is registered from outside meets the architectures of this package, which are always there."""

from . import architectures as architectures
