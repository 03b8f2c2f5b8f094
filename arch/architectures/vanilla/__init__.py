"""The Transformer of 2017, with fixed sinusoids and an MLP without a gate: a baseline of tables. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import Options
from ...registry import register

if TYPE_CHECKING:
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class VanillaOptions(Options):
    """The vanilla Transformer has no options."""

    ignored = ("chunk_size",)


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """An MLP of two matrices has as many parameters as one of three where it is half as wide again."""
    return {"d_ffn": 3 * shape["d_ffn"] // 2}


def mixer_class() -> type[Mixer]:
    from .mixer import VanillaMixer

    return VanillaMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "vanilla",
        mixer=mixer_class,
        norm="layer",
        options=VanillaOptions,
        preset=preset,
        label="Vanilla Transformer",
        color="#bbaa44",
        constant_state=False,
        in_patterns=False,
    )
