"""Which proposal to take: by what is asked, judged on worlds of many forms, first linearised, then simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from analysis.design.cores import Each
from analysis.design.missed import likely, missed
from analysis.design.precision import precision
from analysis.design.proposal import Price, Proposal, candidates, naive, scaled
from analysis.design.simulate import Outcome, simulate
from analysis.design.worlds import Noise, World
from analysis.fits.cost import Cost

ASKS = ("exponent", "loss", "compare")
WITHIN_A, WITHIN_N, WITHIN_L = 0.05, math.log(1.3), 0.005  # of a, log N_opt, log L_opt: what counts as right
SCREENED, SETTLED = 24, 144  # worlds on which proposals are judged linearised: all of them, and the best
A_BIN = 8  # proposals of one smallest size that the cheap half of the screen leaves
BEST = 24  # proposals that the SETTLED worlds decide between
AS_GOOD = 0.01  # of the share: of proposals this close to the best, that of the fewest runs is taken
MOST_FOUND = 12  # of which some may have sizes that no shape comes close to


@dataclass(frozen=True)
class Judged:
    """A proposal, the share of worlds in which its linearised fit answers, and what simulated studies of it found."""

    proposal: Proposal
    score: float
    outcomes: tuple[Outcome, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)


def answers(proposal: Proposal, worlds: Sequence[World], noise: Noise, cost: Cost, target: float, ask: str) -> float:
    """Mean probability over worlds that the fit is right about what is asked, noise and the form's miss together."""
    found = np.zeros(len(worlds))
    for off in likely(missed(proposal.layout(), worlds, noise, cost, target, proposal.leaves_out)):
        told = precision(off.layout, worlds, noise, cost, target)
        if ask == "exponent":
            # errors of both are of the same noise: where one is small the other is
            right = np.minimum(_within(off.a, told.a, WITHIN_A), _within(off.log_n, told.log_n, WITHIN_N))
        else:
            right = _within(off.log_l, told.log_l, WITHIN_L)
        found += off.share * np.nan_to_num(right)
    return float(found.mean())


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
    worlds: Sequence[World],
    noise: Noise,
    cost: Cost,
    target: float,
    ask: str,
    report: Callable[[float], None] = lambda share: None,
    each: Each = map,
) -> list[Judged]:
    """The best few of the family, best first, no two with the same sizes: of those as good as the best within AS_GOOD
    the ones with fewer runs come first. Empty where the family is. report: gets the share that is done."""
    asked: dict[str, Any] = {"noise": noise, "cost": cost, "target": target, "ask": ask}
    few = worlds[: SCREENED // 3]
    rough = list(zip(each(partial(_expected, worlds=few, **asked), family), family, strict=True))
    rough.sort(key=lambda one: one[0])
    # by their smallest size too: small sizes are cheap and precise, but may not follow the law of the others
    bins: dict[tuple[int, bool], int] = {}
    kept = []
    for _, proposal in rough:
        place = int(2 * math.log2(proposal.sizes[0])), proposal.curves
        bins[place] = bins.get(place, 0) + 1
        if bins[place] <= A_BIN:
            kept.append(proposal)
    judged = []
    scores = each(partial(answers, worlds=worlds[:SCREENED], **asked), kept)
    for i, (proposal, score) in enumerate(zip(kept, scores, strict=True)):
        judged.append(Judged(proposal, score))
        report((i + 1) / (len(kept) + SETTLED / SCREENED * BEST))
    if not judged:
        return []
    judged.sort(key=lambda one: -one.score)
    best = [one.proposal for one in judged[:BEST]]
    scores = each(partial(answers, worlds=worlds, **asked), best)
    judged = [Judged(proposal, score) for proposal, score in zip(best, scores, strict=True)]
    report(1.0)
    most = max(one.score for one in judged)
    judged.sort(
        key=lambda one: (
            one.score < most - AS_GOOD,
            one.proposal.n_runs if one.score >= most - AS_GOOD else 0,
            -one.score,
        )
    )
    found: list[Judged] = []
    for one in judged:
        if all(one.proposal.sizes != other.proposal.sizes for other in found):
            found.append(one)
    return found[:MOST_FOUND]


def _expected(proposal: Proposal, worlds: Sequence[World], noise: Noise, cost: Cost, target: float, ask: str) -> float:
    """The median standard deviation of what is asked, without what the form misses."""
    sd = precision(proposal.layout(), worlds, noise, cost, target)
    return float(np.median(sd.a if ask == "exponent" else sd.log_l))


def naive_of(price: Price, budget: float, cap: float, least_size: float = 0.0) -> Proposal | None:
    """The naive ladder of the same cost, its tokens within the corpus; of a shorter range where its smallest size
    would be below `least_size`. None where there is no such ladder."""
    found = scaled(lambda n: naive(n, smallest=least_size), price, budget)
    if found is not None and found.tokens[0][0] > cap:
        found = scaled(lambda n: naive(n, cap, least_size), price, budget)
    return None if found is None or found.sizes[-1] < 2 * found.sizes[0] else found


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares and quantiles over simulated studies.

    identified, held (the interval of a holds its truth), right (a within WITHIN_A and N_opt within 30% of the truth),
    right_a, right_n and right_l (L_opt within WITHIN_L): shares. half_a, factor_n, half_l: [10%, median, 90%] of half
    of the interval of a, of the factor from N_opt to an end of its interval, of half of the interval of log L_opt.
    tells_apart: the difference of log L_opt that nine of ten pairs of studies are closer to the truth than."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in outcomes])

    def three(values: np.ndarray) -> list[float]:
        return [
            float(one)
            for one in np.quantile(np.where(np.isnan(values), np.inf, values), (0.1, 0.5, 0.9), method="nearest")
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


def simulated(
    one: Judged,
    worlds: Sequence[World],
    noise: Noise,
    cost: Cost,
    target: float,
    seed: int,
    told: Callable[[], None],
    each: Each = map,
) -> Judged:
    """With its simulated studies and their summary."""
    outcomes = tuple(simulate(one.proposal, worlds, noise, cost, target, seed, told, each))
    return Judged(one.proposal, one.score, outcomes, summary(outcomes))


def saving(best: dict[str, Any], other: dict[str, Any], of: str) -> float:
    """How many times its budget `other` would need for the interval of `best`, spent on the same runs with other seeds:
    widths fall as one over the root of that. inf where it has no interval."""
    width = {"exponent": "half_a"}.get(of, "half_l")
    mine, its = best[width][1], other[width][1]
    return float((its / mine) ** 2) if mine > 0 and np.isfinite(mine) else math.nan
