"""Which proposal to take for a question: judged on worlds of many forms, first linearised, then simulated: studies are
drawn from worlds and fitted as the project fits a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.design.precision import MEMORY, Layout, lost, missed, of_text, precision
from analysis.design.proposal import Proposal
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
MOST_CHOSEN = 12  # of which some may have sizes that no shape comes close to
REPLICATES, LEVEL = 99, 0.95  # of the fits of simulated studies


@dataclass(frozen=True)
class Judged:
    """A proposal, and the share of worlds in which its linearised fit answers the question."""

    proposal: Proposal
    score: float


def answers(proposal: Proposal, scenario: Scenario, ask: str) -> float:
    """Mean probability over worlds that the fit answers `ask` (ASKS) rightly, with noise and the error of the form."""
    layout, known = proposal.layout(), (scenario.worlds, scenario.noise, scenario.cost, scenario.target)
    off, sd = missed(layout, *known), precision(layout, *known)
    if ask == "exponent":
        # both errors come from the same noise: they are small together
        right = np.minimum(_within(off.a, sd.a, WITHIN_A), _within(off.log_n, sd.log_n, WITHIN_N))
    else:
        right = _within(off.log_l, sd.log_l, WITHIN_L)
    return float(np.nan_to_num(right).mean())


def _within(off: np.ndarray, sd: np.ndarray, limit: float) -> np.ndarray:
    """[w]: the probability that off + noise lies within the limit."""
    return np.asarray(stats.norm.cdf((limit - off) / sd) - stats.norm.cdf((-limit - off) / sd))


def screen(
    family: Sequence[Proposal],
    scenario: Scenario,
    ask: str,
    report: Callable[[float], None] = lambda share: None,
) -> list[Judged]:
    """The best proposals of the family, best first, no two with the same sizes. Of those within AS_GOOD of the best,
    the ones with fewer runs come first. Empty where the family is. report: gets the share that is done."""
    rough = [(_expected(proposal, scenario.first(SCREENED // 3), ask), proposal) for proposal in family]
    # by their smallest size too: small sizes are cheap and precise, but may not follow the law of the others
    bins: dict[int, int] = {}
    kept = []
    for _, proposal in sorted(rough, key=lambda pair: pair[0]):
        place = int(2 * math.log2(proposal.sizes[0]))
        bins[place] = bins.get(place, 0) + 1
        if bins[place] <= A_BIN:
            kept.append(proposal)
    judged = []
    for i, proposal in enumerate(kept):
        judged.append(Judged(proposal, answers(proposal, scenario.first(SCREENED), ask)))
        report((i + 1) / (len(kept) + SETTLED / SCREENED * BEST))
    best = sorted(judged, key=lambda candidate: -candidate.score)[:BEST]
    judged = [Judged(candidate.proposal, answers(candidate.proposal, scenario, ask)) for candidate in best]
    report(1.0)
    least = max((candidate.score for candidate in judged), default=0.0) - AS_GOOD

    def order(candidate: Judged) -> tuple[bool, int, float]:
        return candidate.score < least, 0 if candidate.score < least else candidate.proposal.n_runs, -candidate.score

    chosen: dict[tuple[float, ...], Judged] = {}
    for candidate in sorted(judged, key=order):
        chosen.setdefault(candidate.proposal.sizes, candidate)
    return list(chosen.values())[:MOST_CHOSEN]


def _expected(proposal: Proposal, scenario: Scenario, ask: str) -> float:
    """The median standard deviation of the quantity asked for, without the error of the form."""
    sd = precision(proposal.layout(), scenario.worlds, scenario.noise, scenario.cost, scenario.target)
    return float(np.median(sd.a if ask == "exponent" else sd.log_l))


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
    moved = np.empty(len(n))
    for run in np.unique(layout.run):
        rows = np.flatnonzero(layout.run == run)
        moved[rows] = noise.seed * paths(rng, np.log(d[rows]), MEMORY)
    moved = moved + lost(layout, world, noise, rng)[layout.size]
    if noise.bend:
        moved = moved + noise.bend * layout.along_sizes() @ rng.standard_normal(int(layout.size.max()) + 1)
    if noise.text:
        moved = moved + of_text(layout, noise, world.loss(n, d)) * rng.standard_normal(len(n))
    size, run_id = (labels.astype(str).astype(object) for labels in (layout.size, layout.run))
    loss = world.loss(n, d) * np.exp(moved)
    return Points(n, d, cost.per_token(n) * d, loss, run=run_id, size=size, convention=cost.convention)


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
    proposal: Proposal, scenario: Scenario, seed: int, report: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """A study of the proposal in each world, without the sizes that have stopped learning where the study file leaves
    them out; seed: of the noise."""
    layout, cost, outcomes = proposal.layout(), scenario.cost, []
    for i, world in enumerate(scenario.worlds):
        points = draw(layout, world, scenario.noise, cost, np.random.default_rng([seed, i]))
        outcomes.append(outcome(points, world, cost, scenario.target, i, not proposal.same_text))
        report()
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares and quantiles over simulated studies. Shares: held (the interval of a holds its truth), right (a within
    WITHIN_A and N_opt within 30% of the truth), right_l (L_opt within WITHIN_L). Quantiles [10%, median, 90%]: half_a
    (half of the interval of a), factor_n (from N_opt to an end of its interval), half_l (half of the interval of log
    L_opt). tells_apart: the difference of log L_opt from which on two studies differ in the right direction in nine of
    ten pairs."""
    half_a, off_a, half_n, off_n, half_l, off_l = np.array([astuple(outcome) for outcome in outcomes]).T

    def quantiles(values: np.ndarray, q: Sequence[float] = (0.1, 0.5, 0.9)) -> list[float]:
        known = np.where(np.isnan(values), np.inf, values)
        return [float(value) for value in np.quantile(known, q, method="nearest")]

    with np.errstate(over="ignore", invalid="ignore"):
        pairs = np.abs(off_l[:, None] - off_l[None])[np.triu_indices(len(off_l), 1)]
    return {
        "studies": len(outcomes),
        "half_a": quantiles(half_a),
        "factor_n": quantiles(np.exp(np.minimum(half_n, 700))),
        "half_l": quantiles(half_l),
        "right": float(((np.abs(off_a) < WITHIN_A) & (np.abs(off_n) < WITHIN_N)).mean()),
        "right_l": float((np.abs(off_l) < WITHIN_L).mean()),
        "tells_apart": quantiles(pairs, [0.9])[0],
        "held": float((np.abs(off_a) <= half_a).mean()),
    }
