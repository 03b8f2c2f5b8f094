"""Mamba2: linear attention with a decay per head and step, behind a short convolution. Imports no torch."""

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

STATE = 128  # the published width


@dataclass(frozen=True)
class Mamba2Options(MambaOptions):
    """The options of Mamba2."""

    ignored = ("d_ffn",)

    ssm_state: int | None = option(None)
    """Width N of the state; null: 16 a channel (Mamba1), 128 a head (Mamba2)."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"ssm_state": STATE}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A narrow model's state is half as wide as the model, up to the published 128."""
    return mamba_preset(size, shape, STATE, share=2)


def mixer_class() -> type[Mixer]:
    from .mixer import Mamba2Mixer

    return Mamba2Mixer


def family() -> Family:
    from .hugging_face import FAMILY

    return FAMILY


def register_this() -> None:
    """Register this architecture."""
    register(
        "mamba2",
        mixer=mixer_class,
        norm="rms",
        options=Mamba2Options,
        preset=preset,
        label="Mamba2",
        color="#7f6d00",
        hugging_face=family,
        ladder={"ssm_state": STATE},
    )
