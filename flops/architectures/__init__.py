"""The costs of the architectures of this package, a module each, which has the architecture's name and its ENTRY."""

from ..registry import register, register_family
from . import cosformer2, gated_deltanet, hgrn1, hgrn2, kimi_delta, llama, mamba1, mamba2, tnl, transformer
from . import fla as fla_layers

__all__ = [
    "cosformer2",
    "gated_deltanet",
    "hgrn1",
    "hgrn2",
    "kimi_delta",
    "llama",
    "mamba1",
    "mamba2",
    "register_all",
    "tnl",
    "transformer",
]

MODULES = (cosformer2, gated_deltanet, hgrn1, hgrn2, kimi_delta, llama, mamba1, mamba2, tnl, transformer)


def register_all() -> None:
    """Register the costs of this package's architectures, as a plugin's module registers its own."""
    for module in MODULES:
        register(module.__name__.rpartition(".")[2], module.ENTRY)
    register_family("fla", fla_layers.entry)
