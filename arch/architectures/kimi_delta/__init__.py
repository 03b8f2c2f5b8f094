"""Kimi Delta Attention: the delta rule with a decay per key channel and step. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...options import option
from ...registry import register
from ..common.delta_options import DeltaOptions
from ..common.delta_shape import kimi_delta
from ..common.ffn_beside import ffn_beside

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class KimiDeltaOptions(DeltaOptions):
    """The options of Kimi Delta Attention."""

    gate_rank: int | None = option(None)
    """Width of the low-rank projections of decays and output gate; null: the head dimension."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"key_dim": config.head_dim, "expand_v": 1, "gate_rank": config.head_dim}


def mixer_class() -> type[Mixer]:
    from .mixer import KimiDeltaMixer

    return KimiDeltaMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "kimi_delta",
        mixer=mixer_class,
        norm="rms",
        options=KimiDeltaOptions,
        preset=ffn_beside(KimiDeltaOptions, kimi_delta),
        label="Kimi Delta",
        color="#44aa99",
    )
