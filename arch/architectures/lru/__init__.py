"""LRU: a diagonal linear recurrence of complex numbers that does not depend on the token. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...options import Options
from ...registry import register

if TYPE_CHECKING:
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class LRUOptions(Options):
    """The LRU has no options."""

    ignored = ("n_heads",)


def mixer_class() -> type[Mixer]:
    from .mixer import LRUMixer

    return LRUMixer


def register_this() -> None:
    """Register this architecture."""
    register("lru", mixer=mixer_class, options=LRUOptions, label="LRU", color="#7799cc")
