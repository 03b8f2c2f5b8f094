"""A proposal: sizes, the tokens of each, seeds, and what that costs; the family of them that a budget allows.

Every size has one trunk a seed at a constant rate, from which a run is decayed at each number of tokens: the trunk
costs the tokens up to its last decay, a decay a tenth of its run's. Or its runs keep the constant rate, and their whole
curves are fitted. The naive ladder is what a study without a plan does: all sizes to equal tokens at a constant rate,
whole curves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from analysis.design.layout import SMOOTHED, Layout, along
from arch import amounts

LEAST_STEPS = 500  # of the shortest run: fewer are warm-up
MOST_BATCH = 65_536  # tokens
SWEPT_STEPS = 2  # times as many steps, where shorter runs are swept


def batch_of(shortest: float, context: int) -> int:
    """The tokens of a step, a power of two of sequences, with which a run of `shortest` tokens has LEAST_STEPS steps;
    at least one sequence, at most MOST_BATCH tokens."""
    return int(2 ** math.floor(math.log2(_rows(shortest, context)))) * context


def expected(shortest: float, context: int) -> float:
    """As `batch_of`, but as a continuous function, without powers of two: for the search of a size that costs a
    budget."""
    return max(1.0, _rows(shortest, context) / math.sqrt(2)) * context


def _rows(shortest: float, context: int) -> float:
    return max(1.0, min(shortest / LEAST_STEPS, MOST_BATCH) / context)


def decisive(shortest: Sequence[float], swept: bool) -> list[float]:
    """For each size, the tokens whose steps decide its batch. With a sweep all sizes have the same batch, so that the
    sweep's law needs no term in it; the sweep's shortest runs then have an eighth of the steps."""
    return [min(shortest) / SWEPT_STEPS] * len(shortest) if swept else list(shortest)


DECAY = 0.1  # of a run's tokens, over which its rate falls
NAIVE_SIZES, NAIVE_RANGE, NAIVE_TOKENS = 6, 78.0, 2.5  # of the trial study: sizes, largest over smallest, least D / N
LEAST_SIZE = 2e3  # parameters; smaller models are none
COUNTS = (5, 6, 8, 10)
RANGES = (8.0, 16.0, 32.0, 64.0)  # largest over smallest size
SPANS = (8.0, 16.0, 32.0)  # most over fewest tokens of a size; 5 to 160 a parameter at the widest
CENTRES = (14.0, 28.0)  # tokens a parameter, geometric middle: 5 to 40 and 5 to 160 of SPANS 8 and 32 at the most
TILTS = (1.0, 0.0, -1.0)  # of log D over log N along a row of runs: tokens a parameter, tokens, compute are equal
# At so many sizes (99: all; -2: all but two); GRADED: so many at the largest, the more the smaller a size is.
GRADED, GRADE = 0, 0.25  # numbers of seeds fall as N to this power
SEEDS = ((1, 1), (3, -2), (3, 99), (5, -2), (5, 99), (8, -2), (8, -3), *((times, GRADED) for times in (2, 3, 4, 5)))
LENGTHS = (10.0, 14.0, 20.0, 40.0, 80.0)  # tokens a parameter of curves, at the middle size
LEAST_TOKENS, MOST_TOKENS = 1.5, 400.0  # a parameter: the rest is outside of what anyone trains

SWEPT_RATES = 5
SWEPT_SHARES = (1 / 8, 1 / 2)  # lengths of a sweep's runs, of what main runs have
SWEPT_SIZES = 3
MOST_SWEEP, LARGE_SWEEP = 0.2, 0.6  # of the main runs' cost: as a rule, where nothing else is bought
MOST_BATCHES = 8.0  # times that sizes of a swept study, which has one batch, may differ in their shortest runs
LEAST_RUNS, MOST_RUNS = 12, 64  # of one architecture
HALVED = 14  # of the search for the largest sizes
STEPS, CLOSE = 40, 0.01  # of the search for the size at which a proposal costs the budget
MOST_LOG = (5.0, 30.0)  # of log N there
MOST_SIZE = 1e13  # parameters; no ladder has more


def _nothing(sizes: np.ndarray) -> np.ndarray:
    return np.zeros(len(sizes))


@dataclass(frozen=True)
class Price:
    """What all architectures together cost, in FLOP or in seconds. token, step: for sizes [k], of each token, and of
    each step beside its tokens; run: of each run; once: of the study. context: tokens of a sequence, the least that a
    step has."""

    token: Callable[[np.ndarray], np.ndarray]
    step: Callable[[np.ndarray], np.ndarray] = _nothing
    run: float = 0.0
    once: float = 0.0
    context: int = 1
    batch: int = 0  # tokens of a step of all sizes; 0: by what is trained


@dataclass(frozen=True)
class Proposal:
    """sizes [k]: non-embedding parameters; tokens: of each size, ascending, for each branch; seeds [k]: how many; tilt:
    how tokens depend on size (TILTS); curves: whole curves at a constant rate instead of decayed branches; sweep:
    indices of the sizes at which learning rates are swept first, () for none; same_text: all sizes have the same seeds
    and read the same text, as without a plan; else each has seeds of its own, so that a hard text is not hard for all
    sizes."""

    sizes: tuple[float, ...]
    tokens: tuple[tuple[float, ...], ...]
    seeds: tuple[int, ...]
    tilt: float = 1.0
    curves: bool = False
    sweep: tuple[int, ...] = ()
    same_text: bool = False

    @property
    def seed_numbers(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the seeds of each size."""
        first = 0
        numbers = []
        for number in self.seeds:
            numbers.append(tuple(range(first, first + number)))
            first += 0 if self.same_text else number
        return tuple(numbers)

    @property
    def leaves_out(self) -> bool:
        """Whether the study file leaves sizes that have stopped learning out of the fits."""
        return not self.same_text

    @property
    def trained(self) -> tuple[float, ...]:
        """The tokens that each size trains on, all seeds together."""
        share = 0.0 if self.curves else DECAY
        each = zip(self.tokens, self.seeds, strict=True)
        return tuple(seeds * ((1 - share) * max(d, default=0.0) + share * sum(d)) for d, seeds in each)

    @property
    def n_runs(self) -> int:
        """The number of points of one architecture."""
        return sum(len(d) * seeds for d, seeds in zip(self.tokens, self.seeds, strict=True))

    @property
    def words(self) -> str:
        """The proposal in a line of text."""
        every = [(d, d / n) for n, row in zip(self.sizes, self.tokens, strict=True) for d in row]
        lengths, ratios = (sorted(column) for column in zip(*every, strict=True))
        amount = " to ".join(dict.fromkeys(map(amounts.count, (lengths[0], lengths[-1]))))
        branches = " to ".join(dict.fromkeys(str(size(map(len, self.tokens))) for size in (min, max)))
        several = [f"{seeds} at {self.seeds.count(seeds)}" for seeds in sorted(set(self.seeds)) if seeds > 1]
        if len(several) > 2:
            several = [f"{self.seeds[0]} at the smallest, falling to {self.seeds[-1]}"]
        laid = {1.0: "tokens a parameter", 0.0: "tokens", -1.0: "compute"}[self.tilt]
        return (
            f"{len(self.sizes)} sizes {amounts.count(self.sizes[0])} to {amounts.count(self.sizes[-1])}, "
            + (f"whole curves to {amount} tokens" if self.curves else f"{branches} branches of {amount} tokens")
            + f" ({ratios[0]:.3g} to {ratios[-1]:.3g} a parameter; equal {laid}), seeds: {', '.join(several) or 'one'}"
        )

    def cost(self, price: Price) -> float:
        """The cost in the unit of `price`, with the sweep."""
        return self.main_cost(price) + self.sweep_cost(price)

    def main_cost(self, price: Price) -> float:
        """The cost without the sweep."""
        return self._main_cost(price, self._a_token(price))

    def sweep_cost(self, price: Price) -> float:
        """The cost of the sweep; 0 without a sweep."""
        return self._cost_of(self.sweep, price, self._a_token(price)) if self.sweep else 0.0

    def costs_with(self, sweeps: Sequence[tuple[int, ...]], price: Price) -> tuple[float, Iterator[float]]:
        """The cost of the main runs where there is a sweep (whichever it is), and the cost of each of `sweeps`."""
        each = self._a_token(price, swept=True)
        return self._main_cost(price, each), (self._cost_of(sweep, price, each) for sweep in sweeps)

    def _main_cost(self, price: Price, each: np.ndarray) -> float:
        runs = math.fsum(
            seeds * (1 if self.curves else 1 + len(row)) for row, seeds in zip(self.tokens, self.seeds, strict=True)
        )
        return price.once + price.run * runs + float((np.array(self.trained) * each).sum())

    def _cost_of(self, sweep: tuple[int, ...], price: Price, each: np.ndarray) -> float:
        lengths = [(self.swept(i), float(each[i])) for i in sweep]
        return SWEPT_RATES * math.fsum(price.run * len(row) + sum(row) * token_cost for row, token_cost in lengths)

    def _a_token(self, price: Price, swept: bool = False) -> np.ndarray:
        """[k]: the cost of a token, with its share of a step."""
        sizes = np.array(self.sizes)
        if price.step is _nothing:  # whatever the batch
            return np.asarray(price.token(sizes))
        shortest = decisive([row[0] for row in self.tokens], swept or bool(self.sweep))
        batches = [price.batch or expected(tokens, price.context) for tokens in shortest]
        return np.asarray(price.token(sizes) + price.step(sizes) / np.array(batches))

    def swept(self, size: int) -> tuple[float, ...]:
        """Tokens of a sweep's runs at a size: SWEPT_SHARES of what its main runs have, where those are in proportion to
        the size; else of the geometric middle of all sizes."""
        middle = self._middle if self.tilt != 1.0 else self._horizon(self.tokens[0]) / self.sizes[0] * self.sizes[size]
        return tuple(middle * share for share in SWEPT_SHARES)

    @cached_property
    def _middle(self) -> float:
        """The geometric mean of all sizes' horizons."""
        return math.exp(math.fsum(math.log(self._horizon(row)) for row in self.tokens) / len(self.tokens))

    def _horizon(self, row: tuple[float, ...]) -> float:
        share = 1.0 if self.curves else 0.5
        return row[-1] ** share * row[0] ** (1 - share)

    def layout(self) -> Layout:
        """The points of one architecture, for whole curves rows along them."""
        rows: list[tuple[float, float, int, str, str, str]] = []
        for i, (n, tokens, seeds) in enumerate(zip(self.sizes, self.tokens, self.seed_numbers, strict=True)):
            for seed in seeds:
                trunk = f"{i}-{seed}"
                if self.curves:
                    rows += [(n, d, i, trunk, trunk, f"{seed}") for d in along(tokens[-1]).tolist()]
                else:
                    rows += [(n, d, i, trunk, f"{trunk}-{j}", f"{seed}") for j, d in enumerate(tokens)]
        numbers = np.array([row[:3] for row in rows])
        trunks, runs, texts = (np.array([row[k] for row in rows], dtype=object) for k in (3, 4, 5))
        cells = [(self.sizes[i], d) for i in self.sweep for d in self.swept(i)]
        swept = np.array(cells).T if cells else None
        at, size = numbers[:, 1], numbers[:, 2].astype(int)
        window = SMOOTHED * at if self.curves else None
        return Layout(numbers[:, 0], at, size, trunks, runs, self.curves, texts, swept, window)


