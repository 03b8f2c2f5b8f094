"""IsoFLOP studies drawn from known losses, and how often the intervals of their laws hold the optimum.

What is to be covered is the minimum over N of the noise-free loss of the recipe as trained. `Design` has the budgets
and sizes of studies: single runs about the optimum, branches of one trunk a size, whole curves. `World` has surfaces
that the fit does not assume: terms that interact, an exponent that bends, small sizes whose recipe is worse.

`python -m tests.analysis.fits.isoflop_coverage 1000` prints the tables of docs/research/isoflop.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from analysis.fits.cost import six_nd
from analysis.fits.isoflop import fit_isoflop
from analysis.fits.points import Points
from arch.errors import InputError

MIDDLE_N, MIDDLE_D = 3e8, 6e9  # where the terms of a world are stated
GRID = np.linspace(math.log(1e3), math.log(1e13), 20_001)
COVERED = ("a", "N_opt", "L_opt", "N_opt beyond", "L_opt beyond")
BEYOND = 10.0  # times the last budget
REPLICATES = 199


@dataclass(frozen=True)
class World:
    """L = E + the terms of N and D, a and b at MIDDLE_N and MIDDLE_D. kind: `fitted`; `interaction`, terms joined as
    (a^(1/r) + b^(1/r))^r; `bend`, an exponent of N that grows past MIDDLE_N; `mistuned`, small sizes that lose a share
    of their own. By default Hoffmann et al.'s surface."""

    kind: str = "fitted"
    alpha: float = 0.34
    beta: float = 0.28
    e: float = 1.69
    a: float = 406.4 * MIDDLE_N**-0.34
    b: float = 410.7 * MIDDLE_D**-0.28
    extra: float = 0.0

    def log_loss(self, log_n: np.ndarray, log_c: np.ndarray | float) -> np.ndarray:
        """At N on C / 6 N tokens."""
        x, y = log_n - math.log(MIDDLE_N), log_c - math.log(6) - log_n - math.log(MIDDLE_D)
        p, q = self.a * np.exp(-self.alpha * x), self.b * np.exp(-self.beta * y)
        if self.kind == "interaction":
            return np.asarray(np.log(self.e + (p ** (1 / self.extra) + q ** (1 / self.extra)) ** self.extra))
        if self.kind == "bend":
            p = p * np.exp(-self.extra * (np.logaddexp(0, x) - math.log(2)))
        worse = self.extra * np.exp(-0.7 * np.clip(x + 3, -6, None)) if self.kind == "mistuned" else 0.0
        return np.asarray(np.log(self.e + p + q) + worse)

    def optimum(self, c: float) -> tuple[float, float]:
        """log N and log loss of the lowest loss at C: of a grid, then of a parabola through its best three."""
        losses = self.log_loss(GRID, math.log(c))
        at = int(losses.argmin())
        low, mid, high = losses[at - 1 : at + 2]
        off = (low - high) / (2 * (low - 2 * mid + high))
        return float(GRID[at] + off * (GRID[1] - GRID[0])), float(mid - (low - high) * off / 4)


def drawn_world(kind: str, rng: np.random.Generator) -> World:
    extra = {"fitted": (0.0, 0.0), "interaction": (0.6, 0.9), "bend": (0.05, 0.2), "mistuned": (0.005, 0.03)}[kind]
    alpha, beta = rng.uniform(0.25, 0.5), rng.uniform(0.2, 0.45)
    return World(
        kind, alpha, beta, rng.uniform(1.2, 2.2), rng.uniform(0.3, 0.9), rng.uniform(0.3, 0.9), rng.uniform(*extra)
    )


