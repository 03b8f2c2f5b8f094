"""Which proposal to take for a question: judged on worlds of many forms, first linearised, then simulated: studies are
drawn from worlds and fitted as the project fits a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from analysis.design.cores import Each
from analysis.design.expected import lost, missed
from analysis.design.layout import Layout, drawn
from analysis.design.precision import MEMORY, along_sizes, precision
from analysis.design.proposal import Price, Proposal, candidates, naive, scaled
from analysis.design.worlds import Noise, Scenario, World, paths
from analysis.fits.cost import Cost
from analysis.fits.fit import Estimate
from analysis.fits.parametric import fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES
from analysis.fits.stopped import without_stopped
from arch.errors import InputError

ASKS = ("exponent", "loss", "compare")
WITHIN_A, WITHIN_N, WITHIN_L = 0.05, math.log(1.3), 0.005  # of a, log N_opt, log L_opt: what counts as right
SCREENED, SETTLED = 24, 144  # worlds on which proposals are judged linearised: all of them, and the best
A_BIN = 8  # proposals of one smallest size that the cheap half of the screen leaves
BEST = 24  # proposals that the SETTLED worlds decide between
AS_GOOD = 0.01  # of the share: of proposals this close to the best, that of the fewest runs is taken
MOST_FOUND = 12  # of which some may have sizes that no shape comes close to
REPLICATES, LEVEL = 99, 0.95  # of the fits of simulated studies


@dataclass(frozen=True)
class Judged:
    """A proposal, the share of worlds in which its linearised fit answers the question, and a summary of its simulated
    studies."""

    proposal: Proposal
    score: float
    summary: dict[str, Any] = field(default_factory=dict)


def answers(proposal: Proposal, scenario: Scenario, ask: str) -> float:
    """Mean probability over worlds that the fit answers `ask` (ASKS) rightly, with noise and the error of the form."""
    worlds, noise, cost, target = scenario.worlds, scenario.noise, scenario.cost, scenario.target
    right_in = np.zeros(len(worlds))
    for off in missed(proposal.layout(), worlds, noise, cost, target, proposal.leaves_out):
        known = precision(off.layout, worlds, noise, cost, target)
        if ask == "exponent":
            # both errors come from the same noise: they are small together
            right = np.minimum(_within(off.a, known.a, WITHIN_A), _within(off.log_n, known.log_n, WITHIN_N))
        else:
            right = _within(off.log_l, known.log_l, WITHIN_L)
        right_in += off.share * np.nan_to_num(right)
    return float(right_in.mean())


def _within(off: np.ndarray, sd: np.ndarray, limit: float) -> np.ndarray:
    """[w]: the probability that off + noise lies within the limit."""
    return np.asarray(stats.norm.cdf((limit - off) / sd) - stats.norm.cdf((-limit - off) / sd))


def family_of(
    price: Price, budget: float, cap: float, least_size: float = 0.0, sweep: float = 0.0, curves: bool | None = None
) -> list[Proposal]:
    """The proposals that the budget buys. curves: whole curves alone, or none of them; None: both."""
    return [
        proposal
        for proposal in candidates(price, budget, cap, sweep)
        if proposal.sizes[0] >= least_size and curves in (None, proposal.curves)
    ]


def screen(
    family: Sequence[Proposal],
    scenario: Scenario,
    ask: str,
    report: Callable[[float], None] = lambda share: None,
    each: Each = map,
) -> list[Judged]:
    """The best proposals of the family, best first, no two with the same sizes. Of those within AS_GOOD of the best,
    the ones with fewer runs come first. Empty where the family is. report: gets the share that is done."""
    rough = zip(each(partial(_expected, scenario=scenario.first(SCREENED // 3), ask=ask), family), family, strict=True)
    # by their smallest size too: small sizes are cheap and precise, but may not follow the law of the others
    bins: dict[tuple[int, bool], int] = {}
    kept = []
    for _, proposal in sorted(rough, key=lambda pair: pair[0]):
        place = int(2 * math.log2(proposal.sizes[0])), proposal.curves
        bins[place] = bins.get(place, 0) + 1
        if bins[place] <= A_BIN:
            kept.append(proposal)
    judged = []
    scores = each(partial(answers, scenario=scenario.first(SCREENED), ask=ask), kept)
    for i, (proposal, score) in enumerate(zip(kept, scores, strict=True)):
        judged.append(Judged(proposal, score))
        report((i + 1) / (len(kept) + SETTLED / SCREENED * BEST))
    best = [candidate.proposal for candidate in sorted(judged, key=lambda candidate: -candidate.score)[:BEST]]
    scores = each(partial(answers, scenario=scenario, ask=ask), best)
    judged = [Judged(proposal, score) for proposal, score in zip(best, scores, strict=True)]
    report(1.0)
    least = max((candidate.score for candidate in judged), default=0.0) - AS_GOOD

    def order(candidate: Judged) -> tuple[bool, int, float]:
        return candidate.score < least, 0 if candidate.score < least else candidate.proposal.n_runs, -candidate.score

    chosen: dict[tuple[float, ...], Judged] = {}
    for candidate in sorted(judged, key=order):
        chosen.setdefault(candidate.proposal.sizes, candidate)
    return list(chosen.values())[:MOST_FOUND]


def _expected(proposal: Proposal, scenario: Scenario, ask: str) -> float:
    """The median standard deviation of the quantity asked for, without the error of the form."""
    sd = precision(proposal.layout(), scenario.worlds, scenario.noise, scenario.cost, scenario.target)
    return float(np.median(sd.a if ask == "exponent" else sd.log_l))


def naive_of(price: Price, budget: float, cap: float, least_size: float = 0.0) -> Proposal | None:
    """The naive ladder of the same cost, with its tokens within the corpus, and of a shorter range where its smallest
    size would be below `least_size`. None where there is no such ladder."""
    ladder = scaled(lambda n: naive(n, smallest=least_size), price, budget)
    if ladder is not None and ladder.tokens[0][0] > cap:
        ladder = scaled(lambda n: naive(n, cap, least_size), price, budget)
    return None if ladder is None or ladder.sizes[-1] < 2 * ladder.sizes[0] else ladder


@dataclass(frozen=True)
class Outcome:
    """One simulated study: half of the interval of a; the errors of a, log N_opt and log L_opt at the target; half of
    the latter's intervals. All inf where the study has no fit with an interval."""

    half_a: float = math.inf
    off_a: float = math.inf
    half_n: float = math.inf
    off_n: float = math.inf
    half_l: float = math.inf
    off_l: float = math.inf


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
    points: Points, world: World, cost: Cost, target: float, seed: int = 0, leave_out_stopped: bool = False
) -> Outcome:
    """The fit of a study compared with its world, at C = `target` FLOP."""
    if leave_out_stopped:
        points, _ = without_stopped(points)
    at = np.array([points.flops.min(), points.flops.max(), target])
    true_n = world.log_n_opt(np.log(at), cost)
    true_l = world.log_l_at(true_n[2], math.log(target), cost)
    try:
        fit = fit_parametric(points, objective=LEAST_SQUARES, cost=cost, n_replicates=REPLICATES, seed=seed)
    except InputError:
        return Outcome()
    a = parametric_result(fit, level=LEVEL).a
    if a.value is None or a.interval is None or fit.draws is None:
        return Outcome()
    best = fit.optimum(target, LEVEL)
    log_n, log_l = (math.log(estimate.value or math.nan) for estimate in (best.n_params, best.loss))
    half_n, half_l = map(_half, (best.n_params, best.loss))
    true_a = float((true_n[1] - true_n[0]) / math.log(at[1] / at[0]))
    half_a = (a.interval[1] - a.interval[0]) / 2
    return Outcome(half_a, a.value - true_a, half_n, log_n - float(true_n[2]), half_l, log_l - float(true_l))


