"""The options of LLaMA's and RetNet's rotary positions. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...options import Options, option

if TYPE_CHECKING:
    from ...config import ModelConfig


@dataclass(frozen=True)
class RotaryOptions(Options):
    """The options of mixers that rotate queries and keys by their positions."""

    rope_base: float = option(10_000.0)
    """The rotary angle of channel pair c is position x rope_base^(-2c / head dimension)."""

    def check(self, config: ModelConfig) -> None:
        if config.head_dim % 2:
            raise InputError(f"model: rotary embedding needs an even head dimension, not {config.head_dim}")
