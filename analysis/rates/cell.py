"""The best rate of one cell of a sweep: a parabola of ln loss in ln rate, over the rates around the lowest loss; and
what another rate costs there: its loss above the lowest point of the cell's curve.

A cell's runs differ by rate and seed alone. Runs of one seed read the same text in the same order, so each seed has a
level of its own, and the parabola is fitted to the differences between rates. Above the best rate losses rise otherwise
than below it, which moves the lowest point of a parabola. The cubic term is too small to be measured in one cell, so
all cells of an architecture share it (cubic_of).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from analysis.fits.fit import Estimate
from scaling.study.rate_law import REACH

LOST = 1.25  # times the lowest loss of its cell: a run that ends higher diverged, or hardly learned
MOST = 700.0  # of log loss: no number is larger


@dataclass(frozen=True)
class RatePoint:
    """A run of a sweep. n_params: without embeddings; n_tokens: trained on; lr: the highest rate of its schedule; loss:
    nats a token at its end, nan where it diverged."""

    arch: str
    size: str
    n_params: int
    n_tokens: int
    batch_tokens: int
    seed: int
    lr: float
    loss: float

    @property
    def cell(self) -> tuple[str, str, int, int]:
        """The run's cell: runs of a cell differ by rate and seed alone."""
        return self.arch, self.size, self.n_tokens, self.batch_tokens


@dataclass(frozen=True)
class Cubic:
    """ln loss gains value (ln rate)^3; unit_se: its standard error for noise of standard deviation 1; both are 0 where
    no cell determines it."""

    value: float = 0.0
    unit_se: float = 0.0


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

    def above(self, off: np.ndarray | float) -> np.ndarray:
        """ln loss above the lowest point, where ln rate is off by so much."""
        return np.asarray(self.curvature * np.square(off) + self.cubic * np.power(off, 3))


@dataclass(frozen=True)
class Cell:
    """A cell of a sweep. rates, losses: every rate tried, ascending, and its mean loss over the seeds, nan where a run
    of it diverged or hardly learned (n_lost: how many did); used: whether the parabola is fitted to it. fitted: None
    where the cell has no optimum, and `reason` says why in one line; extend: where a rate is missing: "lower",
    "higher", or "between" the two rates of `gap`."""

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
    n_lost: int
    fitted: Fitted | None = None
    reason: str = ""
    extend: str = ""
    gap: tuple[float, float] | None = None
    points: tuple[RatePoint, ...] = field(repr=False, default=())

    @property
    def fitted_points(self) -> list[RatePoint]:
        """The runs that the parabola is fitted to."""
        used = {rate for rate, is_used in zip(self.rates, self.used, strict=True) if is_used}
        return [point for point in self.points if point.lr in used]


def fit_cell(points: Sequence[RatePoint], cubic: float = 0.0) -> Cell:
    """The cell of runs that differ by rate and seed alone, with a given cubic term."""
    first, rates = points[0], sorted({point.lr for point in points})
    lowest = min((point.loss for point in points if math.isfinite(point.loss)), default=math.nan)
    lost = [point for point in points if not point.loss <= LOST * lowest]
    left_out = {point.lr for point in lost}  # a rate that one seed did not survive is none, whatever the others show
    means = _means([point for point in points if point.lr not in left_out])
    cell = Cell(
        *(first.arch, first.size, first.n_params, first.n_tokens, first.batch_tokens),
        rates=tuple(rates),
        losses=tuple(math.exp(means[rate]) if rate in means else math.nan for rate in rates),
        used=(False,) * len(rates),
        n_runs=len(points),
        n_seeds=len({point.seed for point in points}),
        n_lost=len(lost),
        points=tuple(points),
    )
    if not means:
        return replace(cell, reason="every run diverged: lower the rates", extend="lower")
    best = min(means, key=lambda rate: means[rate])
    if best == rates[0]:
        reason = f"its optimum lies below {best:g}, the lowest rate tried: add rates"
        return replace(cell, reason=reason, extend="lower")
    if best == rates[-1]:
        reason = f"its optimum lies above {best:g}, the highest rate tried: add rates"
        return replace(cell, reason=reason, extend="higher")
    near = _near(sorted(means), best)
    cell = replace(cell, used=tuple(rate in near for rate in rates))
    gap = _gap(rates, best, left_out)
    if len(near) < 3 and gap:
        reason = f"only {len(near)} of its rates can be fitted: add one between {gap[0]:g} and {gap[1]:g}"
        return replace(cell, reason=reason, extend="between", gap=gap)
    fitted = _parabola(cell.fitted_points, cubic)
    if fitted is not None and math.log(min(near)) <= fitted.log_rate <= math.log(max(near)):
        return replace(cell, fitted=fitted)
    if gap and best in (min(near), max(near)):
        other = gap[1] if gap[0] == best else gap[0]
        why = "where a run diverged or hardly learned"
        reason = f"its optimum lies between {best:g}, its best rate, and {other:g}, {why}: add a rate between"
        return replace(cell, reason=reason, extend="between", gap=gap)
    shape = "its parabola has no lowest point" if fitted is None else "its parabola is lowest outside of its rates"
    reason = f"{shape}: noise is as large as what the rates differ by: add seeds, or rates further apart"
    return replace(cell, reason=reason)


