"""What the costs of the HGRN models share: their forget gates. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig

from .activations import F


def lower_bound(cfg: ModelConfig, width: int) -> dict[str, int]:
    """gamma, [l, `width`]."""
    return {"lower_bound": cfg.n_layers * width} if cfg.options.learns_bounds else {}


def forget(cfg: ModelConfig, width: int, constant_is_read: bool) -> float:
    """Bytes of f and 1 - f, by token: two sigmoids, the arguments of log, log1p and logsigmoid, and a mask (on a CPU
    logsigmoid keeps a second tensor); where f is the same at all tokens 1 - f alone, if anything reads it."""
    if not cfg.options.gates_forget:
        return F * width if constant_is_read and cfg.options.learns_bounds else 0.0
    return 5 * F * width + width
