"""The architectures of this package, a folder each.

A folder has the architecture's name, options and shapes (`__init__.py`, without torch), its mixer, and its Hugging Face
conversion, if any. Its costs are flops/architectures/<name>.py. Imports no torch.
"""

from ..registry import ARCHITECTURES
from .cosformer2 import register_this as register_cosformer2
from .deltanet import register_this as register_deltanet
from .fla import register_this as register_fla
from .gated_deltanet import register_this as register_gated_deltanet
from .gla import register_this as register_gla
from .hgrn1 import register_this as register_hgrn1
from .hgrn2 import register_this as register_hgrn2
from .kimi_delta import register_this as register_kimi_delta
from .llama import register_this as register_llama
from .lru import register_this as register_lru
from .mamba1 import register_this as register_mamba1
from .mamba2 import register_this as register_mamba2
from .retnet import register_this as register_retnet
from .tnl import register_this as register_tnl
from .transformer import register_this as register_transformer
from .vanilla import register_this as register_vanilla

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
    register_gla,
    register_retnet,
    register_deltanet,
    register_lru,
    register_vanilla,
    register_fla,
)


def register_all() -> tuple[str, ...]:
    """Register the architectures of this package, as a plugin registers its own, and return their names in order."""
    for register in ORDER:
        register()
    return tuple(name for name, arch in ARCHITECTURES.items() if arch.plugin is None)
