"""A proposal: sizes, the tokens and seeds of each, and what that costs; the family of them that a budget allows.

Every run keeps its learning rate, and its whole curve is fitted. The naive ladder is what a study without a plan does:
six sizes to equal tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from analysis.design.precision import SMOOTHED, SWEPT_RATES, Layout, along
from arch import amounts

LEAST_STEPS = 500  # of the shortest run: fewer are warm-up
MOST_BATCH = 65_536  # tokens
SWEPT_STEPS = 2  # times as many steps, where shorter runs are swept
NAIVE_SIZES, NAIVE_RANGE, NAIVE_TOKENS = 6, 78.0, 2.5  # of the trial study: sizes, largest over smallest, least D / N
LEAST_SIZE = 2e3  # parameters; smaller models are none
COUNTS = (5, 6, 8, 10)
RANGES = (8.0, 16.0, 32.0, 64.0)  # largest over smallest size
LENGTHS = (10.0, 14.0, 20.0, 40.0, 80.0)  # tokens a parameter, at the middle size
TILTS = {1.0: "tokens a parameter", 0.0: "tokens", -1.0: "compute"}  # of log D over log N, and what is then equal
# How many, and at how many sizes (99: all; -2: all but two); GRADED: so many at the largest, the more the smaller a
# size is.
GRADED, GRADE = 0, 0.25  # numbers of seeds fall as N to this power
SEEDS = ((1, 1), (3, -2), (3, 99), (5, -2), (5, 99), (8, -2), (8, -3), *((times, GRADED) for times in (2, 3, 4, 5)))
LEAST_TOKENS, MOST_TOKENS = 1.5, 400.0  # a parameter: the rest is outside of what anyone trains

SWEPT_SHARES = (1 / 8, 1 / 2)  # lengths of a sweep's runs, of what main runs have
SWEPT_SIZES = 3
MOST_SWEEP, LARGE_SWEEP = 0.2, 0.6  # of the main runs' cost: as a rule, where nothing else is bought
MOST_BATCHES = 8.0  # times that sizes of a swept study, which has one batch, may differ in their tokens
MOST_RUNS = 64  # of one architecture
STEPS, CLOSE = 40, 0.01  # of the search for the size at which a proposal costs the budget
MOST_LOG = (5.0, 30.0)  # of log N there
MOST_SIZE = 1e13  # parameters; no ladder has more


def batch_of(tokens: float, context: int) -> int:
    """The tokens of a step, a power of two of sequences, with which a run of `tokens` has LEAST_STEPS steps; at least
    one sequence, at most MOST_BATCH tokens."""
    return int(2 ** math.floor(math.log2(_rows(tokens, context)))) * context


def _rows(tokens: float, context: int) -> float:
    return max(1.0, min(tokens / LEAST_STEPS, MOST_BATCH) / context)


def decisive(tokens: Sequence[float], swept: bool) -> list[float]:
    """For each size, the tokens that decide its batch. With a sweep all sizes have the same batch, so that the sweep's
    law needs no term in it; the sweep's shortest runs then have an eighth of the steps."""
    return [min(tokens) / SWEPT_STEPS] * len(tokens) if swept else list(tokens)


def _nothing(sizes: np.ndarray) -> np.ndarray:
    return np.zeros(len(sizes))


@dataclass(frozen=True)
class Price:
    """What all architectures together cost, in FLOP or in seconds. token, step: for sizes [k], of each token, and of
    each step beside its tokens; run: of each run; once: of the study. context: tokens of a sequence, the least that a
    step has; batch: tokens of a step of all sizes, 0 where it follows from what is trained."""

    token: Callable[[np.ndarray], np.ndarray]
    step: Callable[[np.ndarray], np.ndarray] = _nothing
    run: float = 0.0
    once: float = 0.0
    context: int = 1
    batch: int = 0


