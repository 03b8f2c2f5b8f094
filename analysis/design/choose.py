"""Which proposal to take for a question: judged on worlds of many forms, first linearised, then simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from analysis.design.cores import Each
from analysis.design.missed import likely, missed
from analysis.design.precision import precision
from analysis.design.proposal import Price, Proposal, candidates, naive, scaled
from analysis.design.simulate import Outcome, simulate
from analysis.design.worlds import Scenario

ASKS = ("exponent", "loss", "compare")
WITHIN_A, WITHIN_N, WITHIN_L = 0.05, math.log(1.3), 0.005  # of a, log N_opt, log L_opt: what counts as right
SCREENED, SETTLED = 24, 144  # worlds on which proposals are judged linearised: all of them, and the best
A_BIN = 8  # proposals of one smallest size that the cheap half of the screen leaves
BEST = 24  # proposals that the SETTLED worlds decide between
AS_GOOD = 0.01  # of the share: of proposals this close to the best, that of the fewest runs is taken
MOST_FOUND = 12  # of which some may have sizes that no shape comes close to


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
    for off in likely(missed(proposal.layout(), worlds, noise, cost, target, proposal.leaves_out)):
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
    expected = partial(_expected, scenario=scenario.first(SCREENED // 3), ask=ask)
    rough = list(zip(each(expected, family), family, strict=True))
    rough.sort(key=lambda pair: pair[0])
    # by their smallest size too: small sizes are cheap and precise, but may not follow the law of the others
    bins: dict[tuple[int, bool], int] = {}
    kept = []
    for _, proposal in rough:
        place = int(2 * math.log2(proposal.sizes[0])), proposal.curves
        bins[place] = bins.get(place, 0) + 1
        if bins[place] <= A_BIN:
            kept.append(proposal)
    judged = []
    scores = each(partial(answers, scenario=scenario.first(SCREENED), ask=ask), kept)
    for i, (proposal, score) in enumerate(zip(kept, scores, strict=True)):
        judged.append(Judged(proposal, score))
        report((i + 1) / (len(kept) + SETTLED / SCREENED * BEST))
    if not judged:
        return []
    judged.sort(key=lambda judgement: -judgement.score)
    best = [judgement.proposal for judgement in judged[:BEST]]
    scores = each(partial(answers, scenario=scenario, ask=ask), best)
    judged = [Judged(proposal, score) for proposal, score in zip(best, scores, strict=True)]
    report(1.0)
    most = max(judgement.score for judgement in judged)

    def order(judgement: Judged) -> tuple[bool, int, float]:
        is_worse = judgement.score < most - AS_GOOD
        return is_worse, 0 if is_worse else judgement.proposal.n_runs, -judgement.score

    judged.sort(key=order)
    chosen: list[Judged] = []
    for judgement in judged:
        if all(judgement.proposal.sizes != other.proposal.sizes for other in chosen):
            chosen.append(judgement)
    return chosen[:MOST_FOUND]


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


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares and quantiles over simulated studies. Shares: identified, held (the interval of a holds its truth), right
    (a within WITHIN_A and N_opt within 30% of the truth), right_a, right_n, right_l (L_opt within WITHIN_L). Quantiles
    [10%, median, 90%]: half_a (half of the interval of a), factor_n (from N_opt to an end of its interval), half_l
    (half of the interval of log L_opt). tells_apart: the difference of log L_opt from which on two studies differ in
    the right direction in nine of ten pairs."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(outcome, name) for outcome in outcomes])

    def three(values: np.ndarray) -> list[float]:
        return [
            float(value)
            for value in np.quantile(np.where(np.isnan(values), np.inf, values), (0.1, 0.5, 0.9), method="nearest")
        ]

    off_l = column("off_l")
    with np.errstate(over="ignore", invalid="ignore"):
        pairs = np.abs(off_l[:, None] - off_l[None])[np.triu_indices(len(off_l), 1)]
        right_a, right_n = np.abs(column("off_a")) < WITHIN_A, np.abs(column("off_n")) < WITHIN_N
        factor = np.exp(np.minimum(column("half_n"), 700))
    return {
        "studies": len(outcomes),
        "identified": float(column("identified").mean()),
        "half_a": three(column("half_a")),
        "factor_n": three(factor),
        "half_l": three(column("half_l")),
        "right": float((right_a & right_n).mean()),
        "right_a": float(right_a.mean()),
        "right_n": float(right_n.mean()),
        "right_l": float((np.abs(column("off_l")) < WITHIN_L).mean()),
        "tells_apart": float(np.quantile(np.where(np.isnan(pairs), np.inf, pairs), 0.9, method="nearest")),
        "held": float((np.abs(column("off_a")) <= column("half_a")).mean()),
    }


def simulated(judged: Judged, scenario: Scenario, seed: int, report: Callable[[], None], each: Each = map) -> Judged:
    """The same with a summary of its simulated studies."""
    return replace(judged, summary=summary(simulate(judged.proposal, scenario, seed, report, each)))


def saving(best: dict[str, Any], other: dict[str, Any], of: str) -> float:
    """How many times its budget `other` would need, spent on more seeds, for the interval of `best`: widths fall as
    budget^(-1/2). inf where it has no interval."""
    width = {"exponent": "half_a"}.get(of, "half_l")
    width_best, width_other = best[width][1], other[width][1]
    return float((width_other / width_best) ** 2) if width_best > 0 and np.isfinite(width_best) else math.nan
