"""Which losses share a budget of compute: end points of one nominal budget, or whose C lie together, or whole curves
read off at chosen C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.points import Points
from arch.amounts import flop
from arch.errors import InputError

TOLERANCE = 0.1  # of log C: runs of one budget lie no further apart than this, a neighbour to the next
CHAIN = 3.0  # times the tolerance: a group that is wider than this is no budget but runs at all kinds of compute
CURVE_ROWS = 4.0  # rows a run, on average, from which on a table is read as curves
N_READ = 8  # budgets at which curves are read
LEAST_SIZES = 3  # that a parabola needs


@dataclass(frozen=True)
class Readings:
    """p losses in k budgets. log_c [k]: of each budget; budget [p]: which; unit [p]: a number of the trunk whose noise
    a loss shares; rows [p, 2]: the two points between which a loss was read; from_curves: they differ; offset [p]: of
    each run's log C from its budget's; left_out: what belongs to no budget, in words."""

    log_c: np.ndarray
    budget: np.ndarray
    log_n: np.ndarray
    loss: np.ndarray
    unit: np.ndarray
    rows: np.ndarray
    from_curves: bool
    offset: np.ndarray
    left_out: tuple[str, ...] = ()

    def counts(self) -> np.ndarray:
        """[k]: different sizes in each budget."""
        different = np.unique(np.column_stack([self.budget, self.log_n]), axis=0)
        return np.bincount(different[:, 0].astype(int), minlength=len(self.log_c))

    def at_budget(self, rise: float) -> Readings:
        """The losses as they would be at the budget's C, for a log loss that rises by `rise` for an e-fold of it."""
        return replace(self, loss=self.loss * np.exp(-rise * self.offset), offset=np.zeros(len(self.loss)))


def read_budgets(points: Points) -> Readings:
    """The budgets of `points`: of runs that have CURVE_ROWS rows or more, between their rows. Raises InputError where
    nothing can be read."""
    if not len(points):
        raise InputError("isoFLOP: no points")
    return _off_curves(points) if len(points) >= CURVE_ROWS * points.n_runs else _clusters(points)


def has_budgets(points: Points) -> bool:
    """Whether three groups of end points share a compute at three sizes or more."""
    try:
        return int((_clusters(points).counts() >= LEAST_SIZES).sum()) >= 3
    except InputError:
        return False


def _units(points: Points, rows: np.ndarray) -> np.ndarray:
    return np.unique(points.trunk[rows].astype(str), return_inverse=True)[1]


def _clusters(points: Points) -> Readings:
    log_c = np.log(points.flops)
    left: list[str] = []
    order = np.argsort(log_c, kind="stable")
    label = np.empty(len(log_c), dtype=int)
    label[order] = np.concatenate([[0], np.cumsum(np.diff(log_c[order]) > TOLERANCE)])
    if is_nominal := bool(points.budget.any()):
        label = np.unique(points.budget, return_inverse=True)[1]
    for group in np.unique(label):
        inside = log_c[label == group]
        if np.ptp(inside) > CHAIN * TOLERANCE and not is_nominal:
            low, high = np.exp([inside.min(), inside.max()])
            left.append(f"{len(inside)} points from {flop(low, 4)} to {flop(high, 4)} FLOP lie at no common budget")
            label[label == group] = -1
    kept = np.flatnonzero(label >= 0)
    if not len(kept):
        raise InputError(f"isoFLOP: no budgets: {'; '.join(left)}; runs of one budget share their compute within 10%")
    budget = np.unique(label[kept], return_inverse=True)[1]
    middle = np.bincount(budget, log_c[kept]) / np.bincount(budget)
    offset = log_c[kept] - middle[budget]
    offset[np.abs(offset) < 1e-12 * np.abs(middle[budget])] = 0.0
    return Readings(
        log_c=middle,
        budget=budget,
        log_n=np.log(points.n_params[kept]),
        loss=points.loss[kept],
        unit=_units(points, kept),
        rows=np.repeat(kept[:, None], 2, 1),
        from_curves=False,
        offset=offset,
        left_out=tuple(left),
    )


def _off_curves(points: Points) -> Readings:
    """Log loss of every run, linear in log C between its rows, at each budget that its rows enclose."""
    curves = []
    left: list[str] = []
    for run, mine in points.rows_of_runs.items():
        mine = mine[np.argsort(points.flops[mine], kind="stable")]
        if len(mine) < 2:
            left.append(f"run {run} has one row")
            continue
        if np.ptp(np.log(points.n_params[mine])) > 0:
            raise InputError(f"isoFLOP: run {run} has several sizes")
        curves.append(mine)
    if not curves:
        raise InputError("isoFLOP: no run has two rows to read a loss between")
    log_c, log_n, log_loss = (np.log(values) for values in (points.flops, points.n_params, points.loss))
    at = _grid([(float(log_n[mine[0]]), log_c[mine[0]], log_c[mine[-1]]) for mine in curves])
    read = []
    for mine in curves:
        x = log_c[mine]
        slack = 1e-12 * abs(x[-1])
        for j in np.flatnonzero((at >= x[0] - slack) & (at <= x[-1] + slack)):
            place = float(np.interp(at[j], x, np.arange(len(x))))
            low = min(int(place), len(x) - 2)
            read.append((j, mine[low], mine[low + 1], place - low))
    if not read:
        raise InputError("isoFLOP: no run reaches any of the budgets")
    which, first, second, share = (np.array(column) for column in zip(*read, strict=True))
    known, budget = np.unique(which, return_inverse=True)
    return Readings(
        log_c=at[known],
        budget=budget,
        log_n=log_n[first],
        loss=np.exp(log_loss[first] * (1 - share) + log_loss[second] * share),
        unit=_units(points, first),
        rows=np.stack([first, second], 1),
        from_curves=True,
        offset=np.zeros(len(first)),
        left_out=tuple(left),
    )


def _grid(curves: Sequence[tuple[float, float, float]]) -> np.ndarray:
    """N_READ budgets, evenly in log C, over the stretch in which LEAST_SIZES different sizes have a loss. curves: log
    N and the first and the last log C of each."""
    sizes, first, last = np.array(curves).T
    fine = np.linspace(first.min(), last.max(), 400)
    covers = (fine >= first[:, None]) & (fine <= last[:, None])
    enough = fine[[len(np.unique(sizes[column])) >= LEAST_SIZES for column in covers.T]]
    if not len(enough):
        raise InputError(f"isoFLOP: at no compute do {LEAST_SIZES} sizes have a loss, {LEAST_SIZES} are needed")
    if not enough[-1] > enough[0]:
        raise InputError(f"isoFLOP: {LEAST_SIZES} sizes have a loss at hardly more than one compute")
    return np.linspace(enough[0], enough[-1], N_READ)
