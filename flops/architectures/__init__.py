"""The costs of the architectures of this package: each module registers an Entry, as a plugin's module does."""

from . import cosformer2, hgrn1, hgrn2, llama, mamba1, mamba2, tnl

__all__ = ["cosformer2", "hgrn1", "hgrn2", "llama", "mamba1", "mamba2", "tnl"]
