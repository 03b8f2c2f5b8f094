"""Which losses share a budget of compute: end points whose C lie together, or whole curves read off at chosen C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.points import Points
from arch.amounts import counted, flop
from arch.errors import InputError

TOLERANCE = 0.1  # of log C: runs of one budget lie no further apart than this, a neighbour to the next
CHAIN = 3.0  # times the tolerance: a group that is wider than this is no budget but runs at all kinds of compute
CURVE_ROWS = 4.0  # rows a run, on average, from which on a table is read as curves
N_READ = 8  # budgets at which curves are read where the caller names none
LEAST_SIZES = 3  # that a parabola needs


@dataclass(frozen=True)
class Readings:
    """p losses in k budgets. log_c [k]: of each budget; budget [p]: which; unit [p]: the trunk whose noise a loss
    shares; units: their names; spread [k]: how far its runs' log C lie from the budget's; rows [p, 2] and share [p]:
    the two points between which a loss was read, and how much of it is the second's; from_curves: they differ;
    left_out: what belongs to no budget, in words."""

    log_c: np.ndarray
    budget: np.ndarray
    log_n: np.ndarray
    loss: np.ndarray
    unit: np.ndarray
    units: tuple[str, ...]
    spread: np.ndarray
    rows: np.ndarray
    share: np.ndarray
    from_curves: bool
    left_out: tuple[str, ...] = ()
    offset: np.ndarray | None = None  # [p]: of each run's log C from its budget's; None: all 0

    def counts(self) -> np.ndarray:
        """[k]: different sizes in each budget."""
        different = np.unique(np.column_stack([self.budget, self.log_n]), axis=0)
        return np.bincount(different[:, 0].astype(int), minlength=len(self.log_c))

    def read(self, values: np.ndarray) -> np.ndarray:
        """[r, p]: of log losses, or what moves them, at the points [r, n]."""
        return values[:, self.rows[:, 0]] * (1 - self.share) + values[:, self.rows[:, 1]] * self.share

    def at_budget(self, rise: float) -> Readings:
        """The losses as they would be at the budget's C, for a log loss that rises by `rise` for an e-fold of it."""
        if self.offset is None or not np.abs(self.offset).max() > 0:
            return self
        return replace(self, loss=self.loss * np.exp(-rise * self.offset), offset=None)


def read_budgets(
    points: Points, budgets: Sequence[float] | None = None, tolerance: float = TOLERANCE, curves: bool | None = None
) -> Readings:
    """The budgets of `points`; `budgets` [FLOP] where the caller knows them. `curves`: whether runs are read between
    their rows; by default where they have CURVE_ROWS rows or more. Raises InputError where nothing can be read."""
    if not len(points):
        raise InputError("isoFLOP: no points")
    if budgets is not None and not (len(budgets) and all(math.isfinite(c) and c > 0 for c in budgets)):
        raise InputError("isoFLOP: budgets are positive numbers of FLOP")
    if curves is None:
        curves = len(points) >= CURVE_ROWS * points.n_runs
    return _off_curves(points, budgets) if curves else _clusters(points, budgets, tolerance)


def has_budgets(points: Points, least: int = 3) -> bool:
    """Whether `least` groups of end points share a compute at three sizes or more."""
    try:
        return int((_clusters(points, None, TOLERANCE).counts() >= LEAST_SIZES).sum()) >= least
    except InputError:
        return False


