"""Studies drawn from worlds with a known optimum, and how often the parametric intervals cover it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.fits.parametric.fit import ParametricFit, fit_parametric
from analysis.fits.parametric.noise import Kind, kinds_of
from analysis.fits.parametric.results import not_identified
from analysis.fits.points import Points
from analysis.fits.surface import Surface

from ..worlds import D0, N0, World

SIX = (14e3, 25e3, 55e3, 98e3, 221e3, 393e3)
LARGEST = 40 * SIX[-1]  # tokens of the longest runs
OWN = 0.3  # noise of a branch, over that of its trunk
ALONG = 0.1  # noise along a smoothed curve, over that of the whole
ROWS = 12  # of a curve
ESTIMANDS = ("a", "n_middle", "n_beyond", "l_middle", "l_beyond")
Z95 = 1.959964


@dataclass(frozen=True)
class Cell:
    """Studies of a kind. design: `20 runs` (5 sizes to 4 amounts of tokens each), `18 runs` (6 sizes, 3 amounts),
    `6 sizes` (whole curves to equal tokens, three seeds of the third) or `trunks` (of six sizes, 4 branches each, whose
    trunk's noise is theirs). s: standard deviation of a whole run's (trunk's) log loss; `shared`: of all runs'."""

    design: str
    s: float
    objective: str
    world: World = World(irreducible=0.6)  # noqa: RUF009  a frozen dataclass
    shared: float = 0.0

    def points(self) -> Points:
        """Without noise."""
        sizes, amounts, seeds = np.array(SIX), np.geomspace(LARGEST / 30, LARGEST, 4), np.ones(6, dtype=int)
        if self.design == "20 runs":
            sizes = np.geomspace(SIX[0], SIX[-1], 5)
            seeds = np.ones(5, dtype=int)
        elif self.design == "18 runs":
            amounts = np.geomspace(LARGEST / 30, LARGEST, 3)
        elif self.design == "6 sizes":
            seeds[2] = 3
            amounts = np.geomspace(LARGEST / 10, LARGEST, ROWS)
        n, d, trunk, run = [], [], [], []
        for rank, size in enumerate(sizes):
            for seed in range(seeds[rank]):
                for i, amount in enumerate(amounts):
                    n.append(size)
                    d.append(amount)
                    trunk.append(f"{rank} {seed}" if self.design in ("6 sizes", "trunks") else f"{rank} {i}")
                    run.append(f"{rank} {seed}" if self.design == "6 sizes" else f"{rank} {i}")
        n, d = np.array(n), np.array(d)
        off = np.log10(n) - np.log10(sizes).mean()
        loss = self.world.loss(n, d) * np.exp(self.world.mistuned * off**2)
        return Points(n, d, 6 * n * d, loss, np.array(run, dtype=object), np.array(trunk, dtype=object))

    def kinds(self, points: Points) -> list[tuple[Kind, float]]:
        """Effects on log loss and their standard deviation."""
        whole = kinds_of(points.trunk, points.run, np.zeros(len(points)))[0]
        row = Kind("row", np.arange(len(points)), np.ones(len(points)))
        own = {"trunks": OWN, "6 sizes": ALONG}.get(self.design, 0.0)
        return [(whole, self.s)] + [(row, own * self.s)] * bool(own)

    def noise(self, points: Points, rng: np.random.Generator) -> np.ndarray:
        """Of log loss."""
        found = self.shared * rng.standard_normal() + np.zeros(len(points))
        for kind, s in self.kinds(points):
            found += s * rng.standard_normal(kind.member.max() + 1)[kind.member]
        return found

    def at(self, points: Points) -> tuple[float, float]:
        """log C in the middle of the range and at ten times its end."""
        log_c = np.log(points.flops)
        return float(log_c.min() + log_c.max()) / 2, float(log_c.max() + math.log(10))

    def truth(self, points: Points) -> dict[str, float]:
        middle, beyond = self.at(points)
        low, high = (math.log(value) for value in (points.flops.min(), points.flops.max()))
        n_opt, l_opt = self.world.log_n_opt, self.world.log_l_opt
        values = ((n_opt(high) - n_opt(low)) / (high - low), n_opt(middle), n_opt(beyond), l_opt(middle), l_opt(beyond))
        return dict(zip(ESTIMANDS, values, strict=True))

    def oracles(self, points: Points) -> tuple[dict[str, float], dict[str, float]]:
        """Widths of the intervals of those who know the noise, linearised at the true surface: of least squares, and of
        generalised least squares (the Cramer-Rao bound), which knows what runs and rows share as well."""
        world = self.world
        surface = Surface(world.irreducible, N0**world.p, D0**world.q, world.p, world.q)
        kinds = self.kinds(points)
        covariance = sum((s**2 * kind.matrix() @ kind.matrix().T for kind, s in kinds), np.zeros((len(points),) * 2))

        def moved(k: int, step: float) -> Surface:
            e, a, b, alpha, beta = surface.to_dict().values()
            theta = np.array([e, np.log(a), np.log(b), alpha, beta])
            theta[k] += step
            return Surface(theta[0], np.exp(theta[1]), np.exp(theta[2]), theta[3], theta[4])

        def slope(value, k: int) -> np.ndarray:  # type: ignore[no-untyped-def]
            return (np.asarray(value(moved(k, 1e-5))) - np.asarray(value(moved(k, -1e-5)))) / 2e-5

        jacobian = np.stack([slope(lambda s: np.log(s.loss(points.n_params, points.n_tokens)), k) for k in range(5)], 1)
        gradients = np.stack([slope(lambda s: list(estimates(s, self.at(points)).values()), k) for k in range(5)], 1)
        rows = np.unique(points.run.astype(str), return_inverse=True)[1]
        solve = np.linalg.pinv(jacobian * np.sqrt(points.loss**2 / np.bincount(rows)[rows])[:, None])
        solve = solve * np.sqrt(points.loss**2 / np.bincount(rows)[rows])
        spreads = (
            solve @ covariance @ solve.T,
            np.linalg.inv(jacobian.T @ np.linalg.solve(covariance, jacobian)),
        )
        least, bound = (2 * Z95 * np.sqrt(np.diag(gradients @ spread @ gradients.T)) for spread in spreads)
        return dict(zip(ESTIMANDS, least, strict=True)), dict(zip(ESTIMANDS, bound, strict=True))


def estimates(surface: Surface, at: tuple[float, float]) -> dict[str, np.ndarray]:
    """The estimands of one surface or of r."""
    c = np.exp(np.array(at))
    one = surface.column() if np.ndim(surface.E) else surface
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        n, loss = np.log(one.n_opt(c)), np.log(one.l_opt(c))
    return dict(zip(ESTIMANDS, (surface.a, n[..., 0], n[..., 1], loss[..., 0], loss[..., 1]), strict=True))


def cover(cell: Cell, studies: int, seed: int = 0, replicates: int = 199) -> dict[str, float]:
    """Shares of studies whose 95% interval covers, unconditional: where an exponent is not identified there is none of
    a and N_opt, which covers. `identified`: the share with all of them; `width`: median of a's over the oracle's among
    those (for worlds of the fitted form)."""
    rng = np.random.default_rng(seed)
    points = cell.points()
    truth, at = cell.truth(points), cell.at(points)
    nothing = dict.fromkeys(ESTIMANDS, math.nan)
    least, bound = cell.oracles(points) if cell.world.interaction == 1 else (nothing, nothing)
    hits = dict.fromkeys(ESTIMANDS, 0)
    widths: dict[str, list[float]] = {name: [] for name in ESTIMANDS}
    identified = 0
    for study in range(studies):
        loss = points.loss * np.exp(cell.noise(points, rng))
        drawn = Points(points.n_params, points.n_tokens, points.flops, loss, points.run, points.trunk)
        fit = fit_parametric(drawn, objective=cell.objective, n_replicates=replicates, seed=study, first_share=0.0)
        known = not not_identified(fit)
        identified += known
        for name, (low, high) in intervals(fit, at).items():
            missing = not known and name in ("a", "n_middle", "n_beyond")
            hits[name] += missing or low <= truth[name] <= high
            if not missing:
                widths[name].append(high - low)
    found = {name: count / studies for name, count in hits.items()}
    found["identified"] = identified / studies
    for name in ("a", "n_beyond", "l_middle"):
        width = float(np.median(widths[name])) if widths[name] else math.nan
        found |= {f"{name} width": width / least[name], f"{name} over bound": width / bound[name]}
    return {name: float(value) for name, value in found.items()}


def intervals(fit: ParametricFit, at: tuple[float, float]) -> dict[str, np.ndarray]:
    assert fit.draws is not None
    return {name: fit.draws.interval(values) for name, values in estimates(fit.draws.surface, at).items()}
