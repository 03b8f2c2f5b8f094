"""The costs of the LRU: an element-wise recurrence whose decays do not depend on the token. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import scan_states

from .. import by_kernels as kernels
from ..activations import F
from ..entry import Entry, Lines, Memory, no_core


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """x; the decays written out for each token, W_in x and, of the scan, its outputs or inputs in fp32; what W_out
    reads."""
    d = cfg.d_model
    return {"mixer.projections": a * T * 3 * d, "mixer.core": F * T * 5 * d}


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """The same, the states before the pieces and, where the residual stream is wider, x as the skip reads it."""
    d, x = cfg.d_model, kernels.stream(cfg, a)
    lines = {"mixer.states": F * scan_states(T, B, d, 2) * 2 * d, "mixer.skip": x * T * d if x > a else 0.0}
    return activations(cfg, T, a) | lines


ENTRY = Entry(
    matrices=lambda cfg: {"mixer.i": 2 * cfg.d_model**2, "mixer.o": 2 * cfg.d_model**2},
    vectors=lambda cfg: {"mixer.recurrence": 3 * cfg.d_model, "mixer.skip": cfg.d_model},
    core=no_core,
    state=lambda cfg, n: {"state": 2 * cfg.d_model},
    memory=Memory(activations, by_kernels),
)
