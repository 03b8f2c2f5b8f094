"""The architectures of this package, a folder each.

A folder has the architecture's name, options and shapes (`__init__.py`, without torch), its mixer, and its Hugging Face
conversion, if any. Its costs are flops/architectures/<name>.py. Imports no torch.
"""

from ..registry import ARCHITECTURES
from .cosformer2 import CosFormer2Options
from .cosformer2 import register_this as register_cosformer2
from .fla import register_this as register_fla
from .gated_deltanet import GatedDeltaNetOptions
from .gated_deltanet import register_this as register_gated_deltanet
from .hgrn1 import HGRN1Options
from .hgrn1 import register_this as register_hgrn1
from .hgrn2 import HGRN2Options
from .hgrn2 import register_this as register_hgrn2
from .kimi_delta import KimiDeltaOptions
from .kimi_delta import register_this as register_kimi_delta
from .llama import LlamaOptions
from .llama import register_this as register_llama
from .mamba1 import Mamba1Options
from .mamba1 import register_this as register_mamba1
from .mamba2 import Mamba2Options
from .mamba2 import register_this as register_mamba2
from .tnl import TNLOptions
from .tnl import register_this as register_tnl
from .transformer import TransformerOptions
from .transformer import register_this as register_transformer

__all__ = [
    "CosFormer2Options",
    "GatedDeltaNetOptions",
    "HGRN1Options",
    "HGRN2Options",
    "KimiDeltaOptions",
    "LlamaOptions",
    "Mamba1Options",
    "Mamba2Options",
    "TNLOptions",
    "TransformerOptions",
    "register_all",
]

ORDER = (  # of every list
    register_llama,
    register_tnl,
    register_hgrn2,
    register_cosformer2,
    register_hgrn1,
    register_mamba2,
    register_mamba1,
    register_transformer,
    register_gated_deltanet,
    register_kimi_delta,
    register_fla,
)


def register_all() -> tuple[str, ...]:
    """Register the architectures of this package, as a plugin registers its own, and return their names in order."""
    for register in ORDER:
        register()
    return tuple(name for name, arch in ARCHITECTURES.items() if arch.plugin is None)
