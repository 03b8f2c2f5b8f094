"""The architectures of this package, a folder each.

A folder holds what the architecture has and no other: its name, options and shapes here below (`__init__.py`, without
torch), its mixer, and its Hugging Face conversion where there is one. Its costs are flops/architectures/<name>.py.
Imports no torch.
"""

from ..registry import ARCHITECTURES
from . import cosformer2, hgrn1, hgrn2, llama, mamba1, mamba2, tnl
from .cosformer2 import CosFormer2Options
from .hgrn1 import HGRN1Options
from .hgrn2 import HGRN2Options
from .llama import LlamaOptions
from .mamba1 import Mamba1Options
from .mamba2 import Mamba2Options
from .tnl import TNLOptions

__all__ = [
    "CosFormer2Options",
    "HGRN1Options",
    "HGRN2Options",
    "LlamaOptions",
    "Mamba1Options",
    "Mamba2Options",
    "TNLOptions",
    "register_all",
]

ORDER = (llama, tnl, hgrn2, cosformer2, hgrn1, mamba2, mamba1)  # of every list


def register_all() -> tuple[str, ...]:
    """Register the architectures of this package, as a plugin's module registers its own; their names, in order."""
    for module in ORDER:
        module.register_this()
    return tuple(name for name, found in ARCHITECTURES.items() if found.plugin is None)
