"""RetNet: linear attention with a fixed decay per head and rotary positions. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...options import option
from ...registry import register
from ..common.ffn_beside import ffn_beside
from ..common.rotary_options import RotaryOptions
from .shape import matrices

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class RetNetOptions(RotaryOptions):
    """The options of RetNet."""

    expand_v: int | None = option(None)
    """Channels of a head's values for each channel of its keys; null: 2."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"expand_v": 2}


def mixer_class() -> type[Mixer]:
    from .mixer import RetNetMixer

    return RetNetMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "retnet",
        mixer=mixer_class,
        norm="rms",
        options=RetNetOptions,
        preset=ffn_beside(RetNetOptions, matrices),
        label="RetNet",
        color="#cc6677",
    )