def laid(
    smallest: float,
    count: int,
    span_n: float,
    centre: float,
    span_d: float,
    tilt: float,
    seeds: tuple[int, int],
    cap: float,
    curves: bool = False,
) -> Proposal:
    """A member of the family. centre: tokens a parameter, of the geometric middle of sizes and tokens; cap: no run has
    more tokens. seeds: how many, and at which sizes (SEEDS)."""
    sizes = [smallest * span_n ** (i / (count - 1)) for i in range(count)]
    middle = math.sqrt(sizes[0] * sizes[-1])
    last = round(math.log2(span_d))
    factors = [span_d ** (j / last - 0.5) for j in range(last + 1)] if last else [1.0]
    tokens = []
    for n in sizes:
        power, low, high = (n / middle) ** tilt, LEAST_TOKENS * n, MOST_TOKENS * n
        kept = at = [d for factor in factors if low <= (d := centre * middle * factor * power) <= high]
        if at and at[-1] > cap:  # they ascend
            kept = [d for d in at if d <= cap]
            if cap >= low and (not kept or kept[-1] < 0.8 * cap):
                kept.append(cap)
        tokens.append(tuple(kept))
    times, places = seeds
    number = [1] * count
    several = {1: [1], 99: range(count), -2: range(count - 2), -3: range(count - 3)}
    for i in several.get(places, ()):
        number[i] = times
    if places == GRADED:
        number = [round(times * (sizes[-1] / n) ** GRADE) for n in sizes]
    return Proposal(tuple(sizes), tuple(tokens), tuple(number), tilt, curves)


