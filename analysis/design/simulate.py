"""Studies drawn from worlds and fitted as the project fits a study: what a proposal's numbers are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis.design.cores import Each
from analysis.design.layout import Layout
from analysis.design.precision import MEMORY, along_sizes
from analysis.design.proposal import Proposal
from analysis.design.sweep import lost
from analysis.design.text_noise import drawn
from analysis.design.worlds import Noise, World, paths
from analysis.fits.cost import Cost
from analysis.fits.diagnose.against import reasons_against
from analysis.fits.diagnose.evidence import Evidence
from analysis.fits.diagnose.influence import leave_out
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import parametric_result
from analysis.fits.parametric.stopped import without_stopped
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from arch.errors import InputError

REPLICATES = 99


@dataclass(frozen=True)
class Outcome:
    """Of one simulated study: whether N_opt and D_opt are identified (finite intervals, and no reason not to believe);
    half of the interval of a; what a, log N_opt and log L_opt at the target are off by, with half of their intervals in
    logarithms; the first reason against, "" for none."""

    identified: bool
    half_a: float
    off_a: float
    half_n: float
    off_n: float
    half_l: float
    off_l: float
    log_l: float
    reason: str = ""


def _failed(reason: str) -> Outcome:
    return Outcome(False, np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, np.nan, reason)


def draw(layout: Layout, world: World, noise: Noise, cost: Cost, rng: np.random.Generator) -> Points:
    """A study of the layout in this world."""
    n, d = layout.n_params, layout.n_tokens
    trunks, which = np.unique(layout.trunk.astype(str), return_inverse=True)
    if layout.curves:
        moved = np.empty(len(n))
        for one in range(len(trunks)):
            rows = np.flatnonzero(which == one)
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
    level: float = 0.95,
    seed: int = 0,
    leave_out_stopped: bool = False,
) -> Outcome:
    """The fit of one study beside its world, with optima at C = `target` FLOP."""
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
    result = parametric_result(fit, level=level)
    assert result.middle is not None  # a surface has one
    alone = leave_out(points, "parametric", result.middle.flops, cost, "size", LEAST_SQUARES)
    against = reasons_against(result, Evidence(by_size=alone))
    between = result.a.interval
    if between is None or fit.draws is None:
        return _failed(against[0] if against else "no interval")
    best = fit.optimum(target, level)
    logs = {name: np.log(best[name][0]) for name in ("n_opt", "l_opt")}
    with np.errstate(divide="ignore", invalid="ignore"):
        half = {name: float(np.diff(np.log(best[f"{name}_interval"][:, 0]))[0]) / 2 for name in logs}
    return Outcome(
        not against and bool(np.isfinite(half["n_opt"])),
        float(between[1] - between[0]) / 2,
        float(result.a.value or np.nan) - true_a,
        half["n_opt"],
        float(logs["n_opt"] - true_n[2]),
        half["l_opt"],
        float(logs["l_opt"] - true_l),
        float(logs["l_opt"]),
        against[0] if against else "",
    )


def simulate(
    proposal: Proposal,
    worlds: Sequence[World],
    noise: Noise,
    cost: Cost,
    target: float,
    seed: int,
    told: Callable[[], None] = lambda: None,
    each: Each = map,
) -> list[Outcome]:
    """One study of the proposal in each world; seed: of the noise."""
    one = partial(_in_a_world, proposal.layout(), proposal.leaves_out, noise, cost, target, seed)
    found = []
    for it in each(one, list(enumerate(worlds))):
        found.append(it)
        told()
    return found


def _in_a_world(
    layout: Layout, leaves_out: bool, noise: Noise, cost: Cost, target: float, seed: int, numbered: tuple[int, World]
) -> Outcome:
    i, world = numbered
    points = draw(layout, world, noise, cost, np.random.default_rng([seed, i]))
    return outcome(points, world, cost, target, seed=i, leave_out_stopped=leaves_out)
