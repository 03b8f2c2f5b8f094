"""The architectures of this package, a folder each, which registers itself as a plugin's module does.

A folder holds what the architecture has and no other: its name, options and shapes here below (`__init__.py`, without
torch), its mixer, and its Hugging Face conversion where there is one. Its costs are flops/architectures/<name>.py.
The order of these imports is that of every list. Imports no torch.
"""

# isort: off
from .llama import LlamaOptions
from .tnl import TNLOptions
from .hgrn2 import HGRN2Options
from .cosformer2 import CosFormer2Options
from .hgrn1 import HGRN1Options
from .mamba2 import Mamba2Options
from .mamba1 import Mamba1Options

# isort: on
from ..registry import ARCHITECTURES

__all__ = [
    "ARCHS",
    "CosFormer2Options",
    "HGRN1Options",
    "HGRN2Options",
    "LlamaOptions",
    "Mamba1Options",
    "Mamba2Options",
    "TNLOptions",
]

ARCHS = tuple(name for name, found in ARCHITECTURES.items() if found.plugin is None)
