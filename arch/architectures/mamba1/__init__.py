"""Mamba1: a state space model on single channels, behind a short convolution. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import option
from ...registry import register
from ..common.mamba_options import MambaOptions, mamba_preset

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...hf.families import Family
    from ...model.mixer import Mixer

STATE = 16  # the published width


@dataclass(frozen=True)
class Mamba1Options(MambaOptions):
    """The options of Mamba1."""

    ignored = ("n_heads", "d_ffn", "chunk_size")

    ssm_state: int | None = option(None)
    """Width N of the state; null: 16 a channel (Mamba1), 128 a head (Mamba2)."""
    dt_rank: int | None = option(None)
    """Rank of the projection of step sizes; null: d_model / 16, rounded up."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"ssm_state": STATE, "dt_rank": -(-config.d_model // 16)}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A narrow model's state is such that 128 channels have the published 16."""
    return mamba_preset(size, shape, STATE, share=8)


def mixer_class() -> type[Mixer]:
    from .mixer import Mamba1Mixer

    return Mamba1Mixer


def family() -> Family:
    from .hugging_face import FAMILY

    return FAMILY


def register_this() -> None:
    """Register this architecture."""
    register(
        "mamba1",
        mixer=mixer_class,
        norm="rms",
        options=Mamba1Options,
        preset=preset,
        label="Mamba1",
        color="#56b4e9",
        hugging_face=family,
        ladder={"ssm_state": STATE},
    )
