"""Synthetic worlds with a known continuous law, studies drawn from them, and how often the fits cover it.

A world is a loss surface L(N, D) with C = 6 N D. A study trains a ladder of sizes in it, each run's log loss moved by
seed noise; its fits are the product's own (`envelope_laws`). The truth is the optimum over all N, not over the ladder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize

from analysis.design.worlds import paths
from analysis.fits.crossings import crossed, find_crossings, fit_line
from analysis.fits.envelope import Curves, envelope_laws, extract
from analysis.fits.fit import EnvelopePart, Law
from analysis.fits.noise import Group, SeedNoise, pool_seed_noise
from analysis.fits.seeds import SizeCurve
from analysis.fits.settings import FitSettings

N0, D0, SMALLEST, WARMUP = 1.2e5, 2e6, 14e3, 20_480
SETTINGS = FitSettings(grid_points=40, n_replicates=400, level=0.95)
NOISE_STEP = 0.05  # log C between the points at which seeds are compared
Z95 = 1.959964


@dataclass(frozen=True)
class World:
    """L = E + (A^(1/r) + B^(1/r))^r, A = (N / N0)^-p, B = (D / D0)^-q; r = 1: no interaction of N and D. `mistuned`:
    log loss that a size a factor of 10 from the middle of the ladder loses by a wrong rate, growing as the square."""

    irreducible: float = 0.0
    p: float = 0.3
    q: float = 0.3
    interaction: float = 1.0
    mistuned: float = 0.0

    def loss(self, n_params: float, n_tokens: np.ndarray | float) -> np.ndarray:
        r = self.interaction
        a, b = (n_params / N0) ** -self.p, (np.asarray(n_tokens) / D0) ** -self.q
        return np.asarray(self.irreducible + (a ** (1 / r) + b ** (1 / r)) ** r)

    def log_n_opt(self, log_c: float) -> float:
        def loss(log_n: float) -> float:
            return float(self.loss(math.exp(log_n), math.exp(log_c - log_n) / 6))

        return float(optimize.minimize_scalar(loss, bounds=(0, 40), method="bounded", options={"xatol": 1e-10}).x)

    def log_l_opt(self, log_c: float) -> float:
        n = math.exp(self.log_n_opt(log_c))
        return math.log(float(self.loss(n, math.exp(log_c) / 6 / n)))

    def log_c_where(self, n_opt: float) -> float:
        return float(optimize.brentq(lambda x: self.log_n_opt(x) - math.log(n_opt), 10, 60))


@dataclass(frozen=True)
class Ladder:
    """`n_sizes`, each `ratio` times the last, or those `given`; all trained to the compute at which the largest is
    optimal, or to the end of `stretch` [FLOP], the range of the fit. The third has three seeds. Noise: standard
    deviation `s` of log loss between seeds, of the curve as a whole, or with `memory` (of log C) wandering along it;
    `shared`: of log loss, the same for all runs.
    """

    n_sizes: int
    s: float
    ratio: float = 2.0
    memory: float = math.inf
    shared: float = 0.0
    given: tuple[float, ...] = ()
    stretch: tuple[float, float] | None = None

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.given or SMALLEST * self.ratio ** np.arange(self.n_sizes))

    @property
    def n_seeds(self) -> np.ndarray:
        return np.asarray([3 if rank == 2 else 1 for rank in range(self.n_sizes)])


@dataclass(frozen=True)
class Setting:
    """A world, a ladder in it, and the true laws that its studies should find."""

    world: World
    ladder: Ladder
    curves: tuple[SizeCurve, ...]
    stretch: tuple[float, float]  # FLOP
    a: float
    middle: tuple[float, float, float]  # log C, log N_opt, log L_opt in the middle of the range
    beyond: tuple[float, float, float]  # the same at ten times its end
    oracle_width: float

    @classmethod
    def of(cls, world: World, ladder: Ladder) -> Setting:
        sizes = ladder.sizes
        if ladder.stretch is None:
            first, last = world.log_c_where(sizes[0]), world.log_c_where(sizes[-1])
        else:
            first, last = (math.log(c) for c in ladder.stretch)
        curves = []
        off = np.log10(sizes) - np.log10(sizes).mean()
        for rank, n in enumerate(sizes):
            tokens = np.geomspace(WARMUP, math.exp(last) / 6 / n, 160)
            log_loss = np.log(world.loss(n, tokens)) + world.mistuned * off[rank] ** 2
            curves.append(
                SizeCurve(
                    f"{n:.0f}", round(n), 6.0 * n, WARMUP, int(ladder.n_seeds[rank]), np.log(6 * n * tokens), log_loss
                )
            )
        middle, beyond = (first + last) / 2, last + math.log(10)
        a = (world.log_n_opt(last) - world.log_n_opt(first)) / (last - first)
        true = [(x, world.log_n_opt(x), world.log_l_opt(x)) for x in (middle, beyond)]
        clean = crossed(find_crossings(curves, (first, last)))
        noise = SeedNoise(ladder.s, 8, correlation=math.exp(-1 / ladder.memory))
        line = fit_line(clean, [crossing.middle("n_params") for crossing in clean], noise, 0.95)
        assert line is not None
        width = 2 * Z95 * ladder.s * math.sqrt(line.covariance[1][1]) / line.slope**2
        return cls(world, ladder, tuple(curves), (math.exp(first), math.exp(last)), a, *true, width)

    def draw(self, rng: np.random.Generator) -> tuple[list[SizeCurve], SeedNoise]:
        """One study: its curves, and the noise as it would measure it."""
        ladder, moved = self.ladder, []
        shared = ladder.shared * rng.standard_normal()
        for curve in self.curves:
            noise = paths(rng, curve.log_c, ladder.memory) * ladder.s / math.sqrt(curve.n_seeds) + shared
            moved.append(replace(curve, log_loss=curve.log_loss + noise))
        return moved, self.measure(rng)

    def measure(self, rng: np.random.Generator) -> SeedNoise:
        """The noise as a study of four architectures measures it, on three seeds of the third size of each."""
        curve = self.curves[2]
        at = np.arange(curve.log_c[0], curve.log_c[-1], NOISE_STEP)
        seeds = [
            Group(arch, curve.size, self.ladder.s * np.stack([paths(rng, at, self.ladder.memory) for _ in range(3)]))
            for arch in "abcd"
        ]
        noise = pool_seed_noise(seeds, NOISE_STEP)
        assert noise is not None
        return noise


@dataclass(frozen=True)
class Coverage:
    """Shares of `studies` whose 95% interval covers the continuous law; a study without an interval covers (all reals)
    and does not count as identified. `width`: median of the identified ones' intervals of a, over the oracle's, who
    knows the noise and where the curves cross without it."""

    studies: int
    identified: float
    a: float
    n_opt: float
    n_opt_beyond: float
    d_opt_beyond: float
    loss: float
    width: float
    curved: float


def coverage(setting: Setting, studies: int, seed: int = 0) -> Coverage:
    """How often the fits of `studies` studies cover the truth of `setting`."""
    rng = np.random.default_rng(seed)
    hits = dict.fromkeys(("identified", "a", "n_opt", "n_opt_beyond", "d_opt_beyond", "loss", "curved"), 0)
    widths = []
    for study in range(studies):
        curves, noise = setting.draw(rng)
        (n_opt, d_opt, loss), _ = envelope_laws(Curves(curves, setting.stretch, noise), SETTINGS, [study])
        hits["curved"] += loss.curved
        hits["loss"] += loss.band is None or within(setting.middle[2], band_at(loss, setting.middle[0]))
        if not n_opt.identified:
            for key in ("a", "n_opt", "n_opt_beyond", "d_opt_beyond"):
                hits[key] += 1
            continue
        hits["identified"] += 1
        interval = n_opt.exponent.interval
        assert interval is not None
        widths.append(interval[1] - interval[0])
        hits["a"] += within(setting.a, interval)
        hits["n_opt"] += within(setting.middle[1], log_interval(n_opt, setting.middle[0]))
        x, y, _ = setting.beyond
        hits["n_opt_beyond"] += within(y, log_interval(n_opt, x))
        hits["d_opt_beyond"] += within(x - y - math.log(6), log_interval(d_opt, x))
    shares = {key: count / studies for key, count in hits.items()}
    width = float(np.median(widths)) / setting.oracle_width if widths else math.nan
    return Coverage(studies=studies, width=width, **shares)


def laws_of(setting: Setting, noise: SeedNoise | None) -> tuple[dict[str, Law], EnvelopePart]:
    """Of the curves without noise, with intervals by `noise`."""
    laws, part = envelope_laws(Curves(setting.curves, setting.stretch, noise), SETTINGS, [0])
    return {law.quantity: law for law in laws}, part


def within(value: float, interval: Any) -> bool:
    """Whether an interval covers a value; a missing one covers everything."""
    return interval is None or interval[0] <= value <= interval[1]


def log_interval(law: Law, x: float) -> tuple[float, float] | None:
    """Of a law through crossings at log C = x, in log."""
    assert law.line is not None
    return law.line.log_interval(x)


def band_at(law: Law, x: float) -> list[float]:
    """The law's band at log C = x, in log, within its range."""
    assert law.band is not None
    return [float(np.interp(x, np.log(law.band.c), np.log(side))) for side in (law.band.low, law.band.high)]


def oracle_power(null: Setting, setting: Setting, df: int | None = None, studies: int = 40_000) -> float:
    """The power against `setting`, in a one-sided test of 5%, of one who knows how the envelope's quadratic term is
    distributed in the world `null` at this noise; with `df` only for a known noise, which has to be measured first."""
    rng = np.random.default_rng(0)
    log_c = np.linspace(*np.log(setting.stretch), SETTINGS.grid_points)
    shifts = rng.standard_normal((studies, setting.ladder.n_sizes)) * setting.ladder.s / np.sqrt(setting.ladder.n_seeds)
    still = extract(null.curves, log_c).log_loss
    terms = [
        quadratic_terms(log_c, extract(case.curves, log_c, shifts).log_loss) - quadratic_terms(log_c, still)
        for case in (null, setting)
    ]
    if df is not None:
        terms = [term / np.sqrt(rng.chisquare(df, studies) / df) for term in terms]
    return float((terms[1] > np.quantile(terms[0], 0.95)).mean())


def quadratic_terms(log_c: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """[r]: of the least-squares parabolas through log_loss [r, g]."""
    x = log_c - log_c.mean()
    return np.asarray(log_loss @ np.linalg.pinv(np.stack([np.ones_like(x), x, x**2], 1))[2])
