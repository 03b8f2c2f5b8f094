"""The costs of the architectures of this package, a module each, which has the architecture's name and its ENTRY."""

from ..registry import register
from . import cosformer2, deltanet, gated_deltanet, hgrn1, hgrn2, kimi_delta, llama, mamba1, mamba2, retnet, tnl, transformer

__all__ = [
    "cosformer2",
    "deltanet",
    "gated_deltanet",
    "hgrn1",
    "hgrn2",
    "kimi_delta",
    "llama",
    "mamba1",
    "mamba2",
    "register_all",
    "retnet",
    "tnl",
    "transformer",
]

MODULES = (cosformer2, deltanet, gated_deltanet, hgrn1, hgrn2, kimi_delta, llama, mamba1, mamba2, retnet, tnl, transformer)


def register_all() -> None:
    """Register the costs of this package's architectures, as a plugin's module registers its own."""
    for module in MODULES:
        register(module.__name__.rpartition(".")[2], module.ENTRY)