@dataclass(frozen=True)
class Proposal:
    """sizes [k]: non-embedding parameters; tokens [k] of a run (0: the text is too short, or no one trains so); seeds
    [k]: how many; tilt: how tokens depend on size (TILTS); sweep: indices of the sizes at which learning rates are
    swept first, () for none; same_text: all sizes have the same seeds and read the same text, as without a plan; else
    each has seeds of its own, so that a hard text is not hard for all sizes."""

    sizes: tuple[float, ...]
    tokens: tuple[float, ...]
    seeds: tuple[int, ...]
    tilt: float = 1.0
    sweep: tuple[int, ...] = ()
    same_text: bool = False

    @property
    def seed_numbers(self) -> list[list[int]]:
        """The numbers of the seeds of each size."""
        ends = list(itertools.accumulate(self.seeds))
        return [
            list(range(number)) if self.same_text else list(range(end - number, end))
            for number, end in zip(self.seeds, ends, strict=True)
        ]

    @property
    def n_runs(self) -> int:
        """Of one architecture, without the sweep's."""
        return sum(self.seeds)

    @property
    def words(self) -> str:
        """The proposal in a line of text."""
        lengths, ratios = sorted(self.tokens), sorted(d / n for n, d in zip(self.sizes, self.tokens, strict=True))
        amount = " to ".join(dict.fromkeys(map(amounts.count, (lengths[0], lengths[-1]))))
        several = [f"{seeds} at {self.seeds.count(seeds)}" for seeds in sorted(set(self.seeds)) if seeds > 1]
        if len(several) > 2:
            several = [f"{self.seeds[0]} at the smallest, falling to {self.seeds[-1]}"]
        return (
            f"{len(self.sizes)} sizes {amounts.count(self.sizes[0])} to {amounts.count(self.sizes[-1])}, whole curves "
            f"to {amount} tokens ({ratios[0]:.3g} to {ratios[-1]:.3g} a parameter; equal {TILTS[self.tilt]}), seeds: "
            f"{', '.join(several) or 'one'}"
        )

    def cost(self, price: Price) -> float:
        """The cost in the unit of `price`, with the sweep."""
        return self.main_cost(price) + self.sweep_cost(price)

    def main_cost(self, price: Price) -> float:
        """The cost without the sweep."""
        tokens = np.array(self.seeds) * np.array(self.tokens)
        return price.once + price.run * self.n_runs + float((tokens * self._a_token(price)).sum())

    def sweep_cost(self, price: Price) -> float:
        """The cost of the sweep; 0 without a sweep."""
        if not self.sweep:
            return 0.0
        each = self._a_token(price)
        return SWEPT_RATES * math.fsum(price.run + d * float(each[i]) for i in self.sweep for d in self.swept(i))

    def _a_token(self, price: Price) -> np.ndarray:
        """[k]: the cost of a token, with its share of a step. Batches are continuous here, without powers of two: for
        the search of a size that costs a budget."""
        sizes = np.array(self.sizes)
        if price.step is _nothing:  # whatever the batch
            return np.asarray(price.token(sizes))
        context, several = price.context, decisive(self.tokens, bool(self.sweep))
        batches = [price.batch or max(1.0, _rows(tokens, context) / math.sqrt(2)) * context for tokens in several]
        return np.asarray(price.token(sizes) + price.step(sizes) / np.array(batches))

    def swept(self, size: int) -> tuple[float, ...]:
        """Tokens of a sweep's runs at a size: SWEPT_SHARES of what its main runs have, where those are in proportion to
        the size; else of the geometric middle of all sizes."""
        middle = math.exp(math.fsum(map(math.log, self.tokens)) / len(self.tokens))
        whole = middle if self.tilt != 1.0 else self.tokens[0] / self.sizes[0] * self.sizes[size]
        return tuple(whole * share for share in SWEPT_SHARES)

    def layout(self) -> Layout:
        """The points of one architecture, rows along its curves."""
        curves = [along(tokens) for tokens in self.tokens]
        runs = [i for i, seeds in enumerate(self.seeds) for _ in range(seeds)]
        rows, tokens = len(curves[0]), np.concatenate([curves[i] for i in runs])
        cells = [(self.sizes[i], d) for i in self.sweep for d in self.swept(i)]
        return Layout(
            np.repeat([self.sizes[i] for i in runs], rows),
            tokens,
            np.repeat(runs, rows),
            np.repeat(np.arange(len(runs)), rows),
            np.array(cells).T if cells else None,
            SMOOTHED * tokens,
        )

    def resized(self, factor: float, cap: float) -> Proposal:
        """The proposal with sizes and tokens times sqrt(factor), so that it costs about `factor` times as much; no run
        beyond `cap`."""
        times = math.sqrt(factor)
        tokens = tuple(min(d * times, cap) for d in self.tokens)
        return replace(self, sizes=tuple(n * times for n in self.sizes), tokens=tokens)


