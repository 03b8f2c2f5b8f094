"""IsoFLOP studies drawn from a known surface: end points on a grid of budgets, whole curves, branches of trunks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.cost import six_nd
from analysis.fits.isoflop.fit import IsoFlop, isoflop
from analysis.fits.isoflop.laws import interval
from analysis.fits.points import Points
from arch.errors import InputError

LEVEL, REPLICATES = 0.95, 199
MIDDLE, BEYOND = 10**19.5, 1e22


@dataclass(frozen=True)
class Surface:
    """L = E + A / N^alpha + B / D^beta; its optimum under C = 6 N D in closed form."""

    alpha: float = 0.34
    beta: float = 0.28
    e: float = 1.69
    a: float = 406.4
    b: float = 410.7

    def __call__(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.e + self.a * n_params**-self.alpha + self.b * n_tokens**-self.beta)

    @property
    def exponent(self) -> float:
        return self.beta / (self.alpha + self.beta)

    def n_opt(self, c: np.ndarray | float) -> np.ndarray:
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        return np.asarray(ratio * (np.asarray(c) / 6) ** self.exponent)

    def l_opt(self, c: float) -> float:
        return float(self(self.n_opt(c), c / 6 / self.n_opt(c)))


@dataclass(frozen=True)
class Design:
    """`budgets` from 1e18 to 1e21 FLOP, at each `sizes` whose N spans a factor of `wide` about the optimum, shifted by
    `drift` in log N from the first budget to the last. kind: `points`, one run each; `branches`, the same sizes at all
    budgets, one trunk a size, half of the noise's variance the trunk's; `curves`, whole curves of the same sizes with
    equal tokens."""

    kind: str
    budgets: int
    sizes: int
    s: float
    wide: float = 16.0
    drift: float = 0.0

    def points(self, surface: Surface) -> Points:
        """Without noise."""
        c = np.geomspace(1e18, 1e21, self.budgets)
        if self.kind == "points":
            steps = np.geomspace(self.wide**-0.5, self.wide**0.5, self.sizes)
            n = surface.n_opt(c)[:, None] * steps * np.exp(np.linspace(-0.5, 0.5, self.budgets) * self.drift)[:, None]
            flops = np.repeat(c, self.sizes)
            return made(surface, n.ravel(), flops)
        low, high = surface.n_opt(c[0]) / self.wide**0.5, surface.n_opt(c[-1]) * self.wide**0.5
        sizes = np.geomspace(low, high, self.sizes)
        if self.kind == "branches":
            n, flops = np.repeat(sizes, self.budgets), np.tile(c, self.sizes)
            near = np.abs(np.log(n / surface.n_opt(flops))) < np.log(self.wide) / 2 + 0.3
            n, flops = n[near], flops[near]
            return made(surface, n, flops, trunk=np.array([f"{one:.6g}" for one in n], dtype=object))
        n = np.repeat(sizes, 60)
        flops = (np.geomspace(5e17, 2e21, 60)[None] * np.ones((self.sizes, 1))).ravel()
        run = np.array([f"{one:.6g}" for one in n], dtype=object)
        return made(surface, n, flops, run=run)

    def draw(self, clean: Points, rng: np.random.Generator) -> np.ndarray:
        """Losses of one study."""
        names, unit = np.unique(clean.trunk.astype(str), return_inverse=True)
        shared = rng.standard_normal(len(names))[unit]
        own = rng.standard_normal(len(clean))
        part = {"points": 0.0, "branches": 0.5, "curves": 1.0}[self.kind]
        return np.asarray(clean.loss * np.exp(self.s * (part**0.5 * shared + (1 - part) ** 0.5 * own)))


def made(surface: Surface, n: np.ndarray, flops: np.ndarray, **labels: np.ndarray) -> Points:
    return Points(n, flops / 6 / n, flops, surface(n, flops / 6 / n), **labels)


COVERED = ("a", "n_opt", "n_opt_beyond", "l_opt")


@dataclass(frozen=True)
class Coverage:
    """Shares of studies whose interval covers: a, and N_opt in the middle and at ten times the last budget, L_opt at
    the latter; a study without an interval covers and is not `identified`. `own_a`: without a surface, of what the fit
    itself finds without noise. width: median of the intervals of a, over 2 x 1.96 standard deviations of the studies'
    own estimates; refused: studies with fewer than three minima."""

    a: float
    n_opt: float
    n_opt_beyond: float
    l_opt: float
    own_a: float
    identified: float
    refused: float
    width: float


def coverage(surface: Surface, design: Design, studies: int, seed: int = 0, variant: str = "parabola") -> Coverage:
    """How often the intervals of `studies` studies cover: with the surface known, the surface's own optimum."""
    clean = design.points(surface)
    plain = isoflop(clean, six_nd(), variant, n_replicates=0).lines["N_opt"].slope[0]
    rng = np.random.default_rng(seed)
    hits = dict.fromkeys((*COVERED, "own_a", "identified", "refused"), 0)
    estimates, widths = [], []
    for study in range(studies):
        points = replace(clean, loss=design.draw(clean, rng))
        try:
            fits: list[IsoFlop] = [
                isoflop(points, six_nd(), variant, surface=one, known=True, n_replicates=REPLICATES, seed=study)
                for one in (surface, None)
            ]
        except InputError:
            hits = {name: count + (name != "identified") for name, count in hits.items()}
            continue
        assert fits[0].corrected is not None
        slope = fits[0].corrected["N_opt"].slope
        found = interval(slope[1:], LEVEL)
        estimates.append(slope[0])
        if found is not None:
            hits["identified"] += 1
            widths.append(found[1] - found[0])
        hits["a"] += within(surface.exponent, found)
        hits["n_opt"] += within(float(surface.n_opt(MIDDLE)), fits[0].predict("N_opt", MIDDLE, True)[1])
        hits["n_opt_beyond"] += within(float(surface.n_opt(BEYOND)), fits[0].predict("N_opt", BEYOND, True)[1])
        hits["l_opt"] += within(surface.l_opt(BEYOND), fits[0].predict("L_opt", BEYOND, True)[1])
        hits["own_a"] += within(float(plain), interval(fits[1].lines["N_opt"].slope[1:], LEVEL))
    width = float(np.median(widths)) / (2 * 1.96 * float(np.std(estimates))) if widths else math.nan
    return Coverage(width=width, **{name: count / studies for name, count in hits.items()})


def within(value: float, ends: tuple[float, float] | None) -> bool:
    """Whether an interval covers a value; a missing one covers everything."""
    return ends is None or ends[0] <= value <= ends[1]