def _clusters(points: Points, budgets: Sequence[float] | None, tolerance: float) -> Readings:
    log_c = np.log(points.flops)
    left: list[str] = []
    if budgets is not None:
        centres = np.log(np.sort(np.asarray(budgets, dtype=float)))
        nearest = np.abs(log_c[:, None] - centres).argmin(1)
        label = np.where(np.abs(log_c - centres[nearest]) <= tolerance, nearest, -1)
        if outside := int((label < 0).sum()):
            lie = counted(outside, "point lies", "points lie")
            left.append(f"{lie} more than {math.expm1(tolerance):.0%} from every budget")
    else:
        order = np.argsort(log_c, kind="stable")
        label = np.empty(len(log_c), dtype=int)
        label[order] = np.concatenate([[0], np.cumsum(np.diff(log_c[order]) > tolerance)])
        for one in np.unique(label):
            inside = log_c[label == one]
            if np.ptp(inside) > CHAIN * tolerance:
                low, high = np.exp([inside.min(), inside.max()])
                left.append(f"{len(inside)} points from {flop(low, 4)} to {flop(high, 4)} FLOP lie at no common budget")
                label[label == one] = -1
    kept = label >= 0
    if not kept.any():
        raise InputError(f"isoFLOP: no budgets: {'; '.join(left)}; name them, or widen the tolerance")
    names, budget = np.unique(label[kept], return_inverse=True)
    middle = np.bincount(budget, log_c[kept]) / np.bincount(budget)
    if budgets is not None:
        middle = centres[names]
    offset = log_c[kept] - middle[budget]
    offset[np.abs(offset) < 1e-12 * np.abs(middle[budget])] = 0.0
    spread = np.array([np.abs(offset[budget == j]).max() for j in range(len(middle))])
    units, unit = np.unique(points.trunk[kept].astype(str), return_inverse=True)
    return Readings(
        middle,
        budget,
        np.log(points.n_params[kept]),
        points.loss[kept],
        unit,
        tuple(units),
        spread,
        np.repeat(np.flatnonzero(kept)[:, None], 2, 1),
        np.zeros(int(kept.sum())),
        False,
        tuple(left),
        offset,
    )


def _off_curves(points: Points, budgets: Sequence[float] | None) -> Readings:
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
    if budgets is not None:
        at = np.log(np.sort(np.asarray(budgets, dtype=float)))
    else:
        at = _grid([(float(log_n[mine[0]]), log_c[mine[0]], log_c[mine[-1]]) for mine in curves])
    found = []
    for mine in curves:
        x = log_c[mine]
        slack = 1e-12 * abs(x[-1])
        for j in np.flatnonzero((at >= x[0] - slack) & (at <= x[-1] + slack)):
            place = float(np.interp(at[j], x, np.arange(len(x))))
            low = min(int(place), len(x) - 2)
            found.append((j, mine[low], mine[low + 1], place - low))
    if not found:
        raise InputError("isoFLOP: no run reaches any of the budgets")
    which, first, second, share = (np.array(one) for one in zip(*found, strict=True))
    names, budget = np.unique(which, return_inverse=True)
    units, unit = np.unique(points.trunk[first].astype(str), return_inverse=True)
    read = Readings(
        at[names],
        budget,
        log_n[first],
        np.zeros(len(first)),
        unit,
        tuple(units),
        np.zeros(len(names)),
        np.stack([first, second], 1),
        share,
        True,
        tuple(left),
    )
    return replace(read, loss=np.exp(read.read(log_loss[None])[0]))


def _grid(curves: Sequence[tuple[float, float, float]]) -> np.ndarray:
    """N_READ budgets, evenly in log C, over the stretch in which LEAST_SIZES different sizes have a loss. curves: log
    N and the first and the last log C of each."""
    sizes, first, last = np.array(curves).T
    fine = np.linspace(first.min(), last.max(), 400)
    covers = (fine >= first[:, None]) & (fine <= last[:, None])
    enough = np.array([len(np.unique(sizes[covers[:, i]])) >= LEAST_SIZES for i in range(len(fine))])
    if not enough.any():
        raise InputError(f"isoFLOP: at no compute do {LEAST_SIZES} sizes have a loss, {LEAST_SIZES} are needed")
    if not fine[enough][-1] > fine[enough][0]:
        raise InputError(f"isoFLOP: {LEAST_SIZES} sizes have a loss at hardly more than one compute")
    return np.linspace(fine[enough][0], fine[enough][-1], N_READ)
