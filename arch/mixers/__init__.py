"""Token mixers, one file per architecture."""

from .base import Mixer
from .cosformer2 import CosFormer2Mixer
from .hgrn1 import HGRN1Mixer
from .hgrn2 import HGRN2Mixer
from .llama import LlamaMixer
from .mamba1 import Mamba1Mixer
from .mamba2 import Mamba2Mixer
from .tnl import TNLMixer

MIXERS: dict[str, type[Mixer]] = {
    "llama": LlamaMixer,
    "tnl": TNLMixer,
    "hgrn2": HGRN2Mixer,
    "cosformer2": CosFormer2Mixer,
    "hgrn1": HGRN1Mixer,
    "mamba2": Mamba2Mixer,
    "mamba1": Mamba1Mixer,
}
