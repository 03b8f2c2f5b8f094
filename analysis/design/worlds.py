"""Synthetic worlds: a known loss surface, most of them not of the form that is fitted, and the noise of its runs; and
how worlds are drawn before anything was trained, from the laws of the literature.

Exponents are those of published laws, with a wider spread than these state. Levels are those of losses: with a
vocabulary of bytes those of the project's trial study (docs/research/verdicts.md), with a vocabulary of sub-words those
of the law itself, less what it overstates at small sizes. A pilot study gives a better prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.cost import Cost, six_nd
from analysis.fits.surface import PARAMS, Surface
from scaling.study.rate_law import ArchLaw

MIDDLE_N, MIDDLE_D = 3e6, 3e7  # about which the terms of a world are scaled
KINDS = ("fitted", "interaction", "exponents", "mistuned", "saturating")
EXTRA = {"interaction": (0.6, 0.9), "exponents": (0.05, 0.25), "mistuned": (0.005, 0.03), "saturating": (0.02, 0.15)}
SEED_NOISE = 0.005  # of log loss, where it was not measured
# Of a size's curve beside the surface that is fitted to all, an e-fold of tokens: 0.7 to 1.8% in four fits of the
# quickstart, 1.2% their root mean square (docs/research/designs.md).
BEND = 0.012
# Nats a token, less what a bigram model says of each batch (docs/research/designs.md): 5.4 without that.
TEXT = 3.5
GRID = 2001  # sizes among which an optimum is looked for, before a parabola through the best three
LOG_N = np.linspace(6, 30, GRID)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log loss. seed: of a run; bend: of how much faster or slower than the surface the log
    loss of a size falls with an e-fold of tokens, the same for all its seeds; text: of a token's training loss, in
    nats, so that the mean over the n tokens of a point has text / sqrt(n), 0 for held-out losses. laws: of learning
    rates, where they are known before the study."""

    seed: float = SEED_NOISE
    bend: float = 0.0
    text: float = 0.0
    laws: tuple[ArchLaw, ...] = ()


@dataclass(frozen=True)
class World:
    """L = E + joined terms of N and D. kind: `fitted`; `interaction`, joined as (a^(1/r) + b^(1/r))^r; `exponents`, the
    exponent of N differs below and above MIDDLE_N; `mistuned`, every size loses a share of its own by its rate;
    `saturating`, small sizes stop learning at a loss of their own. a and b: the terms at MIDDLE_N and MIDDLE_D."""

    kind: str
    e: float
    alpha: float
    beta: float
    a: float
    b: float
    extra: float
    seed: int = 0

    @property
    def surface(self) -> Surface:
        """The surface of the fitted form, without what this world has beside it."""
        return Surface(self.e, self.a * MIDDLE_N**self.alpha, self.b * MIDDLE_D**self.beta, self.alpha, self.beta)

    def loss(self, n_params: np.ndarray | float, n_tokens: np.ndarray | float) -> np.ndarray:
        """The loss where every size has its best rate."""
        log_n = np.log(np.asarray(n_params, dtype=float) / MIDDLE_N)
        log_d = np.log(np.asarray(n_tokens, dtype=float) / MIDDLE_D)
        term_n, term_d = self.a * np.exp(-self.alpha * log_n), self.b * np.exp(-self.beta * log_d)
        if self.kind == "interaction":
            r = self.extra
            return np.asarray(self.e + (term_n ** (1 / r) + term_d ** (1 / r)) ** r)
        if self.kind == "exponents":  # a smooth bend of the term of N
            term_n = self.a * np.exp(-self.alpha * log_n - self.extra * (np.logaddexp(0, log_n) - math.log(2)))
        if self.kind == "saturating":  # a floor that only small sizes feel
            floor = self.e + term_n * (1 + self.extra * np.exp(-log_n))
            return np.asarray((floor**12 + (self.e + term_n + term_d) ** 12) ** (1 / 12))
        return np.asarray(self.e + term_n + term_d)

    def off(self, n_sizes: int) -> np.ndarray:
        """[sizes]: the log loss lost to wrong rates."""
        if self.kind != "mistuned":
            return np.zeros(n_sizes)
        return self.extra * np.random.default_rng(self.seed).exponential(1.0, n_sizes)

    def log_n_opt(self, log_c: np.ndarray | float, cost: Cost | None = None) -> np.ndarray:
        """log N of the lowest loss at C [k] FLOP under `cost` (default: 6 N D), by a grid and a parabola."""
        a_token = (cost or six_nd()).log_per_token(LOG_N)
        log_c = np.asarray(log_c, dtype=float)
        loss = np.log(self.loss(np.exp(LOG_N), np.exp(log_c[..., None] - a_token)))
        at = np.clip(loss.argmin(-1), 1, GRID - 2)
        low, mid, high = (np.take_along_axis(loss, (at + k)[..., None], -1)[..., 0] for k in (-1, 0, 1))
        bent = low - 2 * mid + high
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where(bent > 0, (low - high) / (2 * bent), 0.0)
        return np.asarray(LOG_N[at] + np.clip(shift, -1, 1) * (LOG_N[1] - LOG_N[0]))

    def log_l_at(self, log_n: np.ndarray | float, log_c: np.ndarray | float, cost: Cost | None = None) -> np.ndarray:
        """log of the loss at log N and C."""
        a_token = (cost or six_nd()).log_per_token(np.asarray(log_n))
        return np.asarray(np.log(self.loss(np.exp(log_n), np.exp(log_c - a_token))))