@dataclass(frozen=True)
class Design:
    """`budgets` from 1e18 to 1e21 FLOP, at each `sizes` that span a factor of `span` about the optimum, off it by up to
    `off` of the span (drawn). kind: `points`, a run each; `branches`, the same sizes at all budgets, one trunk a size,
    half of the noise's variance the trunk's; `curves`, whole curves of the same sizes. s: of log loss."""

    kind: str
    budgets: int
    sizes: int
    s: float
    span: float = 16.0
    off: float = 0.0

    def points(self, world: World, rng: np.random.Generator) -> Points:
        """Without noise."""
        c = np.geomspace(1e18, 1e21, self.budgets)
        best = np.array([world.optimum(budget)[0] for budget in c])
        half = math.log(self.span) / 2
        if self.kind == "points":
            moved = rng.uniform(-self.off, self.off, self.budgets) * 2 * half
            log_n = (best + moved)[:, None] + np.linspace(-half, half, self.sizes)
            return made(world, log_n.ravel(), np.repeat(np.log(c), self.sizes))
        sizes = np.linspace(best[0] - half, best[-1] + half, self.sizes)
        if self.kind == "branches":
            log_n, log_c = np.repeat(sizes, self.budgets), np.tile(np.log(c), self.sizes)
            near = np.abs(log_n - np.tile(best, self.sizes)) < half + 0.3
            log_n, log_c = log_n[near], log_c[near]
            return made(world, log_n, log_c, trunk=np.array([f"{log_size:.6g}" for log_size in log_n], dtype=object))
        log_n = np.repeat(sizes, 60)
        log_c = np.tile(np.log(np.geomspace(5e17, 2e21, 60)), self.sizes)
        return made(world, log_n, log_c, run=np.array([f"{log_size:.6g}" for log_size in log_n], dtype=object))

    def draw(self, clean: Points, rng: np.random.Generator) -> Points:
        """A study with noise."""
        names, unit = np.unique(clean.trunk.astype(str), return_inverse=True)
        part = {"points": 0.0, "branches": 0.5, "curves": 1.0}[self.kind]
        shared, own = rng.standard_normal(len(names))[unit], rng.standard_normal(len(clean))
        return replace(clean, loss=clean.loss * np.exp(self.s * (part**0.5 * shared + (1 - part) ** 0.5 * own)))


def made(world: World, log_n: np.ndarray, log_c: np.ndarray, **labels: np.ndarray) -> Points:
    n, c = np.exp(log_n), np.exp(log_c)
    return Points(n, c / 6 / n, c, np.exp(world.log_loss(log_n, log_c)), **labels)


def truth(world: World, design: Design, middle: float, beyond: float) -> dict[str, float]:
    """The optimum itself, and the exponent of the line through the budgets' own optima."""
    c = np.geomspace(1e18, 1e21, max(design.budgets, 8) if design.kind == "curves" else design.budgets)
    log_n = [world.optimum(budget)[0] for budget in c]
    there, far = world.optimum(middle), world.optimum(beyond)
    return {
        "a": float(np.polyfit(np.log(c), log_n, 1)[0]),
        **{"N_opt": math.exp(there[0]), "L_opt": math.exp(there[1])},
        **{"N_opt beyond": math.exp(far[0]), "L_opt beyond": math.exp(far[1])},
    }


