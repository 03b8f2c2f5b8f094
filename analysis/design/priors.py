"""Surfaces L(N, D) that an architecture may have before anything of it is trained, drawn from stated ranges.

Only relative sizes matter: noise is of log loss, and neither a law's exponents nor N_opt know the unit of L. So E is 1,
and the terms of N and D are shares of it at a point where somebody measured them:

- `bytes`: at N = 3e6, D = 3e7, shares of 0.1 to 0.5 each, as byte-level models of that size have on books;
- `subwords`: at N = 1e8, D = 2e9, where the constants of Hoffmann et al. 2022 give 0.46 and 0.60 of E, and those of
  Besiroglu et al. 2024 0.44 and 0.46: 0.25 to 0.8.

The exponent a of N_opt under C = 6 N D has a normal prior about a mean by kind of architecture; alpha + beta is uniform
between 0.5 and 0.9 (0.62 and 0.71 in those two papers). The means for architectures other than transformers are
second-hand, so the spread is wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.parametric.surface import Surface
from arch.presets import preset
from arch.sizes import SIZES
from flops.registry import entry_of

SOFTMAX, LINEAR = "softmax", "linear"
MEAN_A = {SOFTMAX: 0.46, LINEAR: 0.55}
SPREAD_A = 0.06
LEAST_A, MOST_A = 0.3, 0.7
SUM = (0.5, 0.9)  # alpha + beta


@dataclass(frozen=True)
class Anchor:
    """Where the terms' shares of E are stated: N, D, and the range of the shares (log-uniform)."""

    n_params: float
    n_tokens: float
    shares: tuple[float, float]


ANCHORS = {"bytes": Anchor(3e6, 3e7, (0.1, 0.5)), "subwords": Anchor(1e8, 2e9, (0.25, 0.8))}


def kind_of(arch: str) -> str:
    """`softmax`, where what is kept of a text grows with its length, or `linear`: by it the prior of a is chosen."""
    state = entry_of(arch).state
    cfg = preset(arch, SIZES[0])
    return SOFTMAX if state is not None and state(cfg, 2) != state(cfg, 1) else LINEAR


def draw(arch: str, anchor: str, count: int, rng: np.random.Generator) -> Surface:
    """`count` surfaces (arrays [count]) of `arch`; anchor: a name of ANCHORS."""
    at = ANCHORS[anchor]
    a = np.clip(rng.normal(MEAN_A[kind_of(arch)], SPREAD_A, count), LEAST_A, MOST_A)
    both = rng.uniform(*SUM, count)
    alpha, beta = (1 - a) * both, a * both
    low, high = np.log(at.shares)
    share_n, share_d = np.exp(rng.uniform(low, high, (2, count)))
    return Surface(np.ones(count), share_n * at.n_params**alpha, share_d * at.n_tokens**beta, alpha, beta)
