"""What a study that was not made by `scaling design` will identify, linearised, for `scaling plan`.

The worlds are those of the literature (no pilot) and of the fitted form. Fits are bounded (a lies between 0 and 1, E
above 0), so wide intervals are narrower than this says (docs/research/designs.md). Imports no scipy: a plan stays
quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.design.layout import Layout, along
from analysis.design.precision import precision
from analysis.design.worlds import Noise, World, literature
from analysis.fits.cost import Cost

WORLDS, SEED = 24, 0
Z = 1.96
MOST_SEEDS, MOST_TIMES = 16, 16.0  # the largest remedies that are searched
WIDE_A = 0.08  # half of the interval of a: more does not tell how to split 100 times the compute by a factor of 1.4


@dataclass(frozen=True)
class Run:
    """A planned run: its size's name, N, D, FLOP a token, its trunk, whether it is a decayed branch, and its seed."""

    size: str
    n_params: float
    n_tokens: float
    per_token: float
    trunk: str
    branch: bool
    seed: int = 0


@dataclass(frozen=True)
class Reading:
    """How curves are read: the noise of their runs, and over which tokens each point is a mean: over `share` of the
    tokens seen, or over `tokens` where that is more; tokens is None for held-out losses."""

    noise: Noise
    tokens: float | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Expected:
    """half_a: half of the interval of N_opt's exponent, median over worlds; inf where the points allow no fit. remedy:
    in words what would bring it to `limit`; "" where nothing is wrong, or nothing that was tried helps."""

    half_a: float
    limit: float
    remedy: str

    @property
    def too_wide(self) -> bool:
        return not self.half_a <= self.limit


def expect(arch: str, runs: list[Run], vocab_size: int, reading: Reading) -> Expected:
    """What the runs of an architecture will identify. Where there are decayed branches they count, else whole
    curves."""
    branches = [run for run in runs if run.branch]
    runs = branches or runs
    study = _study(arch, runs, vocab_size, reading)
    half = float("inf") if study is None else _line(*study, reading.noise)
    return Expected(half, WIDE_A, "" if half <= WIDE_A else _remedy(arch, runs, vocab_size, reading, half))


def _line(layout: Layout, worlds: Sequence[World], cost: Cost, noise: Noise) -> float:
    """Half of the interval of a that a fit would give, as the median over worlds."""
    target = float((layout.n_tokens * cost.per_token(layout.n_params)).max())
    return Z * float(np.median(precision(layout, worlds, noise, cost, target).a))


def _study(arch: str, runs: list[Run], vocab_size: int, reading: Reading) -> tuple[Layout, list[World], Cost] | None:
    """The runs' points, worlds and cost; None where they allow no fit."""
    sizes = sorted({run.n_params for run in runs})
    if len(sizes) < 3:
        return None
    rows: list[tuple[float, float, int, str, str]] = []
    for i, run in enumerate(sorted(runs, key=lambda run: (run.n_params, run.trunk))):
        at = [run.n_tokens] if run.branch else along(run.n_tokens, reading.tokens or 0.0, reading.share).tolist()
        label = run.trunk if run.branch else f"{i}"
        rows += [(run.n_params, d, sizes.index(run.n_params), label, f"{run.seed}") for d in at]
    if len({row[:2] for row in rows}) < 6 or len({row[1] for row in rows}) < 3:
        return None
    numbers = np.array([row[:3] for row in rows])
    n, d, size = numbers[:, 0], numbers[:, 1], numbers[:, 2].astype(int)
    trunk, text = (np.array([row[k] for row in rows], dtype=object) for k in (3, 4))
    curves = not runs[0].branch
    run_of = trunk if curves else np.array([f"{i}" for i in range(len(rows))], dtype=object)
    window = None if not curves or reading.tokens is None else np.maximum(reading.tokens, reading.share * d)
    layout = Layout(n, d, size, trunk, run_of, curves, text, None, window)
    per_token = {run.n_params: run.per_token for run in runs}
    cost = Cost(np.log(sizes), np.log([per_token[n_params] for n_params in sizes]), "exact")
    rng = np.random.default_rng(SEED)
    prior = literature(arch, vocab_size, float(np.exp(np.log(sizes).mean())))
    return layout, [prior.draw(rng, ("fitted",)) for _ in range(WORLDS)], cost


def _remedy(arch: str, runs: list[Run], vocab_size: int, reading: Reading, half: float) -> str:
    """In words: the fewest more tokens for one size, or seeds for all sizes, that bring the interval to its limit."""
    if not np.isfinite(half):
        return "train three sizes or more, and two lengths or whole curves of each"
    remedies = []
    best = None
    for name in dict.fromkeys(run.size for run in runs):

        def longer(times: float, name: str = name) -> float:
            changed = [replace(r, n_tokens=r.n_tokens * (times if r.size == name else 1)) for r in runs]
            study = _study(arch, changed, vocab_size, reading)
            return float("inf") if study is None else _line(*study, reading.noise)

        if longer(MOST_TIMES) <= WIDE_A:
            low, high = 1.0, MOST_TIMES
            for _ in range(5):
                middle = (low * high) ** 0.5
                low, high = (low, middle) if longer(middle) <= WIDE_A else (middle, high)
            if best is None or high < best[0]:
                best = high, name
    if best:
        remedies.append(f"{best[1]} needs {best[0]:.1f} times its tokens")
    seeds = int(np.ceil((half / WIDE_A) ** 2))
    if seeds <= MOST_SEEDS:
        remedies.append(f"every size needs {seeds} times its seeds")
    return ", or ".join(remedies)
