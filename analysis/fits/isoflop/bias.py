"""By how much a parabola misses the optimum of a surface that is known.

A loss surface is steeper on one side of its optimum than on the other in log N, and a parabola through sizes of both
sides has its vertex to one side of it (arXiv 2603.22339): too large where the exponent of D is smaller than that of N.
On budgets whose sizes lie alike about the optimum the factor is one for all, so the exponent a is right and every N_opt
is not; where they do not, a is wrong as well. Fitting the same variant to the surface's losses without noise, at the
very sizes of the study, tells the factor budget by budget; where the surface was itself fitted, so was the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.budgets import Readings
from analysis.fits.isoflop.laws import minima_of

Surface = Callable[[np.ndarray, np.ndarray], np.ndarray]  # loss of N and D [k]: [k], or [r, k] by r surfaces
GOLDEN = (5**0.5 - 1) / 2
NEAR = 1e-4  # of log N, to which golden section goes
REACH = 12.0  # in log N, to either side of the sizes, within which a surface's optimum is looked for


@dataclass(frozen=True)
class Bias:
    """[k], or [r, k] of r surfaces: what the variant finds on the surface less what is there: of log N_opt and of log
    loss; nan where it finds nothing. true_log_n, true_log_loss: the surface's own optimum."""

    log_n: np.ndarray
    log_loss: np.ndarray
    true_log_n: np.ndarray
    true_log_loss: np.ndarray


def surface_optimum(surface: Surface, cost: Cost, log_c: np.ndarray, low: float, high: float) -> np.ndarray:
    """[k], or [r, k] of r surfaces: log N of the least surface(N, C / cost(N)) at each log_c [k], between log N `low`
    and `high`, by golden section; nan where it lies at an end. The loss is taken to fall and then rise in log N."""

    def loss(log_n: np.ndarray) -> np.ndarray:
        return surface(np.exp(log_n), np.exp(log_c - cost.log_per_token(log_n)))

    shape = loss(np.full(len(log_c), low)).shape
    a, b = np.full(shape, low), np.full(shape, high)
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d = loss(c), loss(d)
    for _ in range(math.ceil(math.log(NEAR / (high - low)) / math.log(GOLDEN))):
        left = at_c < at_d
        a, b = np.where(left, a, c), np.where(left, d, b)
        c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        at_c, at_d = loss(c), loss(d)
    # golden section would stop at the root of the rounding error: a parabola of wider step finds the rest of the digits
    at, step = (a + b) / 2, 1e-3
    below, here, above = loss(at - step), loss(at), loss(at + step)
    bend = below - 2 * here + above
    with np.errstate(invalid="ignore", divide="ignore"):
        at = np.where(bend > 0, at + step * np.clip((below - above) / (2 * bend), -1, 1), at)
    return np.where((at - low < 0.01) | (high - at < 0.01), np.nan, at)


def surface_losses(readings: Readings, surface: Surface, cost: Cost) -> np.ndarray:
    """[p]: the surface's loss at the size of every reading, at its budget's own C."""
    at = readings.log_c[readings.budget]
    return surface(np.exp(readings.log_n), np.exp(at - cost.log_per_token(readings.log_n)))


def bias_of(readings: Readings, clean: np.ndarray, variant: str, surface: Surface, cost: Cost) -> Bias:
    """Of `variant` at the sizes of every budget, whose losses by the surface are `clean` [p] or [r, p]."""
    minima = minima_of(readings, np.atleast_2d(clean), variant)
    low, high = float(readings.log_n.min()) - REACH, float(readings.log_n.max()) + REACH
    true = surface_optimum(surface, cost, readings.log_c, low, high)
    there = np.nan_to_num(true)
    best = np.where(
        np.isfinite(true), surface(np.exp(there), np.exp(readings.log_c - cost.log_per_token(there))), np.nan
    )
    none = np.full(len(np.atleast_2d(clean)), np.nan)
    with np.errstate(invalid="ignore"):
        found = np.stack([none if one is None else one.log_n for one in minima], 1).reshape(true.shape)
        lowest = np.stack([none if one is None else one.loss for one in minima], 1).reshape(true.shape)
        return Bias(found - true, np.log(lowest) - np.log(best), true, np.log(best))