def coverage(worlds: Iterator[World], design: Design, studies: int, seed: int) -> dict[str, float]:
    """Of each quantity: the share of `studies` whose interval holds it, `given_`: that have one; of a and N_opt
    `width_`: the median width over that of one who knows the estimates' root mean square error; and `refused`."""
    rng = np.random.default_rng(seed)
    held: dict[str, list[bool]] = {name: [] for name in COVERED}
    off: dict[str, list[float]] = {"a": [], "N_opt": []}
    widths: dict[str, list[float]] = {"a": [], "N_opt": []}
    refused = 0
    middle = math.sqrt(1e18 * 1e21)
    for study in range(studies):
        world = next(worlds)
        points = design.draw(design.points(world, rng), rng)
        known = truth(world, design, middle, BEYOND * 1e21)
        try:
            result = fit_isoflop(points, six_nd(), n_replicates=REPLICATES, seed=study, at=[middle, BEYOND * 1e21])
        except InputError:
            refused += 1
            continue
        here, far = result.optima
        ends = {"a": result.a.interval, "N_opt": here.n_params.interval, "L_opt": here.loss.interval}
        ends |= {"N_opt beyond": far.n_params.interval, "L_opt beyond": far.loss.interval}
        for name, interval in ends.items():
            if interval is not None:
                held[name].append(interval[0] <= known[name] <= interval[1])
        if ends["a"] is not None and ends["N_opt"] is not None:
            off["a"].append((result.a.value or math.nan) - known["a"])
            off["N_opt"].append(math.log((here.n_params.value or math.nan) / known["N_opt"]))
            widths["a"].append(ends["a"][1] - ends["a"][0])
            widths["N_opt"].append(math.log(ends["N_opt"][1] / ends["N_opt"][0]))
    computed = {name: float(np.mean(hits)) if hits else math.nan for name, hits in held.items()}
    computed |= {f"given_{name}": len(hits) / studies for name, hits in held.items()}
    for name, values in off.items():
        root = math.sqrt(float(np.mean(np.square(values)))) if values else math.nan
        computed |= {f"width_{name}": float(np.median(widths[name])) / (2 * 1.96 * root) if values else math.nan}
        computed |= {f"bias_{name}": float(np.mean(values)) / root if values else math.nan}
    return computed | {"refused": refused / studies}


SURFACES = (World(), World(alpha=0.465, beta=0.155))
SHAPES = [
    *(Design("points", budgets, sizes, 0.003) for budgets, sizes in ((3, 5), (4, 5), (5, 7))),
    *(Design("branches", 6, 12, 0.003), Design("curves", 4, 8, 0.003), Design("curves", 4, 6, 0.003)),
    *(Design("points", 5, 7, 0.006), Design("curves", 4, 6, 0.006)),
]
KINDS = ("fitted", "interaction", "bend", "mistuned")
SPANS = [
    Design("points", budgets, sizes, 0.003, span, 0.25) for span in (10, 300) for sizes in (7, 14) for budgets in (5, 7)
]


def always(world: World) -> Iterator[World]:
    while True:
        yield world


def several(kind: str, seed: int) -> Iterator[World]:
    rng = np.random.default_rng([seed, 1])
    while True:
        yield drawn_world(kind, rng)


CELLS = [
    *((design, world, f"beta {world.beta:g}") for design in SHAPES for world in SURFACES),
    *((design, kind, kind) for design in SPANS for kind in KINDS),
]


def cell(number: int, studies: int) -> dict[str, float | str]:
    """`coverage` of one of CELLS."""
    design, world, name = CELLS[number]
    worlds = several(world, number) if isinstance(world, str) else always(world)
    return asdict(design) | {"world": name} | coverage(worlds, design, studies, number)


def shown(cells: list[dict[str, float | str]]) -> Iterator[str]:
    """A table in Markdown, and what is pooled."""
    table = pd.DataFrame(cells)
    table = table.drop(columns=["off", *(c for c in table if c.startswith("given_") and table[c].min() > 0.98)])
    yield f"| {' | '.join(table)} |\n|{'---|' * len(table.columns)}"
    for row in table.itertuples(index=False):
        yield f"| {' | '.join(f'{value:.3g}' if isinstance(value, float) else str(value) for value in row)} |"
    for name in COVERED:
        given = pd.DataFrame(cells)[f"given_{name}"]
        pooled = (table[name] * given).sum() / given.sum()
        yield f"{name}: pooled {pooled:.3f}, least {table[name].min():.3f}, most {table[name].max():.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.analysis.fits.isoflop_coverage")
    parser.add_argument("studies", type=int, nargs="?", default=200, help="of each cell (200)")
    parser.add_argument("--processes", type=int, default=1, help="that draw cells side by side (1)")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        computed = list(pool.map(cell, range(len(CELLS)), [options.studies] * len(CELLS)))
    first = len(SHAPES) * len(SURFACES)
    for part in (computed[:first], computed[first:]):
        print("\n".join(shown(part)))
