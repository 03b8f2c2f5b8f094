"""The best rate of one cell: a parabola of ln loss in ln rate, over the rates around the lowest loss; and what another
rate costs there: its loss above the lowest point of the cell's curve.

A cell's runs differ by rate and seed alone. Runs of one seed read the same text in the same order, so each seed has a
level of its own, and the parabola is fitted to the differences between rates. Above the best rate losses rise otherwise
than below it, which moves the lowest point of a parabola. The cubic term is too small to be measured in one cell, so
all cells of an architecture share it (cubic_of).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats

from scaling.study.rate_law import REACH

from .points import RatePoint

DIVERGED = 1.25  # times the lowest loss of its cell: a run that ends higher diverged, or hardly learned


@dataclass(frozen=True)
class Cubic:
    """ln loss gains value (ln rate)^3; unit_se: its standard error for noise of standard deviation 1; both are 0 where
    no cell determines it."""

    value: float = 0.0
    unit_se: float = 0.0


NO_CUBIC = Cubic()


@dataclass(frozen=True)
class Fitted:
    """ln loss = level of the seed + curvature (ln rate - log_rate)^2 + cubic (ln rate - log_rate)^3.

    unit_se: standard error of log_rate for noise of standard deviation 1 in ln loss, by the delta method, the cubic
    term taken as known; per_cubic: what log_rate moves by where that term is larger by 1; curvature_unit_se and
    curvature_per_cubic: the same of the curvature; rss, dof: of the residuals around all this.
    """

    log_rate: float
    curvature: float
    cubic: float
    unit_se: float
    per_cubic: float
    curvature_unit_se: float
    curvature_per_cubic: float
    rss: float
    dof: int


@dataclass(frozen=True)
class Cell:
    """A cell of a sweep. `fitted` is None where it has no optimum, and `reason` says why in one line.

    rates, losses: every rate tried, ascending, and its mean loss over the seeds, nan where a run of it diverged; used:
    whether the parabola is fitted to it. n_too_low: runs below the best rate that had not trained by their end.
    extend: where a rate is missing: "lower", "higher", or "between" the two rates of `gap`.
    pure_rss, pure_dof: of the differences between seeds at equal rates, less their levels.
    """

    arch: str
    size: str
    n_params: int
    n_tokens: int
    batch_tokens: int
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    used: tuple[bool, ...]
    n_runs: int
    n_seeds: int
    n_diverged: int
    n_too_low: int
    fitted: Fitted | None
    reason: str = ""
    extend: str = ""
    gap: tuple[float, float] | None = None
    pure_rss: float = 0.0
    pure_dof: int = 0
    points: tuple[RatePoint, ...] = field(repr=False, default=())

    @property
    def fitted_points(self) -> list[RatePoint]:
        """The runs that the parabola is fitted to."""
        used = {rate for rate, taken in zip(self.rates, self.used, strict=True) if taken}
        return [point for point in self.points if point.lr in used]

    @property
    def name(self) -> str:
        return f"{self.arch}/{self.size} at {self.n_tokens:,} tokens in batches of {self.batch_tokens:,}"


def fit_cell(points: Sequence[RatePoint], cubic: float = 0.0) -> Cell:
    """The cell of runs that differ by rate and seed alone, with a given cubic term."""
    first = points[0]
    rates = sorted({point.lr for point in points})
    ended = [point for point in points if math.isfinite(point.loss)]
    lowest = min(ended, key=lambda point: point.loss, default=first)
    far = [point for point in ended if point.loss > DIVERGED * lowest.loss]
    # a rate that one seed did not survive is too high, whatever the others show
    diverged = {point.lr for point in points if not math.isfinite(point.loss)}
    diverged |= {point.lr for point in far if point.lr > lowest.lr}
    too_low = {point.lr for point in far if point.lr < lowest.lr} - diverged
    kept = [point for point in points if point.lr not in diverged | too_low]
    means = _means(kept, rates)
    shown = means | _means([point for point in points if point.lr in too_low], rates)
    common = {
        **{name: getattr(first, name) for name in ("arch", "size", "n_params", "n_tokens", "batch_tokens")},
        "rates": tuple(rates),
        "losses": tuple(math.exp(shown[rate]) if rate in shown else math.nan for rate in rates),
        "n_runs": len(points),
        "n_seeds": len({point.seed for point in points}),
        "n_diverged": len(points) - len(ended) + sum(point.lr in diverged for point in far),
        "n_too_low": sum(point.lr in too_low for point in far),
        "points": tuple(points),
    }
    nothing = tuple(False for _ in rates)
    if not means:
        return Cell(**common, used=nothing, fitted=None, reason="every run diverged: lower the rates", extend="lower")
    best = min(means, key=lambda rate: means[rate])
    if best in (rates[0], rates[-1]):
        side, word = ("lower", "below") if best == rates[0] else ("higher", "above")
        reason = f"its optimum lies {word} {best:g}, the {side.replace('er', 'est')} rate tried: add rates"
        return Cell(**common, used=nothing, fitted=None, reason=reason, extend=side)
    near = _near(sorted(means), best)
    used = tuple(rate in near for rate in rates)
    runs = [point for point in kept if point.lr in near]
    gap = _gap(rates, best, diverged, too_low)
    if len(near) < 3 and gap:
        reason = f"only {len(near)} of its rates can be fitted: add one between {gap[0]:g} and {gap[1]:g}"
        return Cell(**common, used=used, fitted=None, reason=reason, extend="between", gap=gap)
    fitted = _parabola(runs, cubic)
    pure = _pure(runs)
    if fitted is None or not math.log(min(near)) <= fitted.log_rate <= math.log(max(near)):
        if gap and best in (min(near), max(near)):
            other = gap[1] if gap[0] == best else gap[0]
            why = "which is too low to learn" if other in too_low else "where a run diverged"
            reason = f"its optimum lies between {best:g}, its best rate, and {other:g}, {why}: add a rate between"
            return Cell(**common, used=used, fitted=None, reason=reason, extend="between", gap=gap)
        shape = "its parabola has no lowest point" if fitted is None else "its parabola is lowest outside of its rates"
        reason = f"{shape}: noise is as large as what the rates differ by: add seeds, or rates further apart"
        return Cell(**common, used=used, fitted=None, reason=reason)
    return Cell(**common, used=used, fitted=fitted, pure_rss=pure[0], pure_dof=pure[1])


def _gap(rates: list[float], best: float, diverged: set[float], too_low: set[float]) -> tuple[float, float] | None:
    """The best rate and a neighbour that diverged, or is too low to learn: the optimum may lie between them."""
    place = rates.index(best)
    if (above := rates[place + 1]) in diverged:
        return best, above
    below = rates[place - 1]
    return (below, best) if below in too_low | diverged else None


def _near(rates: list[float], best: float) -> set[float]:
    """The rates within REACH of the best, and its neighbours."""
    place = rates.index(best)
    close = {rate for rate in rates if max(rate / best, best / rate) <= REACH * (1 + 1e-9)}
    return close | set(rates[max(place - 1, 0) : place + 2])


def _design(points: Sequence[RatePoint]) -> tuple[np.ndarray, np.ndarray, float]:
    """(columns, ln loss, centre): x and x^2 of ln rate - centre, then a column for each seed."""
    x = np.log([point.lr for point in points])
    centre = float(x.mean())
    seeds = sorted({point.seed for point in points})
    levels = [[float(point.seed == seed) for seed in seeds] for point in points]
    off = x - centre
    return np.column_stack([off, off**2, np.array(levels)]), np.log([point.loss for point in points]), centre


def _parabola(points: Sequence[RatePoint], cubic: float) -> Fitted | None:
    """The fitted curve, None where it has no lowest point."""
    design, y, centre = _design(points)
    third = design[:, 0] ** 3
    y = y - cubic * third
    coefficients, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    if rank < design.shape[1]:
        return None
    residual = y - design @ coefficients
    slope, bend = float(coefficients[0]), float(coefficients[1])
    root = bend**2 - 3 * cubic * slope
    if bend <= 0 or root <= 0:
        return None
    at = -slope / (bend + math.sqrt(root))
    second = bend + 3 * cubic * at  # half of the second derivative there
    covariance = np.linalg.inv(design.T @ design)[:2, :2]
    gradient = -np.array([1.0, 2 * at]) / (2 * second)
    of_third = np.linalg.lstsq(design, third, rcond=None)[0][:2]  # slope and bend fall by so much as the cubic rises
    of_bend = np.array([0.0, 1.0]) + 3 * cubic * gradient
    per_cubic = float(-3 * at**2 / (2 * second) - gradient @ of_third)
    return Fitted(
        log_rate=centre + at,
        curvature=second,
        cubic=cubic,
        unit_se=math.sqrt(float(gradient @ covariance @ gradient)),
        per_cubic=per_cubic,
        curvature_unit_se=math.sqrt(float(of_bend @ covariance @ of_bend)),
        curvature_per_cubic=float(3 * at + 3 * cubic * per_cubic - of_third[1]),
        rss=float(residual @ residual),
        dof=len(y) - design.shape[1],
    )


def cubic_of(cells: Sequence[Cell]) -> Cubic:
    """The cubic term that the cells of an architecture share, by least squares on all their fitted runs: each cell
    keeps levels, slope and bend of its own."""
    top = bottom = 0.0
    for cell in cells:
        runs = cell.fitted_points
        if len({run.lr for run in runs}) < 4:
            continue
        design, y, _ = _design(runs)
        third = design[:, 0] ** 3
        rest = third - design @ np.linalg.lstsq(design, third, rcond=None)[0]
        top += float(rest @ y)
        bottom += float(rest @ rest)
    return Cubic(top / bottom, 1 / math.sqrt(bottom)) if bottom > 0 else NO_CUBIC


def _means(points: Sequence[RatePoint], rates: Sequence[float]) -> dict[float, float]:
    """The mean ln loss of each rate, as if every seed had run at it: rates and seeds are additive."""
    if not points:
        return {}
    tried = [rate for rate in rates if any(point.lr == rate for point in points)]
    seeds = sorted({point.seed for point in points})
    columns = [
        [float(point.lr == rate) for rate in tried] + [float(point.seed == seed) - 1 / len(seeds) for seed in seeds]
        for point in points
    ]
    coefficients = np.linalg.lstsq(np.array(columns), np.log([point.loss for point in points]), rcond=None)[0]
    return {rate: float(value) for rate, value in zip(tried, coefficients, strict=False)}


def _pure(points: Sequence[RatePoint]) -> tuple[float, int]:
    """(sum of squares, degrees of freedom) of ln loss less rate and seed: noise, whatever the shape of the curve."""
    rates, seeds = sorted({point.lr for point in points}), sorted({point.seed for point in points})
    columns = np.array(
        [
            [*(float(point.lr == rate) for rate in rates), *(float(point.seed == seed) for seed in seeds)]
            for point in points
        ]
    )
    y = np.log([point.loss for point in points])
    coefficients, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
    residual = y - columns @ coefficients
    return float(residual @ residual), len(y) - int(rank)


MOST = 700.0  # of log loss: no number is larger


class Excess(NamedTuple):
    """A share of the loss, and the interval that the error of the cell's best rate gives it."""

    share: float
    low: float
    high: float


