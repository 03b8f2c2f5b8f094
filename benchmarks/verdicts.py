"""How often claims that verdicts believe are right: simulated studies of worlds that the fits assume, and of others.

python -m benchmarks.verdicts --worlds 20 --json verdicts.json

Worlds are those of analysis.design.worlds, exponents of 0.25 to 0.5. Designs: isoFLOP, eight budgets of nine sizes over
a factor of 128 in compute, 0.3% noise of a run; ladder, six sizes of equal tokens, whole curves, 0.5%; golden and
quickstart, sizes, tokens and seeds of these studies, judged by the envelope, also in worlds of one rate for all sizes;
the truth is the optimum of runs at a constant rate, each size's best one. Claims, at the
largest compute and at ten times it: N_opt, right within a factor of 1.5; the loss of a new run of that N, right where
it lies in the rehearsed interval; which of two worlds has the lower loss, the second being like the first but for 6% of
the terms, 1% of E and 0.02 of the exponents. A ranking is promised where the losses differ by 1%.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from analysis.design.worlds import EXTRA, KINDS, World, paths
from analysis.fits import approaches
from analysis.fits.fit import ENVELOPE, ISOFLOP, Claim
from analysis.fits.parametric import fit_parametric, parametric_result, rows_of
from analysis.fits.points import Points
from analysis.fits.rehearsal import forecast
from analysis.fits.verdicts import judge, judge_loss, judge_ranking
from arch.arguments import Parser, at_least_one, run
from arch.errors import InputError

RIGHT, PROMISED, NOISE = 1.5, 0.01, 0.003
BUDGETS, SIZES, FIRST = 8, 9, 3e15
WARMUP, MEMORY = 0.0375, 2.0  # share of a run's tokens before its first row; of log D, over which a curve's noise lasts
REACHES = (1.0, 10.0)


@dataclass(frozen=True)
class Ladder:
    """Curves of `rows` rows a run. sizes, tokens, seeds [k]: millions of parameters and of tokens, and runs of each
    size; noise: standard deviation of log loss."""

    sizes: tuple[float, ...]
    tokens: tuple[float, ...]
    seeds: tuple[int, ...]
    rows: int
    noise: float


LADDERS = {
    "ladder": Ladder((0.4, 0.8, 3.1, 6.3, 14.2, 31.5), (80,) * 6, (1, 2, 1, 1, 1, 1), 50, 0.005),
    "golden": Ladder((0.9, 1.5, 2.7, 3.75, 5.7, 8.25), (1,) * 6, (1, 1, 3, 1, 2, 1), 12, 0.002),
    "quickstart": Ladder((0.9, 1.5, 2.1, 3.75, 8.25, 14.7), (1.3, 1.5, 2, 2.4, 1.6, 1), (2,) * 6, 50, 0.005),
}
STUDIES = ("golden", "quickstart")  # whose tokens are scaled to the world; of them the envelope alone is judged
ONE_RATE, LOST = "one rate", (0.01, 0.05)  # of all sizes: log loss lost a factor of 10 from the ladder's middle


@dataclass(frozen=True)
class Claimed:
    """A claim of a simulated study: what it is of, whether it is right, whether the design promises it, and whether it
    is believed."""

    design: str
    kind: str
    what: str
    reach: float
    right: bool
    promised: bool
    believed: bool
    against: tuple[str, ...]


def world_of(kind: str, rng: np.random.Generator) -> World:
    """A world of this kind, its surface anywhere."""
    extra = {name: rng.uniform(*ends) for name, ends in EXTRA.items()}.get(kind, 0.0)
    alpha, beta = rng.uniform(0.25, 0.5, 2)
    a, b = rng.uniform(0.1, 0.3, 2)
    return World(kind, rng.uniform(0.6, 1.0), alpha, beta, a, b, float(extra), int(rng.integers(1 << 30)))


def isoflops(world: World, rng: np.random.Generator) -> Points:
    """Budgets whose sizes, of one ladder, lie about each optimum."""
    c = np.repeat(FIRST * 2.0 ** np.arange(BUDGETS), SIZES)
    wanted = world.log_n_opt(np.log(c)) + np.tile(np.linspace(-1.5, 1.5, SIZES), BUDGETS)
    step = 3.0 / (SIZES - 1)
    rung = np.round(wanted / step).astype(int)
    n = np.exp(rung * step)
    off = world.off(int(rung.max() - rung.min()) + 1)[rung - rung.min()]
    return Points(n, c / 6 / n, c, world.loss(n, c / 6 / n) * np.exp(off + 0.003 * rng.standard_normal(len(c))))


def curves(design: str, world: World, rng: np.random.Generator) -> Points:
    """Whole curves at a constant rate. Of STUDIES N_opt at the end of the largest size is half to all of it."""
    ladder = LADDERS[design]
    sizes, tokens, parts = 1e6 * np.array(ladder.sizes), 1e6 * np.array(ladder.tokens), []
    if design in STUDIES:
        last = np.geomspace(0.01, 1e6, 200) * sizes[-1]
        n_opt = np.maximum.accumulate(world.log_n_opt(np.log(6 * sizes[-1] * last)))
        wanted = math.log(sizes[-1] * rng.uniform(0.5, 1))
        tokens *= math.exp(np.interp(wanted, n_opt, np.log(last))) / tokens[-1]
    off = world.off(len(sizes))
    if world.kind == ONE_RATE:
        off += rng.uniform(*LOST) * np.log10(sizes / math.sqrt(sizes[0] * sizes[-1])) ** 2
    for rank, seeds in enumerate(ladder.seeds):
        n, d = np.full(ladder.rows, sizes[rank]), np.geomspace(WARMUP, 1, ladder.rows) * tokens[rank]
        for copy in range(seeds):
            loss = world.loss(n, d) * np.exp(off[rank] + ladder.noise * paths(rng, np.log(d), MEMORY))
            parts.append((n, d, loss, np.full(len(n), f"{sizes[rank]:.3g}-s{copy}", dtype=object)))
    n, d, loss, names = (np.concatenate([part[i] for part in parts]) for i in range(4))
    return Points(n, d, 6 * n * d, loss, run=names)


DESIGNS = {"isoFLOP": isoflops} | {name: partial(curves, name) for name in LADDERS}


def rival_of(world: World, rng: np.random.Generator) -> World:
    """One that is much like it."""
    a, b = np.exp(0.06 * rng.standard_normal(2))
    alpha, beta = 0.02 * rng.standard_normal(2)
    e = math.exp(0.01 * rng.standard_normal())
    return replace(
        world, e=world.e * e, a=world.a * a, b=world.b * b, alpha=world.alpha + alpha, beta=world.beta + beta
    )


def claims(design: str, kind: str, seed: int) -> Iterator[Claimed]:
    """Of one study of a world of this kind and of its rival. A claim that could not be made is none."""
    rng = np.random.default_rng([seed, *kind.encode()])
    world = world_of(kind, rng)
    points = DESIGNS[design](world, rng)
    at = [reach * float(points.flops.max()) for reach in REACHES]

    def of(claim: Claim, what: str, right: bool, promised: bool = True) -> Claimed:
        return Claimed(design, kind, what, round(claim.reach), right, promised, claim.believed, claim.against)

    approach, name = (ENVELOPE, "envelope") if design in STUDIES else (ISOFLOP, "isoFLOP")
    with suppress(InputError):
        fitted = partial(approaches.fit, approach=approach, at=at, n_replicates=approaches.FEWEST)
        judged = judge(fitted(points), points, fitted)
        yield from (of(claim, f"N_opt, {name}", _is_n_opt(claim, world)) for claim in judged.claims)
    if design in STUDIES:
        return
    try:
        surface = fit_parametric(points, n_replicates=0)
        result = parametric_result(surface, at=at)
        known = forecast(surface.points, surface.rows.weights, cost=surface.cost)
    except InputError:
        return
    for claim in judge(result, points, surface).claims:
        yield of(claim, "N_opt, surface", _is_n_opt(claim, world))
    off = world.extra * rng.exponential() if kind == "mistuned" else 0.0
    for c in at:
        n_params = float(surface.surface.n_opt(c, surface.cost))
        n_tokens = c / float(surface.cost.per_token(n_params))
        if not 0 < n_params < math.inf:
            continue
        new = float(world.loss(n_params, n_tokens)) * math.exp(off + NOISE * rng.standard_normal())
        predicted = known.predict(n_params, n_tokens)
        if (ends := predicted.loss.ends) is not None:
            yield of(judge_loss(known, predicted, result), "loss", ends[0] <= new <= ends[1])
    rival = rival_of(world, rng)
    try:
        rows = rows_of(DESIGNS[design](rival, rng))
        groups = {"first": known, "second": forecast(rows.points, rows.weights)}
    except InputError:
        return
    for c in at:
        with suppress(InputError):
            claim = judge_ranking(groups, c)
            higher = _lowest(rival, c) - _lowest(world, c)
            yield of(claim, "ranking", claim.what.startswith("first") == (higher > 0), abs(higher) >= PROMISED)


def _claims(study: tuple[str, str, int]) -> list[Claimed]:
    return list(claims(*study))


def _is_n_opt(claim: Claim, world: World) -> bool:
    return abs(math.log(claim.value) - float(world.log_n_opt(math.log(claim.c)))) <= math.log(RIGHT)


def _lowest(world: World, c: float) -> float:
    return float(world.log_l_at(world.log_n_opt(math.log(c)), math.log(c)))


def table(computed: list[Claimed]) -> list[str]:
    """A line a design, claim and reach: of right claims that are promised and of wrong ones, how many are believed."""
    lines = [f"{'design':10} {'claim':15} {'reach':>5} {'right, believed':>15} {'wrong, believed':>15}"]
    cells_of = sorted({(claim.design, claim.what, claim.reach) for claim in computed if claim.reach in REACHES})
    for design, what, reach in cells_of:
        mine = [claim for claim in computed if (claim.design, claim.what, claim.reach) == (design, what, reach)]
        right = [claim for claim in mine if claim.right and claim.promised]
        cells = (
            f"{sum(claim.believed for claim in some)} of {len(some)}"
            for some in (right, [claim for claim in mine if not claim.right])
        )
        lines.append(f"{design:10} {what:15} {reach:5g} " + " ".join(f"{cell:>15}" for cell in cells))
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.verdicts", __doc__)
    parser.add_argument("--worlds", type=int, default=20, help="of each kind and design (20)")
    parser.add_argument("--processes", type=int, default=1, help="that draw studies side by side (1)")
    parser.add_argument("--json", type=Path, help="every claim, as JSON")
    options = parser.parse_args(arguments)
    at_least_one(options, "worlds", "processes")
    cells = [*product(DESIGNS, KINDS), *product(STUDIES, [ONE_RATE])]
    studies = [(design, kind, seed) for design, kind in cells for seed in range(options.worlds)]
    with ProcessPoolExecutor(options.processes) as pool:
        computed = [claim for made in pool.map(_claims, studies, chunksize=5) for claim in made]
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(claim) for claim in computed]), encoding="utf-8")
    print("\n".join(table(computed)))


if __name__ == "__main__":
    run(main)
