"""A training curve: smoothing it, reading it between its points, and the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def smooth(
    n_tokens: np.ndarray, loss: np.ndarray, window: float, fraction: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The centred mean of `loss` over `window` tokens, or over `fraction` of the tokens seen so far where that is more,
    for every step whose whole window lies inside the run; each at its window's geometric mean of tokens.

    n_tokens [n] rising, loss [n] in nats a token. Returns tokens and smoothed loss, both shorter than n by about one
    window: the ends are dropped, because a one-sided mean there would lag (too high at the start) or be noisier than
    the rest (and a noisy end wins every minimum). A window that grows with the tokens is of constant width on the log
    axis where the laws live. At the geometric mean a curve a - b log D is left as it is, and L ~ D^-p is lifted by
    1 + p^2 w^2 / 24 for a window of w times the tokens; at the middle step it would be p (p + 1), which moves the
    larger sizes, younger at a given C, to the right.
    """
    n_tokens, loss = np.asarray(n_tokens, dtype=float), np.asarray(loss, dtype=float)
    if (window <= 0 and fraction <= 0) or len(n_tokens) == 0:
        return n_tokens, loss
    half = np.maximum(window, fraction * n_tokens) / 2
    inside = (n_tokens - half >= n_tokens[0]) & (n_tokens + half <= n_tokens[-1])
    total = np.concatenate([[0.0], np.cumsum(loss)])
    low = np.searchsorted(n_tokens, (n_tokens - half)[inside], side="left")
    high = np.searchsorted(n_tokens, (n_tokens + half)[inside], side="right")
    logs = np.concatenate([[0.0], np.cumsum(np.log(n_tokens))])
    count = high - low
    return np.exp((logs[high] - logs[low]) / count), (total[high] - total[low]) / count


def read_at(log_c: np.ndarray, log_loss: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear interpolation of log loss in log C at `at`; +inf outside the curve, where it says nothing."""
    values = np.interp(at, log_c, log_loss)
    slack = 1e-12 * max(abs(log_c[0]), abs(log_c[-1]), 1.0)  # a grid's end that equals the curve's end is inside
    return np.where((at < log_c[0] - slack) | (at > log_c[-1] + slack), np.inf, values)


def average_seeds(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean log loss of several (log C, log loss) curves over the stretch that all of them cover."""
    if len(curves) == 1:
        return curves[0]
    start, end = max(c[0][0] for c in curves), min(c[0][-1] for c in curves)
    base = curves[0][0]
    grid = base[(base >= start) & (base <= end)]
    return grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0)
