"""What a study that was designed otherwise will identify: linearised, at once, for `scaling plan`.

Worlds of the literature (no pilot), of the fitted form: an optimistic check. What it calls too little is too little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.design.precision import precision
from analysis.design.priors import literature
from analysis.design.proposal import CURVE_FROM, CURVE_ROWS, Layout
from analysis.design.worlds import Noise
from analysis.fits.cost import Cost
from analysis.fits.result import WIDE_A

WORLDS, SEED, NOISE = 24, 0, 0.005
Z = 1.96
MOST_SEEDS, MOST_TIMES = 16, 16.0  # what is looked for at the most


@dataclass(frozen=True)
class Run:
    """A planned run: its size's name, N, D, FLOP a token, its trunk, and whether it is a decayed branch."""

    size: str
    n_params: float
    n_tokens: float
    per_token: float
    trunk: str
    branch: bool


@dataclass(frozen=True)
class Expected:
    """`half_a`: half of the interval of N_opt's exponent, median over worlds; inf where the points allow no fit.
    remedy: what would bring it to `limit`, in words; "" where nothing is wrong or nothing tried helps."""

    half_a: float
    limit: float
    remedy: str

    @property
    def too_wide(self) -> bool:
        return not self.half_a <= self.limit


def expect(arch: str, runs: list[Run], vocab_size: int) -> Expected:
    """Of one architecture's runs. Decayed branches count where there are any, else whole curves."""
    branches = [run for run in runs if run.branch]
    runs = branches or runs
    half = _half(arch, runs, vocab_size)
    if half <= WIDE_A:
        return Expected(half, WIDE_A, "")
    return Expected(half, WIDE_A, _remedy(arch, runs, vocab_size, half))


def _half(arch: str, runs: list[Run], vocab_size: int) -> float:
    sizes = sorted({run.n_params for run in runs})
    if len(sizes) < 3:
        return float("inf")
    rows: list[tuple[float, float, int, str]] = []
    for i, run in enumerate(sorted(runs, key=lambda one: (one.n_params, one.trunk))):
        at = (
            [run.n_tokens] if run.branch else np.geomspace(CURVE_FROM * run.n_tokens, run.n_tokens, CURVE_ROWS).tolist()
        )
        rows += [(run.n_params, d, sizes.index(run.n_params), run.trunk if run.branch else f"{i}") for d in at]
    numbers = np.array([row[:3] for row in rows])
    trunk = np.array([row[3] for row in rows], dtype=object)
    layout = Layout(numbers[:, 0], numbers[:, 1], numbers[:, 2].astype(int), trunk, trunk, not runs[0].branch)
    if len({(n, d) for n, d, *_ in rows}) < 6 or len({d for _, d, *_ in rows}) < 3:
        return float("inf")
    per_token = {run.n_params: run.per_token for run in runs}
    cost = Cost(np.log(sizes), np.log([per_token[n] for n in sizes]), "exact")
    rng = np.random.default_rng(SEED)
    prior = literature(arch, vocab_size)
    worlds = [prior.draw(rng, ("fitted",)) for _ in range(WORLDS)]
    target = float((layout.n_tokens * cost.per_token(layout.n_params)).max())
    return Z * float(np.median(precision(layout, worlds, Noise(NOISE), cost, target).a))


def _remedy(arch: str, runs: list[Run], vocab_size: int, half: float) -> str:
    """More tokens for one size, or more seeds for all: the least of each that would do."""
    if not np.isfinite(half):
        return "train three sizes or more, and two lengths or whole curves of each"
    told = []
    found = None
    for name in dict.fromkeys(run.size for run in runs):

        def longer(times: float, name: str = name) -> float:
            changed = [
                Run(r.size, r.n_params, r.n_tokens * (times if r.size == name else 1), r.per_token, r.trunk, r.branch)
                for r in runs
            ]
            return _half(arch, changed, vocab_size)

        if longer(MOST_TIMES) <= WIDE_A:
            low, high = 1.0, MOST_TIMES
            for _ in range(5):
                middle = (low * high) ** 0.5
                low, high = (low, middle) if longer(middle) <= WIDE_A else (middle, high)
            if found is None or high < found[0]:
                found = high, name
    if found:
        told.append(f"{found[1]} needs {found[0]:.1f} times its tokens")
    seeds = int(np.ceil((half / WIDE_A) ** 2))
    if seeds <= MOST_SEEDS:
        told.append(f"every size needs {seeds} times its seeds")
    return ", or ".join(told)
