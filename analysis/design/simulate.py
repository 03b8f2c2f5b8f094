"""Studies drawn from worlds and fitted as the project fits a study: a proposal's numbers come from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis.design.cores import Each
from analysis.design.known import reasons_unknown
from analysis.design.layout import Layout, drawn
from analysis.design.precision import MEMORY, along_sizes
from analysis.design.proposal import Proposal
from analysis.design.sweep import lost
from analysis.design.worlds import Noise, Scenario, World, paths
from analysis.fits.cost import Cost
from analysis.fits.fit import Estimate
from analysis.fits.parametric import fit_parametric, parametric_result, without_stopped
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from arch.errors import InputError

REPLICATES, LEVEL = 99, 0.95


@dataclass(frozen=True)
class Outcome:
    """One simulated study. identified: N_opt and D_opt have finite intervals, and nothing speaks against them; half_a:
    half of the interval of a; off_a, off_n, off_l: the errors of a, log N_opt and log L_opt at the target; half_n,
    half_l: half of the latter's intervals; reason: the first reason against, "" for none."""

    identified: bool
    half_a: float
    off_a: float
    half_n: float
    off_n: float
    half_l: float
    off_l: float
    reason: str = ""


def _failed(reason: str) -> Outcome:
    return Outcome(False, np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, reason)


def draw(layout: Layout, world: World, noise: Noise, cost: Cost, rng: np.random.Generator) -> Points:
    """The points of a study of this layout in this world."""
    n, d = layout.n_params, layout.n_tokens
    trunks, which = np.unique(layout.trunk.astype(str), return_inverse=True)
    if layout.curves:
        moved = np.empty(len(n))
        for i in range(len(trunks)):
            rows = np.flatnonzero(which == i)
            moved[rows] = noise.seed * paths(rng, np.log(d[rows]), MEMORY)
    else:
        moved = noise.seed * (rng.standard_normal(len(trunks))[which] + noise.own * rng.standard_normal(len(n)))
    moved = moved + lost(layout, world, noise, rng)[layout.size]
    if noise.bend:
        moved = moved + noise.bend * along_sizes(layout) @ rng.standard_normal(int(layout.size.max()) + 1)
    loss = world.loss(n, d) * np.exp(moved)
    if noise.text:
        loss = loss * np.exp(noise.text * drawn(layout, rng) / loss)  # positive
    named = layout.size.astype(str).astype(object)
    flops = cost.per_token(n) * d
    return Points(n, d, flops, loss, run=layout.run, trunk=layout.trunk, size=named, convention=cost.convention)


def outcome(
    points: Points,
    world: World,
    cost: Cost,
    target: float,
    seed: int = 0,
    leave_out_stopped: bool = False,
) -> Outcome:
    """The fit of a study compared with its world, at C = `target` FLOP."""
    if leave_out_stopped:
        points, _ = without_stopped(points)
    ends = np.log([points.flops.min(), points.flops.max(), target])
    true_n = world.log_n_opt(ends, cost)
    true_l = world.log_l_at(true_n[2], ends[2], cost)
    true_a = float((true_n[1] - true_n[0]) / (ends[1] - ends[0]))
    try:
        fit = fit_parametric(points, objective=LEAST_SQUARES, cost=cost, n_replicates=REPLICATES, seed=seed)
    except InputError as error:
        return _failed(str(error))
    result = parametric_result(fit, level=LEVEL)
    against = reasons_unknown(fit, result, cost)
    between = result.a.interval
    if between is None or fit.draws is None:
        return _failed(against[0] if against else "no interval")
    best = fit.optimum(target, LEVEL)
    half_n, half_l = (_half(estimate) for estimate in (best.n_params, best.loss))
    off_n, off_l = (np.log(estimate.value or np.nan) for estimate in (best.n_params, best.loss))
    return Outcome(
        not against and bool(np.isfinite(half_n)),
        float(between[1] - between[0]) / 2,
        float(result.a.value or np.nan) - true_a,
        half_n,
        float(off_n - true_n[2]),
        half_l,
        float(off_l - true_l),
        against[0] if against else "",
    )


def _half(estimate: Estimate) -> float:
    """Half the width of its interval in logarithms."""
    if estimate.interval is None:
        return np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.diff(np.log(estimate.interval))[0]) / 2


def simulate(
    proposal: Proposal,
    scenario: Scenario,
    seed: int,
    report: Callable[[], None] = lambda: None,
    each: Each = map,
) -> list[Outcome]:
    """A study of the proposal in each world; seed: of the noise."""
    study_in = partial(_in_a_world, proposal.layout(), proposal.leaves_out, scenario, seed)
    outcomes = []
    for it in each(study_in, list(enumerate(scenario.worlds))):
        outcomes.append(it)
        report()
    return outcomes


def _in_a_world(
    layout: Layout, leaves_out: bool, scenario: Scenario, seed: int, numbered: tuple[int, World]
) -> Outcome:
    i, world = numbered
    points = draw(layout, world, scenario.noise, scenario.cost, np.random.default_rng([seed, i]))
    return outcome(points, world, scenario.cost, scenario.target, seed=i, leave_out_stopped=leaves_out)
