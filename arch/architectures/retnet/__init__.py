"""RetNet: linear attention with a fixed decay per head and rotary positions. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import option
from ...registry import register
from ..common.ffn_beside import ffn_beside
from ..llama import LlamaOptions

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class RetNetOptions(LlamaOptions):
    """The options of RetNet: LLaMA's of rotary positions, and its own."""

    ignored = ()

    expand_v: int | None = option(None)
    """Channels of a head's values for each channel of its keys; null: 2."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"expand_v": 2}


def values(config: Any) -> int:
    """Channels of all heads' values. config: d_model, n_heads and options, here and below."""
    return int(config.options.expand_v * config.d_model)


def matrices(config: Any) -> dict[str, int]:
    """A layer's weight matrices: to q, k, v and the output gate, and from the values."""
    d, wide = config.d_model, values(config)
    return {"mixer.q": d * d, "mixer.k": d * d, "mixer.v": d * wide, "mixer.g": d * wide, "mixer.o": wide * d}


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