def _gap(rates: Sequence[float], best: float, left_out: Collection[float]) -> tuple[float, float] | None:
    """The best rate and a neighbour that is left out: the optimum may lie between them."""
    place = rates.index(best)
    if rates[place + 1] in left_out:
        return best, rates[place + 1]
    return (rates[place - 1], best) if rates[place - 1] in left_out else None


def _near(rates: list[float], best: float) -> set[float]:
    """The rates within REACH of the best, and its neighbours."""
    place = rates.index(best)
    close = {rate for rate in rates if max(rate / best, best / rate) <= REACH * (1 + 1e-9)}
    return close | set(rates[max(place - 1, 0) : place + 2])


def _means(points: Sequence[RatePoint]) -> dict[float, float]:
    """The mean ln loss of each rate, as if every seed had run at it: rates and seeds are additive."""
    if not points:
        return {}
    rates, of_rate = np.unique([point.lr for point in points], return_inverse=True)
    seeds, of_seed = np.unique([point.seed for point in points], return_inverse=True)
    design = np.concatenate([np.eye(len(rates))[of_rate], np.eye(len(seeds))[of_seed] - 1 / len(seeds)], 1)
    values = np.linalg.lstsq(design, np.log([point.loss for point in points]), rcond=None)[0]
    return dict(zip(rates.tolist(), values[: len(rates)].tolist(), strict=True))


def _design(points: Sequence[RatePoint]) -> tuple[np.ndarray, np.ndarray, float]:
    """(columns, ln loss, centre): x and x^2 of ln rate - centre, then a column for each seed."""
    x = np.log([point.lr for point in points])
    seeds, of_seed = np.unique([point.seed for point in points], return_inverse=True)
    centre = float(x.mean())
    off = x - centre
    columns = np.column_stack([off, off**2, np.eye(len(seeds))[of_seed]])
    return columns, np.log([point.loss for point in points]), centre


def _parabola(points: Sequence[RatePoint], cubic: float) -> Fitted | None:
    """The fitted curve, None where it has no lowest point."""
    design, y, centre = _design(points)
    third = design[:, 0] ** 3
    y = y - cubic * third
    coefficients, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    slope, bend = float(coefficients[0]), float(coefficients[1])
    root = bend**2 - 3 * cubic * slope
    if rank < design.shape[1] or bend <= 0 or root <= 0:
        return None
    residual = y - design @ coefficients
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
    return Cubic(top / bottom, 1 / math.sqrt(bottom)) if bottom > 0 else Cubic()


def excess_of(fitted: Fitted, lr: float, level: float, sd: float, dof: float) -> Estimate:
    """What the rate `lr` costs, as a share of the loss, with the interval that the error of the best rate gives it. sd,
    dof: the noise of a run in ln loss. With d the distance of ln lr from the best rate's and h half of the latter's
    interval, the ends are those of the curve at |d| - h, not below 0, and |d| + h. The curve's own error is left out,
    so the interval is too narrow far from the best rate: at the level 0.95 it held the truth in 0.95 of 400 simulated
    cells at the best rate, in 0.93 at 1.2 times that rate and in 0.85 at twice that rate (tests/analysis/rates)."""
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * sd * fitted.unit_se
    off = math.log(lr) - fitted.log_rate
    distances = np.array([abs(off), max(abs(off) - half, 0.0), abs(off) + half])
    side = math.copysign(1.0, off)
    if side * fitted.cubic < 0:  # the curve turns there, and what lies further costs no less
        distances = np.minimum(distances, -2 * fitted.curvature / (3 * side * fitted.cubic))
    above = np.clip(fitted.above(side * distances), 0.0, MOST)
    return Estimate(*np.expm1(above).tolist())