def excess_of(fitted: Fitted, lr: float, level: float, sd: float | None = None, dof: int | None = None) -> Excess:
    """What the rate `lr` costs. sd, dof: the noise of a run in ln loss, where it is known better than from the cell
    itself (None). With d the distance of ln lr from the best rate's and h half of the latter's interval, the ends are
    those of the curve at |d| - h, not below 0, and |d| + h. The curve's own error is left out, so the interval is too
    narrow far from the best rate: at the level 0.95 it held the truth in 0.95 of 400 simulated cells at the best rate,
    in 0.93 at 1.2 times that rate and in 0.85 at twice that rate (tests/analysis/rates). Raises ValueError for a cell
    without residuals and no `sd`."""
    if sd is None or dof is None:
        if fitted.dof < 1:
            raise ValueError("a cell with as many runs as terms has no residuals, so its noise is unknown")
        sd, dof = math.sqrt(fitted.rss / fitted.dof), fitted.dof
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * sd * fitted.unit_se
    off = math.log(lr) - fitted.log_rate
    side = math.copysign(1.0, off)
    ends = (abs(off), max(abs(off) - half, 0.0), abs(off) + half)
    log_excess = [fitted.curvature * d**2 + fitted.cubic * (side * d) ** 3 for d in ends]
    share, low, high = (math.expm1(min(max(value, 0.0), MOST)) for value in log_excess)
    return Excess(share, low, high)
