"""Smoothing of a training curve, and reading it between its points."""

from __future__ import annotations

import numpy as np


def smooth(
    n_tokens: np.ndarray, loss: np.ndarray, window: float, fraction: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The centred mean of `loss` over `window` tokens, or over `fraction` of the tokens seen so far where that is more,
    at every step whose whole window lies inside the run.

    n_tokens [n] rising, loss [n] in nats a token. Returns tokens and smoothed loss, both shorter than n by about one
    window: the ends are dropped, because a one-sided mean there would lag (too high at the start) or be noisier than
    the rest (and a noisy end wins every minimum). A window that grows with the tokens is of constant width on the log
    axis where the laws live: for L ~ D^-p it lifts the whole curve by the factor 1 + p (p + 1) fraction^2 / 24.
    """
    n_tokens, loss = np.asarray(n_tokens, dtype=float), np.asarray(loss, dtype=float)
    if (window <= 0 and fraction <= 0) or len(n_tokens) == 0:
        return n_tokens, loss
    half = np.maximum(window, fraction * n_tokens) / 2
    inside = (n_tokens - half >= n_tokens[0]) & (n_tokens + half <= n_tokens[-1])
    total = np.concatenate([[0.0], np.cumsum(loss)])
    low = np.searchsorted(n_tokens, (n_tokens - half)[inside], side="left")
    high = np.searchsorted(n_tokens, (n_tokens + half)[inside], side="right")
    return n_tokens[inside], (total[high] - total[low]) / (high - low)


def read_at(log_c: np.ndarray, log_loss: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear interpolation of log loss in log C at `at`; +inf outside the curve, where it says nothing."""
    if len(log_c) == 0:
        return np.full(np.shape(at), np.inf)
    values = np.interp(at, log_c, log_loss)
    slack = 1e-12 * max(abs(log_c[0]), abs(log_c[-1]), 1.0)  # a grid's end that equals the curve's end is inside
    return np.where((at < log_c[0] - slack) | (at > log_c[-1] + slack), np.inf, values)