def naive(largest: float, cap: float = math.inf, smallest: float = 0.0) -> Proposal:
    """The trial study's ladder: six sizes, none below `smallest`, trained on equally many tokens, at most `cap`, with a
    second seed of the second size."""
    sizes = np.geomspace(max(largest / NAIVE_RANGE, min(smallest, largest)), largest, NAIVE_SIZES)
    tokens = ((min(NAIVE_TOKENS * largest, cap),),) * NAIVE_SIZES
    return Proposal(tuple(sizes.tolist()), tokens, (1, 2, 1, 1, 1, 1), 0.0, True, same_text=True)


def with_sweep(proposal: Proposal, price: Price, most: float = MOST_SWEEP) -> Proposal:
    """The proposal with a sweep at SWEPT_SIZES sizes: the smallest, the largest whose sweep costs at most `most` of the
    main runs, and the one in the middle; without a sweep where that of the three smallest sizes costs more, or the main
    runs need different batches."""
    shortest = [row[0] for row in proposal.tokens if row]
    if len(shortest) < len(proposal.tokens) or max(shortest) > MOST_BATCHES * min(shortest):
        return proposal
    sweeps = [(0, largest // 2, largest) for largest in reversed(range(SWEPT_SIZES - 1, len(proposal.sizes)))]
    main, each = proposal.costs_with(sweeps, price)
    sizes_swept = next((sweep for sweep, cost in zip(sweeps, each, strict=True) if cost <= most * main), ())
    return replace(proposal, sweep=sizes_swept) if sizes_swept else proposal


def scaled(make: Callable[[float], Proposal], price: Price, budget: float) -> Proposal | None:
    """`make` at the size at which its proposal costs `budget`; None where there is no such size above LEAST_SIZE."""
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
        if abs(cost / budget - 1) < CLOSE:
            return proposal if proposal.sizes[0] >= LEAST_SIZE else None
        if (cost > budget and proposal.sizes[0] < LEAST_SIZE) or high - low < CLOSE / 4:
            return None
        low, high = (log_n, high) if cost < budget else (low, log_n)
        step = log_n + math.log(budget / cost) / 2
        log_n = step if low < step < high else (low + high) / 2
    return None


def family(cap: float, seeds: Sequence[tuple[int, int]] = SEEDS) -> Iterator[Callable[[float], Proposal]]:
    """The members of the family: each makes a proposal of a given smallest size."""
    branched = [(centre, span, False) for centre in CENTRES for span in SPANS]
    whole = [(length, 1.0, True) for length in LENGTHS]
    for count, span_n, (centre, span_d, curves), tilt, times in itertools.product(
        COUNTS, RANGES, [*branched, *whole], TILTS, seeds
    ):
        shape: dict[str, Any] = {"count": count, "span_n": span_n, "centre": centre, "span_d": span_d, "tilt": tilt}
        yield partial(laid, seeds=times, cap=cap, curves=curves, **shape)


def allowed(proposal: Proposal, batch: int = 0) -> bool:
    """Whether the proposal has the runs that a fit needs (of every size two branches or more, or a curve), sizes that
    exist, and enough steps of `batch` tokens, where these are given."""
    if proposal.sizes[-1] > MOST_SIZE or min(map(len, proposal.tokens)) < (1 if proposal.curves else 2):
        return False
    if min(row[0] for row in proposal.tokens) < LEAST_STEPS * batch:
        return False
    return proposal.n_runs <= MOST_RUNS and (proposal.curves or proposal.n_runs >= LEAST_RUNS)


def candidates(price: Price, budget: float, cap: float, sweep: float = 0.0) -> Iterator[Proposal]:
    """The members of the family that cost the budget and are allowed. sweep: with a sweep of learning rates that costs
    at most this share of the main runs; 0: without a sweep."""
    for make in family(cap):
        proposal = scaled(_swept(make, price, sweep) if sweep else make, price, budget)
        if proposal is not None and allowed(proposal, price.batch) and bool(proposal.sweep) == bool(sweep):
            yield proposal


def _swept(make: Callable[[float], Proposal], price: Price, most: float) -> Callable[[float], Proposal]:
    return lambda n: with_sweep(make(n), price, most)


def least_cost(price: Price, cap: float, least_size: float, sweep: float = 0.0) -> float:
    """The least cost of the allowed proposals without a size below `least_size` (a proposal costs more the larger its
    sizes are); inf where there is none, because the text is too short for all."""
    least = math.inf
    for make in family(cap):
        proposal = make(max(least_size, LEAST_SIZE))
        if allowed(proposal, price.batch):
            proposal = with_sweep(proposal, price, sweep) if sweep else proposal
            least = min(least, proposal.cost(price) if bool(proposal.sweep) == bool(sweep) else math.inf)
    return least


def most_cost(price: Price, cap: float, least_size: float, sweep: float = 0.0) -> float:
    """The most that an allowed proposal costs; 0 where there is none."""
    dearest_cost = 0.0
    # of those that are allowed the most seeds cost the most
    dearest = [(5, GRADED), (5, 99), (4, GRADED), (3, 99), (3, -2)]
    for make in family(cap, dearest):
        low, high = math.log(max(least_size, LEAST_SIZE)), MOST_LOG[1]
        if not allowed(make(math.exp(low)), price.batch):
            continue
        for _ in range(HALVED):
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(make(math.exp(middle)), price.batch) else (low, middle)
        most = make(math.exp(low))
        most = with_sweep(most, price, sweep) if sweep else most
        dearest_cost = max(dearest_cost, most.cost(price) if bool(most.sweep) == bool(sweep) else 0.0)
    return dearest_cost
