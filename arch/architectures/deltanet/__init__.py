"""DeltaNet: linear attention that writes by the delta rule. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...registry import register
from ..common.delta_options import DeltaOptions
from ..common.delta_shape import deltanet
from ..common.ffn_beside import ffn_beside

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class DeltaNetOptions(DeltaOptions):
    """The options of DeltaNet."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"key_dim": config.head_dim, "expand_v": 1}


def mixer_class() -> type[Mixer]:
    from .mixer import DeltaNetMixer

    return DeltaNetMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "deltanet",
        mixer=mixer_class,
        norm="rms",
        options=DeltaNetOptions,
        preset=ffn_beside(DeltaNetOptions, deltanet),
        label="DeltaNet",
        color="#999933",
    )
