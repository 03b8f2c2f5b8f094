"""The options and shapes that Mamba1 and Mamba2 share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import Options, option
from ...sizes import TINY

if TYPE_CHECKING:
    from ...config import ModelConfig


@dataclass(frozen=True)
class MambaOptions(Options):
    """The options that the Mamba models share."""

    expand: int = option(2)
    """Inner width over d_model."""
    conv_width: int = option(4)
    """Steps of the short convolution."""


def inner_width(config: ModelConfig) -> int:
    """Width of what the recurrence mixes; Mamba2's heads are inner_width / n_heads wide."""
    return int(config.options.expand) * config.d_model


def mamba_preset(size: str, shape: dict[str, Any], share: int) -> dict[str, Any]:
    """No MLP, so more layers: 3 where others have 2, twice as many at the paper's sizes.

    Heads are d (tiny) or 64 of the inner stream's 2 d channels; a tiny model's state is d / `share`.
    """
    if size in TINY:
        return {"norm_eps": 1e-5, "n_layers": 3, "ssm_state": shape["d_model"] // share}
    return {"norm_eps": 1e-5, "n_layers": 2 * shape["n_layers"], "n_heads": shape["d_model"] // 32}
