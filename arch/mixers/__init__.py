"""Token mixers, one file per architecture."""

from torch import nn

from .cosformer2 import CosFormer2Mixer
from .hgrn2 import HGRN2Mixer
from .llama import LlamaMixer
from .tnl import TNLMixer

MIXERS: dict[str, type[nn.Module]] = {
    "llama": LlamaMixer,
    "tnl": TNLMixer,
    "hgrn2": HGRN2Mixer,
    "cosformer2": CosFormer2Mixer,
}
