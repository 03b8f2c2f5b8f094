"""Laws through the minima of the budgets: N_opt, D_opt and L_opt as power laws of C, with replicates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.irreducible import NEEDED as FOR_FLOOR
from analysis.fits.irreducible import Irreducible, fit_irreducible
from analysis.fits.isoflop.budgets import Readings
from analysis.fits.isoflop.minimum import NEEDED, Minima, interpolated_minima, parabola_minima
from analysis.fits.powerlaw import fit_lines
from arch.amounts import counted

LARGEST = 230.0  # |log| of N, D or loss: 1e100
LAWS = ("N_opt", "D_opt", "L_opt")
BELOW_0 = "the lowest point between its sizes would be a loss below 0: one of its losses lies far off the others"


@dataclass(frozen=True)
class Budget:
    """One budget: C [FLOP], its sizes, and its minimum: N, D and loss there, the N between which the loss stays within
    0.5% of it; or why it has none."""

    c: float
    n_points: int
    n_sizes: int
    n_params: float | None
    n_tokens: float | None
    loss: float | None
    flat: tuple[float, float] | None
    reason: str | None


@dataclass(frozen=True)
class Line:
    """log y = level + slope (log C - centre), of r replicates: level and slope [r]."""

    level: np.ndarray
    slope: np.ndarray
    centre: float

    def at(self, log_c: float | np.ndarray) -> np.ndarray:
        """log y [r] at log C, or [r, g] at g of them."""
        off = np.asarray(log_c) - self.centre
        return self.level[:, None] + self.slope[:, None] * off if off.ndim else self.level + self.slope * off


@dataclass(frozen=True)
class Above:
    """log L = log(E + beta C^slope), of r replicates."""

    law: Irreducible

    @property
    def slope(self) -> np.ndarray:
        return self.law.exponent

    def at(self, log_c: float | np.ndarray) -> np.ndarray:
        """log L [r] at log C, or [r, g] at g of them."""
        return np.asarray(np.log(self.law.at(log_c)))


Laws = dict[str, Line | Above]


def minima_of(readings: Readings, loss: np.ndarray, variant: str) -> list[Minima | None]:
    """Of each budget, for losses [r, p]; None for too few sizes."""
    find = parabola_minima if variant == "parabola" else interpolated_minima
    found: list[Minima | None] = []
    for j, count in enumerate(readings.counts()):
        mine = readings.budget == j
        found.append(find(readings.log_n[mine], loss[:, mine]) if count >= NEEDED[variant] else None)
    return found


def describe(readings: Readings, minima: list[Minima | None], cost: Cost, variant: str) -> list[Budget]:
    """Every budget's minimum, or why it has none."""
    found = []
    for j, (count, one) in enumerate(zip(readings.counts(), minima, strict=True)):
        c, points = float(np.exp(readings.log_c[j])), int((readings.budget == j).sum())
        if one is None:
            why = f"{counted(int(count), 'size')}, {NEEDED[variant]} are needed"
            found.append(Budget(c, points, int(count), None, None, None, None, why))
        elif why_not := one.why_not or (None if one.loss[0] > 0 else BELOW_0):
            found.append(Budget(c, points, int(count), None, None, None, None, why_not))
        else:
            n = float(np.exp(one.log_n[0]))
            tokens = c / float(cost.per_token(n))
            low, high = np.exp(one.flat[0]).tolist()
            found.append(Budget(c, points, int(count), n, tokens, float(one.loss[0]), (low, high), None))
    return found


def fit_laws(log_c: np.ndarray, log_n: np.ndarray, loss: np.ndarray, cost: Cost) -> Laws:
    """Least squares in logarithms through minima log_n, loss [r, k] at log_c [k]; the law of D_opt is fitted to
    D = C / cost(N_opt) at each budget, that of L_opt has an irreducible loss from four budgets. A replicate without one
    of the minima has no law (nan)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        log_loss = np.where(loss > 0, np.log(loss), np.nan)
    table = {"N_opt": log_n, "D_opt": log_c - _log_per_token(cost, log_n), "L_opt": log_loss}
    found: Laws = {}
    for name, y in table.items():
        whole = np.isfinite(y).all(1)
        slope, level, centre = fit_lines(log_c, np.where(whole[:, None], y, 0.0), np.ones_like(y, dtype=bool))
        if name == "L_opt":
            whole[1:] = False  # three budgets do not tell a power law from one above an irreducible loss
        found[name] = Line(np.where(whole, level, np.nan), np.where(whole, slope, np.nan), float(centre[0]))
    if len(log_c) >= FOR_FLOOR:
        found["L_opt"] = Above(fit_irreducible(log_c, np.exp(log_loss)))
    return found


def _log_per_token(cost: Cost, log_n: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(log_n), cost.log_per_token(np.where(np.isfinite(log_n), log_n, 0.0)), np.nan)


def interval(values: np.ndarray, level: float) -> tuple[float, float] | None:
    """The central `level` of replicates [r]. One without a value might lie on either side, so both tails are cut by
    half of the rest: None where those without are more than a tail."""
    finite = values[np.isfinite(values)]
    tail = (1 - level) / 2
    missing = 1 - len(finite) / len(values) if len(values) else 1.0
    if missing >= tail or len(finite) < 2:
        return None
    share = (tail - missing) / (1 - missing)
    low, high = np.quantile(finite, [share, 1 - share], method="weibull")  # the k-th of r stands for k / (r + 1)
    return float(low), float(high)


def exp_interval(log_values: np.ndarray, level: float) -> tuple[float, float] | None:
    """`interval` of exp; None where an end is no number that a law could have."""
    ends = interval(log_values, level)
    if ends is None or max(abs(ends[0]), abs(ends[1])) > LARGEST:
        return None
    return float(np.exp(ends[0])), float(np.exp(ends[1]))
