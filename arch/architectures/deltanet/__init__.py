"""DeltaNet: linear attention that writes by the delta rule. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...registry import register
from ..common.delta_options import DeltaOptions, delta_preset
from ..common.delta_shape import deltanet

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class DeltaNetOptions(DeltaOptions):
    """The options of DeltaNet."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"expand_v": 1}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The d_ffn that gives a layer as many parameters as the others have."""
    return delta_preset(DeltaNetOptions, deltanet, shape, changes)


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
        preset=preset,
        label="DeltaNet",
        color="#999933",
    )
