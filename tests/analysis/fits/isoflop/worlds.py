"""IsoFLOP studies drawn from a known surface: end points on a grid of budgets, whole curves, branches of trunks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits import approaches
from analysis.fits.cost import six_nd
from analysis.fits.isoflop.fit import isoflop
from analysis.fits.isoflop.results import fit_isoflop
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError

REPLICATES = 199
MIDDLE, BEYOND = 10**19.5, 1e22

Ends = tuple[float, float] | None


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


COVERED = ("a", "n_opt", "n_opt_beyond", "l_opt", "l_opt_beyond")


@dataclass(frozen=True)
class Coverage:
    """Of the intervals that the product gives: the share that holds the surface's own optimum (nan where no study has
    one), and `given_<name>`, the share of studies that have one. N_opt and L_opt in the middle of the budgets and at
    ten times the last. own_a: without a surface, of what the fit itself finds without noise.
    joint: the share of intervals of a by joint replicates; width: their median (of all), over 2 x 1.96 standard
    deviations of the studies' own estimates."""

    a: float
    n_opt: float
    n_opt_beyond: float
    l_opt: float
    l_opt_beyond: float
    own_a: float
    given_a: float
    given_n_opt: float
    given_n_opt_beyond: float
    given_l_opt: float
    given_l_opt_beyond: float
    given_own_a: float
    joint: float
    width: float


def published(points: Points, seed: int) -> FitResult | None:
    """IsoFLOP as `scaling fit` calls it; None where no surface is identified, so that the result is not of the
    optimum."""
    found = approaches.fit(points, "isoflop", n_replicates=REPLICATES, seed=seed, at=[MIDDLE, BEYOND])
    return found if found.interval["estimand"].startswith("the optimum") else None


def coverage(surface: Surface, design: Design, studies: int, seed: int = 0) -> Coverage:
    """How often the published intervals of `studies` studies hold the surface's own optimum."""
    clean = design.points(surface)
    plain = isoflop(clean, six_nd(), n_replicates=0).lines["N_opt"].slope[0]
    truth = {
        "a": surface.exponent,
        "n_opt": float(surface.n_opt(MIDDLE)),
        "n_opt_beyond": float(surface.n_opt(BEYOND)),
        "l_opt": surface.l_opt(MIDDLE),
        "l_opt_beyond": surface.l_opt(BEYOND),
        "own_a": float(plain),
    }
    rng = np.random.default_rng(seed)
    held: dict[str, list[bool]] = {name: [] for name in truth}
    estimates, widths, joint = [], [], []
    for study in range(studies):
        points = replace(clean, loss=design.draw(clean, rng))
        ends: dict[str, Ends] = {}
        try:
            ends["own_a"] = fit_isoflop(points, six_nd(), n_replicates=REPLICATES, seed=study).intervals["a"]
            found = published(points, study)
        except InputError:
            found = None
        if found is not None:
            middle, beyond = (one["intervals"] for one in found.diagnostics["optimum"])
            ends |= {"a": found.intervals["a"], "n_opt": middle["N"], "n_opt_beyond": beyond["N"]}
            ends |= {"l_opt": middle["L"], "l_opt_beyond": beyond["L"]}
            estimates.append(found.params["a"])
            joint.append("fit both anew" in found.interval["estimand"])
        for name, one in ends.items():
            if one is not None:
                held[name].append(one[0] <= truth[name] <= one[1])
        if (one := ends.get("a")) is not None:
            widths.append(one[1] - one[0])
    width = float(np.median(widths)) / (2 * 1.96 * float(np.std(estimates))) if len(widths) > 1 else math.nan
    shares = {name: float(np.mean(hits)) if hits else math.nan for name, hits in held.items()}
    given = {f"given_{name}": len(hits) / studies for name, hits in held.items()}
    return Coverage(joint=float(np.mean(joint)), width=width, **shares, **given)
