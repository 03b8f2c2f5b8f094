"""Gated DeltaNet: the delta rule with a decay per head and step. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...registry import register
from ..common.delta_options import DeltaOptions, convolved, delta_preset, values

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class GatedDeltaNetOptions(DeltaOptions):
    """The options of Gated DeltaNet."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"expand_v": 2}


def rest(config: Any) -> tuple[int, int]:
    """Widths of the decays' and the output gate's projections."""
    return config.n_heads, values(config)


def matrices(config: Any) -> dict[str, int]:
    """A layer's weight matrices."""
    width = convolved(config) + config.n_heads + sum(rest(config))
    return {"mixer.in": config.d_model * width, "mixer.o": values(config) * config.d_model}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The d_ffn that gives a layer as many parameters as the others have."""
    return delta_preset(GatedDeltaNetOptions, matrices, shape, changes)


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
        preset=preset,
        label="Gated DeltaNet",
        color="#882255",
    )
