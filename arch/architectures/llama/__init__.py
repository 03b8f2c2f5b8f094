"""LLaMA: softmax attention with rotary positions, the baseline. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...options import Options, option
from ...registry import register

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...hf.families import Family
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class LlamaOptions(Options):
    """The options of LLaMA."""

    ignored = ("chunk_size",)

    rope_base: float = option(10_000.0)
    """The rotary angle of channel pair c is position x rope_base^(-2c / head dimension)."""

    def check(self, config: ModelConfig) -> None:
        if config.head_dim % 2:
            raise InputError(f"model: rotary embedding needs an even head dimension, not {config.head_dim}")


def mixer_class() -> type[Mixer]:
    from .mixer import LlamaMixer

    return LlamaMixer


def family() -> Family:
    from .hugging_face import FAMILY

    return FAMILY


def register_this() -> None:
    """Register this architecture."""
    register(
        "llama",
        mixer=mixer_class,
        norm="rms",
        options=LlamaOptions,
        label="LLaMA",
        color="#0072b2",
        constant_state=False,
        hugging_face=family,
    )
