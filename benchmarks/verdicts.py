"""How often claims that verdicts believe are right: simulated studies of worlds that the fits assume, and of others.

python -m benchmarks.verdicts --worlds 20 --json verdicts.json

Worlds are those of analysis.design.worlds, exponents of 0.25 to 0.5. Designs: isoFLOP, eight budgets of nine sizes over
a factor of 128 in compute, 0.3% noise of a run; ladder, six sizes of equal tokens, whole curves, 0.5%. A claim is N_opt
at the largest compute or at ten times it; it is right within a factor of 1.5.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from analysis.design.worlds import EXTRA, KINDS, World, paths
from analysis.fits import approaches
from analysis.fits.fit import Fit
from analysis.fits.parametric import ParametricFit, fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.fits.verdicts import judge
from arch.arguments import Parser, at_least_one, run
from arch.errors import InputError

RIGHT = 1.5
BUDGETS, SIZES, FIRST = 8, 9, 3e15
LADDER = np.array([0.4e6, 0.8e6, 3.1e6, 6.3e6, 14.2e6, 31.5e6])
TOKENS, WARMUP, ROWS, MEMORY = 80e6, 3e6, 50, 2.0
REACHES = (1.0, 10.0)


@dataclass(frozen=True)
class Claimed:
    """A claim of a simulated study: factor between N_opt and the truth (nan: no law), and whether it is believed."""

    design: str
    kind: str
    approach: str
    reach: float
    off: float
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


def ladder(world: World, rng: np.random.Generator) -> Points:
    """Whole curves of sizes on equal tokens, the second size twice."""
    off, parts = world.off(len(LADDER)), []
    for rank, n in enumerate(LADDER):
        for copy in range(2 if rank == 1 else 1):
            tokens = np.geomspace(WARMUP, TOKENS, ROWS)
            loss = world.loss(n, tokens) * np.exp(off[rank] + 0.005 * paths(rng, np.log(tokens), MEMORY))
            parts.append((np.full(ROWS, n), tokens, loss, np.full(ROWS, f"{n:.3g}-s{copy}", dtype=object)))
    n, d, loss, names = (np.concatenate([part[i] for part in parts]) for i in range(4))
    return Points(n, d, 6 * n * d, loss, run=names)


DESIGNS = {"isoFLOP": isoflops, "ladder": ladder}


def claims(design: str, kind: str, seed: int) -> list[Claimed]:
    """Of one study of a world of this kind."""
    rng = np.random.default_rng([seed, *kind.encode()])
    world = world_of(kind, rng)
    points = DESIGNS[design](world, rng)
    at = [reach * float(points.flops.max()) for reach in REACHES]
    computed = []
    for approach in ("parametric", "isoflop"):
        try:
            result, surface = _result(approach, points, at)
        except InputError as error:
            computed += [Claimed(design, kind, approach, reach, math.nan, False, (str(error),)) for reach in REACHES]
            continue
        verdict = judge(result, points, surface)
        for one in verdict.claims:
            off = math.exp(abs(math.log(one.value) - float(world.log_n_opt(math.log(one.c)))))
            computed.append(Claimed(design, kind, approach, round(one.reach), off, one.believed, one.against))
    return computed


def _result(approach: str, points: Points, at: list[float]) -> tuple[Fit, ParametricFit | None]:
    if approach == "parametric":
        surface = fit_parametric(points, n_replicates=0)
        return parametric_result(surface, at=at), surface
    return approaches.fit(points, approach, at=at, n_replicates=40), None


def table(found: list[Claimed]) -> list[str]:
    """A line a design, approach and reach: of right claims and of wrong ones, how many are believed."""
    lines = [f"{'design':8} {'approach':10} {'reach':>5} {'world':8} {'right, believed':>15} {'wrong, believed':>15}"]
    for design in DESIGNS:
        for approach in ("parametric", "isoflop"):
            for reach in REACHES:
                for world in ("fitted", "others"):
                    mine = [
                        one
                        for one in found
                        if (one.design, one.approach, one.reach) == (design, approach, reach)
                        and (one.kind == "fitted") == (world == "fitted")
                        and not math.isnan(one.off)
                    ]
                    right, wrong = ([one for one in mine if (one.off <= RIGHT) is good] for good in (True, False))
                    cells = (f"{sum(one.believed for one in some)} of {len(some)}" for some in (right, wrong))
                    lines.append(
                        f"{design:8} {approach:10} {reach:5g} {world:8} " + " ".join(f"{c:>15}" for c in cells)
                    )
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.verdicts", __doc__)
    parser.add_argument("--worlds", type=int, default=20, help="of each kind and design (20)")
    parser.add_argument("--json", type=Path, help="every claim, as JSON")
    options = parser.parse_args(arguments)
    at_least_one(options, "worlds")
    computed = [
        claim
        for design in DESIGNS
        for kind in KINDS
        for seed in range(options.worlds)
        for claim in claims(design, kind, seed)
    ]
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in computed]), encoding="utf-8")
    print("\n".join(table(computed)))


if __name__ == "__main__":
    run(main)
