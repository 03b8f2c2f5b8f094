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
    """Channels of the recurrence; Mamba2's heads are inner_width / n_heads wide."""
    return int(config.options.expand) * config.d_model


def mamba_preset(size: str, shape: dict[str, Any], state: int, share: int) -> dict[str, Any]:
    """Mamba's own fields at a size. Without an MLP it has more layers: 3 in place of 2 (tiny), otherwise twice as many.

    Heads are d (tiny) or 64 of the inner stream's 2 d channels; 32, or one head, where 64 does not divide them. state:
    the published width; a tiny model has d / `share`, other models at most that.
    """
    d_model = shape["d_model"]
    if size in TINY:
        return {"norm_eps": 1e-5, "n_layers": 3, "ssm_state": d_model // share}
    heads = next((d_model // half for half in (32, 16) if d_model % half == 0), 1)
    own = {"norm_eps": 1e-5, "n_layers": 2 * shape["n_layers"], "n_heads": heads}
    return own | ({"ssm_state": max(1, d_model // share)} if d_model < share * state else {})