def _half(estimate: Estimate) -> float:
    """Half the width of its interval in logarithms."""
    if estimate.interval is None:
        return math.nan
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


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares and quantiles over simulated studies. Shares: held (the interval of a holds its truth), right (a within
    WITHIN_A and N_opt within 30% of the truth), right_a, right_n, right_l (L_opt within WITHIN_L). Quantiles [10%,
    median, 90%]: half_a (half of the interval of a), factor_n (from N_opt to an end of its interval), half_l (half of
    the interval of log L_opt). tells_apart: the difference of log L_opt from which on two studies differ in the right
    direction in nine of ten pairs."""
    half_a, off_a, half_n, off_n, half_l, off_l = np.array([astuple(outcome) for outcome in outcomes]).T

    def quantiles(values: np.ndarray, q: Sequence[float] = (0.1, 0.5, 0.9)) -> list[float]:
        known = np.where(np.isnan(values), np.inf, values)
        return [float(value) for value in np.quantile(known, q, method="nearest")]

    with np.errstate(over="ignore", invalid="ignore"):
        pairs = np.abs(off_l[:, None] - off_l[None])[np.triu_indices(len(off_l), 1)]
    right_a, right_n = np.abs(off_a) < WITHIN_A, np.abs(off_n) < WITHIN_N
    return {
        "studies": len(outcomes),
        "half_a": quantiles(half_a),
        "factor_n": quantiles(np.exp(np.minimum(half_n, 700))),
        "half_l": quantiles(half_l),
        "right": float((right_a & right_n).mean()),
        "right_a": float(right_a.mean()),
        "right_n": float(right_n.mean()),
        "right_l": float((np.abs(off_l) < WITHIN_L).mean()),
        "tells_apart": quantiles(pairs, [0.9])[0],
        "held": float((np.abs(off_a) <= half_a).mean()),
    }


def simulated(judged: Judged, scenario: Scenario, seed: int, report: Callable[[], None], each: Each = map) -> Judged:
    """The same with a summary of its simulated studies."""
    return replace(judged, summary=summary(simulate(judged.proposal, scenario, seed, report, each)))


def saving(best: dict[str, Any], other: dict[str, Any], of: str) -> float:
    """How many times its budget `other` would need, spent on more seeds, for the interval of `best`: widths fall as
    budget^(-1/2). inf where it has no interval."""
    width = "half_a" if of == "exponent" else "half_l"
    narrow, wide = best[width][1], other[width][1]
    return float((wide / narrow) ** 2) if narrow > 0 and math.isfinite(narrow) else math.nan