def laid(
    smallest: float, count: int, span: float, length: float, tilt: float, seeds: tuple[int, int], cap: float
) -> Proposal:
    """A member of the family. span: largest over smallest size; length: tokens a parameter of the middle size; cap: no
    run has more tokens; seeds: how many, and at which sizes (SEEDS)."""
    sizes = [smallest * span ** (i / (count - 1)) for i in range(count)]
    middle = math.sqrt(sizes[0] * sizes[-1])
    tokens = []
    for n in sizes:
        d, low, high = length * middle * (n / middle) ** tilt, LEAST_TOKENS * n, MOST_TOKENS * n
        tokens.append(min(d, cap) if low <= d <= high and cap >= low else 0.0)
    times, places = seeds
    if places == GRADED:
        number = [round(times * (sizes[-1] / n) ** GRADE) for n in sizes]
    elif places == 1:
        number = [1, times, *[1] * (count - 2)]
    else:
        several = count if places == 99 else count + places
        number = [times] * several + [1] * (count - several)
    return Proposal(tuple(sizes), tuple(tokens), tuple(number), tilt)


def naive(largest: float, cap: float = math.inf, smallest: float = 0.0) -> Proposal:
    """The trial study's ladder: six sizes, none below `smallest`, trained on equally many tokens, at most `cap`, with a
    second seed of the second size."""
    sizes = np.geomspace(max(largest / NAIVE_RANGE, min(smallest, largest)), largest, NAIVE_SIZES)
    tokens = (min(NAIVE_TOKENS * largest, cap),) * NAIVE_SIZES
    return Proposal(tuple(sizes.tolist()), tokens, (1, 2, 1, 1, 1, 1), 0.0, same_text=True)


def naive_of(price: Price, budget: float, cap: float, least_size: float = 0.0) -> Proposal | None:
    """The naive ladder of the same cost, with its tokens within the corpus, and of a shorter range where its smallest
    size would be below `least_size`. None where there is no such ladder."""
    ladder = scaled(lambda n: naive(n, smallest=least_size), price, budget)
    if ladder is not None and ladder.tokens[0] > cap:
        ladder = scaled(lambda n: naive(n, cap, least_size), price, budget)
    return None if ladder is None or ladder.sizes[-1] < 2 * ladder.sizes[0] else ladder


