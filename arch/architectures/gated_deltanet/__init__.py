"""Gated DeltaNet: the delta rule with a decay per head and step. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...registry import register
from ..common.delta_options import DeltaOptions
from ..common.delta_shape import gated_deltanet
from ..common.ffn_beside import ffn_beside

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class GatedDeltaNetOptions(DeltaOptions):
    """The options of Gated DeltaNet."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"key_dim": -(-3 * config.head_dim // 4), "expand_v": 2}


def mixer_class() -> type[Mixer]:
    from .mixer import GatedDeltaNetMixer

    return GatedDeltaNetMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "gated_deltanet",
        mixer=mixer_class,
        norm="rms",
        options=GatedDeltaNetOptions,
        preset=ffn_beside(GatedDeltaNetOptions, gated_deltanet),
        label="Gated DeltaNet",
        color="#882255",
    )
