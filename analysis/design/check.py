"""What a study that was not made by `scaling design` will identify, linearised, for `scaling plan`.

The worlds are those of the literature (no pilot) and of the fitted form. Fits are bounded (a lies between 0 and 1, E
above 0), so wide intervals are narrower than this says (docs/research/designs.md). Imports no scipy: a plan stays
quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.design.precision import SMOOTHED, Layout, along, precision
from analysis.design.worlds import Noise, Prior, literature
from analysis.fits.cost import Cost

WORLDS, SEED = 24, 0
Z = 1.96
MOST_SEEDS, MOST_TIMES = 4, 16.0  # the largest remedies that are worth their cost
WIDE_A = 0.08  # half of the interval of a: more does not tell how to split 100 times the compute by a factor of 1.4


@dataclass(frozen=True)
class Run:
    """A planned run: its size's name, N, D, FLOP a token, its trunk, and whether its decayed end alone is fitted, as of
    a branch."""

    size: str
    n_params: float
    n_tokens: float
    per_token: float
    trunk: str
    branch: bool


@dataclass(frozen=True)
class Expected:
    """half_a: half of the interval of N_opt's exponent, median over worlds; inf where the points allow no fit. remedy:
    in words what would bring it to WIDE_A; "" where nothing is wrong, or nothing that was tried helps."""

    half_a: float
    remedy: str


def expect(
    runs: Sequence[Run],
    vocab_size: int,
    noise: Noise,
    window: float = 0.0,
    share: float = SMOOTHED,
    prior: Prior | None = None,
) -> Expected:
    """What the runs of an architecture will identify, in worlds of `prior`, by default of the literature. Where there
    are decayed ends they count, else whole curves, of points that are means over `share` of the tokens seen, or over
    `window` tokens where that is more."""
    runs = [run for run in runs if run.branch] or runs
    prior = prior or literature(vocab_size, middle_of(runs))

    def half(runs: Sequence[Run]) -> float:
        return _half(runs, prior, noise, window, share)

    now = half(runs)
    if now <= WIDE_A:
        return Expected(now, "")
    if math.isinf(now):
        return Expected(now, "train three sizes or more, and two lengths or whole curves of each")
    remedies = [
        (times, size) for size in dict.fromkeys(run.size for run in runs) if (times := _times(half, runs, size))
    ]
    texts = [f"{size} needs {times:.1f} times its tokens" for times, size in sorted(remedies)[:1]]
    seeds = math.ceil((now / WIDE_A) ** 2)
    texts += [f"every size needs {seeds} times its seeds"] if seeds <= MOST_SEEDS else []
    return Expected(now, ", or ".join(texts))


def middle_of(runs: Sequence[Run]) -> float:
    """The geometric middle of the sizes."""
    return float(np.exp(np.log(sorted({run.n_params for run in runs})).mean()))


def _half(runs: Sequence[Run], prior: Prior, noise: Noise, window: float, share: float) -> float:
    """Half of the interval of a that a fit would give, as the median over worlds; inf where the points allow none."""
    sizes = {run.n_params: run.per_token for run in sorted(runs, key=lambda run: run.n_params)}
    order = sorted(runs, key=lambda run: (run.n_params, run.trunk, run.n_tokens))
    tokens = [np.array([run.n_tokens]) if run.branch else along(run.n_tokens, window, share) for run in order]
    times = [len(at) for at in tokens]
    n, d = np.repeat([run.n_params for run in order], times), np.concatenate(tokens)
    if len(sizes) < 3 or len({*zip(n.tolist(), d.tolist(), strict=True)}) < 6 or len({*d.tolist()}) < 3:
        return math.inf
    _, trunk = np.unique(np.repeat([run.trunk for run in order], times), return_inverse=True)
    means = np.maximum(window, share * d) if noise.text else None
    layout = Layout(n, d, np.searchsorted([*sizes], n), trunk, window=means)
    cost = Cost(np.log([*sizes]), np.log([*sizes.values()]), "exact")
    rng = np.random.default_rng(SEED)
    worlds = [prior.draw(rng, ("fitted",)) for _ in range(WORLDS)]
    target = float((d * cost.per_token(n)).max())
    return Z * float(np.median(precision(layout, worlds, noise, cost, target).a))


def _times(half: Callable[[Sequence[Run]], float], runs: Sequence[Run], size: str) -> float | None:
    """The fewest more tokens for one size that bring the interval to its limit; None: not within MOST_TIMES."""

    def longer(times: float) -> float:
        return half([replace(run, n_tokens=run.n_tokens * (times if run.size == size else 1)) for run in runs])

    if longer(MOST_TIMES) > WIDE_A:
        return None
    low, high = 1.0, MOST_TIMES
    for _ in range(5):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if longer(middle) <= WIDE_A else (middle, high)
    return high
