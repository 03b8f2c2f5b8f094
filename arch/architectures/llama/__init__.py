"""LLaMA: softmax attention with rotary positions, the baseline. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...registry import register
from ..common.rotary_options import RotaryOptions

if TYPE_CHECKING:
    from ...hf.families import Family
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class LlamaOptions(RotaryOptions):
    """The options of LLaMA, those of rotary positions."""

    ignored = ("chunk_size",)


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