@dataclass(frozen=True)
class Scenario:
    """Where proposals are judged: in these worlds, with this noise of their runs, at C = `target` FLOP under `cost`."""

    worlds: Sequence[World]
    noise: Noise
    cost: Cost
    target: float

    def first(self, number: int) -> Scenario:
        """The same scenario with only the first worlds."""
        return replace(self, worlds=self.worlds[:number])


def paths(rng: np.random.Generator, x: np.ndarray, memory: float) -> np.ndarray:
    """[len(x)]: noise of standard deviation 1 at rising x, correlated as exp(-distance / memory)."""
    kept = np.exp(-np.diff(x) / memory)
    draws = rng.standard_normal(len(x))
    path = np.empty(len(x))
    path[0] = draws[0]
    for i, share in enumerate(kept):
        path[i + 1] = share * path[i] + math.sqrt(1 - share**2) * draws[i + 1]
    return path


# Exponents of N_opt. Hoffmann et al. 2022 (approach 3), Besiroglu et al. 2024 (its points again), Porian et al. 2024
# (in agreement with Hoffmann's one half), Shen et al. 2024 (table 3: a / (a + b) of all its architectures, 0.58 to
# 0.59).
PUBLISHED = (0.452, 0.512, 0.50, 0.585)
SUM = (0.55, 0.80)  # of alpha and beta: 0.62 Hoffmann, 0.71 Besiroglu
SPREAD = 0.04  # of a, beside that of the laws
BYTES = 300  # a vocabulary of so many words or fewer is of bytes
# Of bytes, below this many parameters (geometric middle of the sizes), no fit of ours saw a floor of the loss: E was 0
# in 6 of 6 studies of 6k to 61k parameters, alpha and beta as below (docs/research/designs.md); terms at TINY_N and
# TINY_D.
TINY, TINY_N, TINY_D = 6e4, 2e4, 1e6
TINY_EXPONENTS, TINY_LEVEL, TINY_SHARE = ((0.06, 0.18), (0.2, 0.4)), (2.0, 2.2), (0.35, 0.75)  # share: of the N term
LEVELS = {"bytes": ((0.6, 1.0), (0.1, 0.3)), "words": ((1.6, 2.2), (0.8, 2.4))}  # E; terms at MIDDLE_N, MIDDLE_D
FORMS = (0.5, 0.125, 0.125, 0.125, 0.125)  # how often each of KINDS is drawn


@dataclass(frozen=True)
class Prior:
    """A distribution of worlds. source: in words; vocabulary: a key of LEVELS; surfaces: of a pilot's replicates, None
    for the literature's; tiny: for sizes at which no floor of the loss is seen."""

    source: str
    vocabulary: str = "bytes"
    surfaces: Surface | None = None
    tiny: bool = False

    def draw(self, rng: np.random.Generator, kinds: Sequence[str] | None = None) -> World:
        """A world: of a kind among `kinds` where given, else with the frequencies FORMS."""
        kind = str(rng.choice(kinds) if kinds else rng.choice(KINDS, p=FORMS))
        extra = float(rng.uniform(*EXTRA[kind])) if kind in EXTRA else 0.0
        if self.surfaces is not None:
            surface = self.surfaces.take(int(rng.integers(len(self.surfaces)))).to_dict()
            e, alpha, beta = surface["E"], surface["alpha"], surface["beta"]
            a, b = surface["A"] * MIDDLE_N**-alpha, surface["B"] * MIDDLE_D**-beta
        elif self.tiny:
            alpha, beta = (rng.uniform(*ends) for ends in TINY_EXPONENTS)
            e, level, part = 0.0, rng.uniform(*TINY_LEVEL), rng.uniform(*TINY_SHARE)
            a = level * part * (MIDDLE_N / TINY_N) ** -alpha
            b = level * (1 - part) * (MIDDLE_D / TINY_D) ** -beta
        else:
            share = float(np.clip(rng.choice(PUBLISHED) + SPREAD * rng.standard_normal(), 0.3, 0.7))
            total = rng.uniform(*SUM)
            alpha, beta = (1 - share) * total, share * total
            (low, high), terms = LEVELS[self.vocabulary]
            e, (a, b) = rng.uniform(low, high), rng.uniform(*terms, 2)
        return World(kind, float(e), float(alpha), float(beta), float(a), float(b), extra, int(rng.integers(1 << 30)))


def pooled(priors: Sequence[Prior]) -> Prior | None:
    """One prior of all surfaces, for another architecture than theirs; None where there are none."""
    surfaces = [prior.surfaces for prior in priors if prior.surfaces is not None]
    if not surfaces:
        return None
    together = Surface(*(np.concatenate([getattr(each, name) for each in surfaces]) for name in PARAMS))
    return Prior("the surfaces of the other architectures", surfaces=together)


def literature(vocab_size: int, middle: float = np.inf) -> Prior:
    """The prior from the literature alone, the same for every architecture. middle: of the sizes [parameters], where
    they are known."""
    words = "bytes" if vocab_size <= BYTES else "words"
    if words == "bytes" and middle < TINY:
        return Prior("studies of as few parameters, in which no floor of the loss was seen", tiny=True)
    return Prior(f"laws of the literature, wide; losses at a vocabulary of {words}", words)
