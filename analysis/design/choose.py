"""The proposals that a budget allows, and which of them answers what is asked best.

A proposal is a ladder of sizes with the same tokens a parameter at each, in branches of one trunk a size, capped by the
text there is. The largest size is as large as the budget allows. What is asked is judged by the median half-width over
the prior's surfaces of every architecture, the worst architecture counting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from analysis.design.expect import Expected, SeedNoise, expected
from analysis.design.proposal import Proposal
from analysis.fits.cost import Cost
from analysis.fits.parametric.surface import Surface
from arch.amounts import count, flop
from arch.errors import InputError

ASKS = {"exponent": "a", "loss": "l_opt", "size": "n_opt"}  # what is asked: the half-width that counts
N_SIZES = (5, 6, 7, 8)
RATIOS = (8.0, 16.0, 32.0, 64.0)  # largest size over smallest
# tokens a parameter of the first and the last branch, and how many branches
PER_PARAM = (
    (5.0, 80.0, 5),
    (5.0, 160.0, 6),
    (10.0, 80.0, 4),
    (10.0, 160.0, 5),
    (2.5, 80.0, 6),
)
SEEDED = ((3, 2), (2, 3), (1, 0))  # seeds of so many of the smallest sizes but one
DECAY = 0.1  # of a branch's tokens
NAIVE_SIZES = 6
SMALLEST = 3e5  # non-embedding parameters; smaller ones are mostly embedding


@dataclass(frozen=True)
class Limits:
    """What bounds a study: training FLOP of all architectures together, tokens of a run (the text, read as often as is
    allowed), the smallest and largest size, and whether runs branch from trunks."""

    flops: float
    most_tokens: float
    smallest: float = SMALLEST
    largest: float = math.inf
    branches: bool = True


@dataclass(frozen=True)
class Judged:
    """A proposal with what it costs [FLOP of all architectures] and is expected to give, by architecture."""

    proposal: Proposal
    flops: float
    expected: Mapping[str, Expected]

    def width(self, ask: str) -> float:
        """Median half-width of what is asked, of the worst architecture."""
        return max(float(np.median(getattr(one, ASKS[ask]))) for one in self.expected.values())


@dataclass(frozen=True)
class Question:
    """What is asked: of which surfaces (by architecture), at what costs of a token, at `target` FLOP (0: ten times the
    largest compute of the proposal itself, for each)."""

    ask: str
    surfaces: Mapping[str, Surface]
    costs: Mapping[str, Cost]
    noise: SeedNoise
    target: float

    def flops(self, proposal: Proposal) -> float:
        return math.fsum(proposal.flops(cost) for cost in self.costs.values())

    def judge(self, proposal: Proposal) -> Judged:
        told = {
            arch: expected(surface, proposal, self.noise, self.costs[arch], self.target)
            for arch, surface in self.surfaces.items()
        }
        return Judged(proposal, self.flops(proposal), told)


def ladder(smallest: float, largest: float, n_sizes: int) -> tuple[float, ...]:
    return tuple(np.geomspace(smallest, largest, n_sizes).tolist())


def candidates(question: Question, limits: Limits) -> Iterator[Proposal]:
    """The proposals that spend the budget, each as large as it may be."""
    for n_sizes, ratio, per_param, (seeds, seeded) in itertools.product(N_SIZES, RATIOS, PER_PARAM, SEEDED):
        first, last, many = per_param
        steps = np.geomspace(first, last, many)

        def at(largest: float) -> Proposal:
            targets = ladder(largest / ratio, largest, n_sizes)  # noqa: B023 (called in this round alone)
            tokens = tuple(_capped(steps * n, limits.most_tokens) for n in targets)  # noqa: B023
            of_size = [seeds if 0 < i <= seeded else 1 for i in range(n_sizes)]  # noqa: B023
            return Proposal("", targets, tokens, tuple(of_size), DECAY if limits.branches else None)

        if proposal := _afford(at, ratio, question, limits):
            yield proposal


def _capped(tokens: np.ndarray, most: float) -> tuple[float, ...]:
    return tuple(dict.fromkeys(float(min(one, most)) for one in tokens))


def _afford(at: Callable[[float], Proposal], ratio: float, question: Question, limits: Limits) -> Proposal | None:
    """The largest that costs no more than the budget, or None where even the smallest allowed costs more."""
    low, high = limits.smallest * ratio, min(limits.largest, limits.smallest * 1e7)
    if low > high or question.flops(at(low)) > limits.flops:
        return None
    if question.flops(at(high)) <= limits.flops:
        return at(high)

    def over(log_n: float) -> float:
        return math.log(question.flops(at(math.exp(log_n))) / limits.flops)

    return at(math.exp(optimize.brentq(over, math.log(low), math.log(high), xtol=1e-3) - 1e-3))


def naive(question: Question, limits: Limits, like: Proposal) -> Proposal:
    """What a study looks like without a design, for the same FLOP: six sizes over the range of `like`, equal tokens, a
    constant rate, one seed but for a second of the second size, whole curves."""
    targets = ladder(like.targets[0], like.targets[-1], NAIVE_SIZES)
    seeds = (1, 2, *[1] * (NAIVE_SIZES - 2))
    one = Proposal("naive ladder", targets, ((1.0,),) * NAIVE_SIZES, seeds, None, True)
    tokens = min(question.flops(like) / question.flops(one), limits.most_tokens)
    return one.scaled(tokens)


def best(question: Question, limits: Limits, many: int = 3) -> list[Judged]:
    """The best proposals, of different numbers of sizes or tokens, best first. Raises InputError, which says what the
    budget does not buy, where none can be afforded."""
    judged = [question.judge(one) for one in candidates(question, limits)]
    if not judged:
        cheapest = replace(limits, flops=math.inf, largest=limits.smallest * RATIOS[0])
        least = min((question.flops(one) for one in candidates(question, cheapest)), default=math.inf)
        raise InputError(
            f"--budget: {flop(limits.flops)} FLOP is too small for any study of {len(question.costs)} architectures: "
            f"the smallest ({N_SIZES[0]} sizes from {count(limits.smallest)} parameters) costs {flop(least)}"
        )
    judged.sort(key=lambda one: one.width(question.ask))
    found: list[Judged] = []
    for one in judged:
        kind = len(one.proposal.targets), round(math.log2(one.proposal.targets[-1] / one.proposal.targets[0]))
        if all(kind != (len(o.proposal.targets), _octaves(o.proposal)) for o in found):
            found.append(replace(one, proposal=replace(one.proposal, name=f"proposal {len(found) + 1}")))
        if len(found) == many:
            break
    return found


def _octaves(proposal: Proposal) -> int:
    return round(math.log2(proposal.targets[-1] / proposal.targets[0]))


def saving(question: Question, chosen: Judged, other: Proposal) -> float:
    """How many times its FLOP `other` would need, with as many more tokens, for the half-width of `chosen`; inf where
    no number up to 10^4 does."""
    wanted = chosen.width(question.ask)

    def over(log_times: float) -> float:
        return math.log(question.judge(other.scaled(math.exp(log_times))).width(question.ask) / wanted)

    low, high = math.log(1e-2), math.log(1e4)
    if over(high) > 0:
        return math.inf
    if over(low) < 0:
        return math.exp(low)
    return math.exp(optimize.brentq(over, low, high, xtol=1e-2))
