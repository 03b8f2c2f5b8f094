"""Whether a study's runs hold the optima that it is to find: N_opt of each of its compute budgets, in many worlds,
beside the sizes that are trained at that budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.check import Run
from analysis.design.worlds import World
from analysis.fits.cost import Cost

SAME = math.log(1.3)  # of log C: runs that differ by less have one budget
CURVE = 0.1  # of a run's compute, from which on its whole curve is fitted
LEAST_SIZES = 3  # of a budget: fewer have no minimum
INSIDE = 0.5  # of the worlds, in which a budget's optimum must lie among its sizes


@dataclass(frozen=True)
class Budget:
    """flops: C; n_sizes, smallest, largest: the sizes that were trained at it; n_opt: 10%, 50% and 90% of the worlds;
    inside: the share of the worlds in which N_opt lies between the smallest and the largest of them."""

    flops: float
    n_sizes: int
    smallest: float
    largest: float
    n_opt: tuple[float, float, float]
    inside: float


def budgets_of(runs: Sequence[Run], worlds: Sequence[World]) -> list[Budget]:
    """The budgets of an architecture's runs, ascending: computes at which LEAST_SIZES sizes or more were trained. A
    size has those of its decayed points, or of a whole curve from a share CURVE on."""
    spans: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        log_c = math.log(run.per_token * run.n_tokens)
        spans.setdefault(run.n_params, []).append((log_c + (0 if run.branch else math.log(CURVE)), log_c))
    costs = {run.n_params: run.per_token for run in runs}
    budgets = []
    for log_c in _clusters(sorted({math.log(run.per_token * run.n_tokens) for run in runs})):
        at = [n for n in sorted(costs) if any(low - SAME <= log_c <= high + SAME for low, high in spans[n])]
        if len(at) < LEAST_SIZES:
            continue
        cost = Cost(np.log(at), np.log([costs[n] for n in at]), "exact")
        log_n = np.array([float(world.log_n_opt(log_c, cost)) for world in worlds])
        inside = float(np.mean((math.log(at[0]) < log_n) & (log_n < math.log(at[-1]))))
        low, middle, high = np.exp(np.quantile(log_n, (0.1, 0.5, 0.9))).tolist()
        budgets.append(Budget(math.exp(log_c), len(at), at[0], at[-1], (low, middle, high), inside))
    return budgets


def outside(budgets: Sequence[Budget]) -> list[Budget]:
    """Those, but for the outermost two, whose optimum lies outside of their sizes in most worlds."""
    return [budget for budget in budgets[1:-1] if budget.inside < INSIDE]


def _clusters(logs: Sequence[float]) -> list[float]:
    """The means of groups of ascending numbers, whose neighbours differ by SAME at most."""
    groups: list[list[float]] = []
    for value in logs:
        if groups and value - groups[-1][0] <= SAME:
            groups[-1].append(value)
        else:
            groups.append([value])
    return [math.fsum(group) / len(group) for group in groups]