def with_sweep(proposal: Proposal, price: Price, most: float = MOST_SWEEP) -> Proposal:
    """The proposal with a sweep at SWEPT_SIZES sizes: the smallest, the largest whose sweep costs at most `most` of the
    main runs, and the one in the middle; without a sweep where that of the three smallest sizes costs more, or the main
    runs need different batches."""
    if not all(proposal.tokens) or max(proposal.tokens) > MOST_BATCHES * min(proposal.tokens):
        return proposal
    for largest in reversed(range(SWEPT_SIZES - 1, len(proposal.sizes))):
        swept = replace(proposal, sweep=(0, largest // 2, largest))
        if swept.sweep_cost(price) <= most * swept.main_cost(price):
            return swept
    return proposal


def scaled(make: Callable[[float], Proposal], price: Price, budget: float) -> Proposal | None:
    """`make` at the size at which its proposal costs `budget`, or less by up to CLOSE; None where there is no such size
    above LEAST_SIZE."""
    aim = (1 - CLOSE / 2) * budget
    low, high = MOST_LOG
    log_n = math.log(1e6)
    for _ in range(STEPS):  # cost is close to a square of the size, less where tokens are capped
        proposal = make(math.exp(log_n))
        if not all(proposal.tokens):  # its text is too short
            high, log_n = log_n, (low + log_n) / 2
            if high - low < CLOSE / 4:
                return None
            continue
        cost = proposal.cost(price)
        if (1 - CLOSE) * budget <= cost <= budget:
            return proposal if proposal.sizes[0] >= LEAST_SIZE else None
        if (cost > budget and proposal.sizes[0] < LEAST_SIZE) or high - low < CLOSE / 4:
            return None
        low, high = (log_n, high) if cost < aim else (low, log_n)
        step = log_n + math.log(aim / cost) / 2
        log_n = step if low < step < high else (low + high) / 2
    return None


def _family(price: Price, cap: float, sweep: float) -> Iterator[Callable[[float], Proposal]]:
    """The members of the family: each makes a proposal of a given smallest size, with a sweep of learning rates that
    costs at most the share `sweep` of the main runs (0: without)."""
    for count, span, length, tilt, seeds in itertools.product(COUNTS, RANGES, LENGTHS, TILTS, SEEDS):
        make = partial(laid, count=count, span=span, length=length, tilt=tilt, seeds=seeds, cap=cap)
        yield _swept(make, price, sweep) if sweep else make


def _swept(make: Callable[[float], Proposal], price: Price, most: float) -> Callable[[float], Proposal]:
    return lambda n: with_sweep(make(n), price, most)


def _is_allowed(proposal: Proposal, batch: int, sweep: float) -> bool:
    """Whether the proposal has the runs that a fit needs, sizes that exist, the sweep where one is asked for, and
    enough steps of `batch` tokens, where these are given."""
    right = all(proposal.tokens) and proposal.sizes[-1] <= MOST_SIZE and proposal.n_runs <= MOST_RUNS
    return right and min(proposal.tokens) >= LEAST_STEPS * batch and bool(proposal.sweep) == bool(sweep)


def candidates(
    price: Price, budget: float, cap: float, sweep: float = 0.0, least_size: float = 0.0
) -> Iterator[Proposal]:
    """The members of the family that cost the budget and are allowed, without a size below `least_size`. sweep: the
    most that a sweep of learning rates costs, as a share of the main runs; 0: without a sweep."""
    for make in _family(price, cap, sweep):
        proposal = scaled(make, price, budget)
        if proposal is not None and proposal.sizes[0] >= least_size and _is_allowed(proposal, price.batch, sweep):
            yield proposal


def least_cost(price: Price, cap: float, least_size: float, sweep: float = 0.0) -> float:
    """The least cost of the allowed proposals without a size below `least_size` (a proposal costs more the larger its
    sizes are); inf where there is none, because the text is too short for all."""
    made = (make(max(least_size, LEAST_SIZE)) for make in _family(price, cap, sweep))
    return min((p.cost(price) for p in made if _is_allowed(p, price.batch, sweep)), default=math.inf)


def most_cost(price: Price, cap: float, least_size: float, sweep: float = 0.0) -> float:
    """About the most that an allowed proposal costs: each with the largest sizes of which its text is enough."""
    dearest = 0.0
    for make in _family(price, cap, sweep):
        low, high = math.log(max(least_size, LEAST_SIZE)), MOST_LOG[1]
        if not _is_allowed(make(math.exp(low)), price.batch, sweep):
            continue
        while high - low > CLOSE:
            middle = (low + high) / 2
            low, high = (middle, high) if _is_allowed(make(math.exp(middle)), price.batch, sweep) else (low, middle)
        dearest = max(dearest, make(math.exp(low)).cost(price))
    return dearest
