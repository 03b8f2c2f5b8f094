"""Token mixers, one file per architecture."""

import importlib

from ..errors import InputError
from ..model.mixer import Mixer
from ..registry import REGISTERED
from .cosformer2.mixer import CosFormer2Mixer
from .hgrn1.mixer import HGRN1Mixer
from .hgrn2.mixer import HGRN2Mixer
from .llama.mixer import LlamaMixer
from .mamba1.mixer import Mamba1Mixer
from .mamba2.mixer import Mamba2Mixer
from .tnl.mixer import TNLMixer

MIXERS: dict[str, type[Mixer]] = {
    "llama": LlamaMixer,
    "tnl": TNLMixer,
    "hgrn2": HGRN2Mixer,
    "cosformer2": CosFormer2Mixer,
    "hgrn1": HGRN1Mixer,
    "mamba2": Mamba2Mixer,
    "mamba1": Mamba1Mixer,
}


def mixer_of(arch: str) -> type[Mixer]:
    """The token mixer of a known architecture; that of a plugin is imported now. Raises InputError where it is none."""
    if arch in MIXERS:
        return MIXERS[arch]
    given = found = REGISTERED[arch].mixer
    if isinstance(given, str):
        module, _, name = given.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InputError(f"architecture {arch!r}: its mixer {given} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Mixer)):
        raise InputError(f"architecture {arch!r}: its mixer {given} is no subclass of arch.model.mixer.Mixer")
    return found
