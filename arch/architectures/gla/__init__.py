"""GLA: linear attention with a forget gate per key channel. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...options import Options, option
from ...registry import register
from ..common.ffn_beside import ffn_beside
from .shape import matrices

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer

RANK = 16  # of the paper's forget gates, at every size


@dataclass(frozen=True)
class GLAOptions(Options):
    """The options of Gated Linear Attention."""

    gate_rank: int | None = option(None)
    """Width of the low-rank forget gate; null: 16, or the head dimension where it is less."""
    gate_temperature: int = option(16)
    """The forget gate is a sigmoid to the power of 1 / gate_temperature."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"gate_rank": min(RANK, config.head_dim)}

    def check(self, config: ModelConfig) -> None:
        if config.head_dim % 2:
            raise InputError(f"model: keys of half a head's width need an even head dimension, not {config.head_dim}")


def mixer_class() -> type[Mixer]:
    from .mixer import GLAMixer

    return GLAMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "gla",
        mixer=mixer_class,
        norm="rms",
        options=GLAOptions,
        preset=ffn_beside(GLAOptions, matrices),
        label="GLA",
        color="#332288",
    )
