"""The lowest loss of a budget over log N: by a parabola (Hoffmann et al. 2022, approach 2), or by interpolation through
the sizes (Akima 1970, as Porian et al. 2024 use it). Losses of r replicates at once: they differ in the loss alone.

A minimum counts only where the sizes enclose it. One at or beyond the smallest or largest size says that the optimum
lies elsewhere, and a parabola that opens downward has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from arch.amounts import count

FLAT = 0.005  # sizes within this share of the lowest loss count as equally good
NEEDED = {"parabola": 3, "interpolation": 4}  # different sizes in a budget
FINE = 601  # sizes between the smallest and the largest at which an interpolation is read


@dataclass(frozen=True)
class Minima:
    """Of r replicates: log N and loss at the minimum, each [r]; nan where there is none. flat [r, 2]: the log N between
    which the loss stays within FLAT of it, within the sizes' range for an interpolation."""

    log_n: np.ndarray
    loss: np.ndarray
    flat: np.ndarray
    why_not: str | None = None  # of the first replicate


def design(log_n: np.ndarray) -> tuple[np.ndarray, float, float]:
    """[p, 3] for 1, x, x^2 with x = (log N - middle) / half width, and these two."""
    middle = float((log_n.min() + log_n.max()) / 2)
    half = float(np.ptp(log_n) / 2) or 1.0
    x = (log_n - middle) / half
    return np.stack([np.ones_like(x), x, x**2], 1), middle, half


def parabola_minima(log_n: np.ndarray, loss: np.ndarray) -> Minima:
    """Least squares of loss [r, p] on a parabola in log_n [p]. Replicates keep a minimum beyond the sizes: noise moved
    it there, and leaving it out would make intervals too narrow."""
    x, middle, half = design(log_n)
    constant, linear, square = (loss @ np.linalg.pinv(x).T).T
    with np.errstate(divide="ignore", invalid="ignore"):
        up = square > 1e-12 * np.abs(constant)
        at = np.where(up, -linear / (2 * square), np.nan)
        lowest = constant + linear * at / 2
        width = np.sqrt(FLAT * lowest / square)
    why = None
    if not up[0]:
        why = "its parabola opens downward: no size is best" if square[0] < 0 else "its loss does not bend with size"
    elif not -1 < at[0] < 1:
        why = _outside(middle + half * float(at[0]), log_n)
    flat = np.stack([at - width, at + width], 1)
    return Minima(middle + half * at, np.where(up, lowest, np.nan), middle + half * flat, why)


def interpolated_minima(log_n: np.ndarray, loss: np.ndarray) -> Minima:
    """The lowest point of Akima's interpolation of loss [r, p] in log_n [p], losses of one size averaged. In replicates
    a minimum at an end stays there."""
    knots, where = np.unique(log_n, return_inverse=True)
    values = np.stack([loss[:, where == i].mean(1) for i in range(len(knots))])  # [sizes, r]
    curve = Akima1DInterpolator(knots, values)
    fine = np.linspace(knots[0], knots[-1], FINE)
    table = curve(fine)  # [FINE, r]
    best = table.argmin(0)
    inner = np.clip(best, 1, FINE - 2)
    each = np.arange(table.shape[1])
    before, at, after = table[inner - 1, each], table[inner, each], table[inner + 1, each]
    bend = before - 2 * at + after
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(bend > 0, np.clip((before - after) / (2 * bend), -1, 1), 0.0)
    edge = (best == 0) | (best == FINE - 1)
    log_at = np.where(edge, fine[best], fine[inner] + step * (fine[1] - fine[0]))
    lowest = np.where(edge, table[best, each], at - (before - after) * step / 4)
    near = table <= lowest * (1 + FLAT)
    flat = np.stack([fine[near.argmax(0)], fine[FINE - 1 - near[::-1].argmax(0)]], 1)
    why = _outside(float(log_at[0]), log_n) if edge[0] else None
    return Minima(log_at, lowest, flat, why)


def _outside(at: float, log_n: np.ndarray) -> str:
    low, high = np.exp([log_n.min(), log_n.max()])
    place = f"at N = {count(math.exp(at), 4)}" if abs(at) < 600 else "far away"
    return f"its minimum {place} is not inside its sizes, {count(low, 4)} to {count(high, 4)}"
