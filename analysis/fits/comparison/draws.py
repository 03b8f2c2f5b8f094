"""What noise could have made of a comparison: refits to losses drawn anew, with the noise that architectures share.

Runs of one cell (N, D) read the same batches in the same order, so their losses rise and fall together, and most of
the noise of each is in none of their differences. Three noises are told apart by analysis of variance of the residuals:
what the runs of a cell share, what moves a run as a whole, and what is left at each point (where runs have one point,
the last two are one). The fit weighs them accordingly (generalised least squares), and draws have all three. A draw's
noise is scaled by a root of df / chi^2(df), as few runs tell its size only so well.

Draws are made of normal noise of the estimated sizes. `wild` ones keep each cell's residuals and give them one random
sign (wild cluster bootstrap on HC2 residuals; Bell and McCaffrey 2002), for noise whose size differs between cells;
docs/research/comparisons.md has the coverage of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.fits.comparison.joint import ROUGH, Together, fit, solve, unpack
from analysis.fits.surface import Surface

LEFT = 1e-6  # of a block's variance that the fit must have left; less is a cell the fit goes through exactly
ROUNDS = 3  # of noise and weights; a fourth changes intervals by less than a percent
LEAST = 1e-15  # standard deviation of log loss: noise-free studies stay solvable


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log loss: what runs of a cell share, what moves a run, what is left at a point."""

    cell: float
    run: float
    point: float


@dataclass(frozen=True)
class Fitted:
    """A joint fit: theta [k], whether E is shared, its noise, the matrix [n, n] that makes residuals alike and
    independent, their sum of squares, and the degrees of freedom of the noise."""

    theta: np.ndarray
    shared: bool
    noise: Noise
    weigh: np.ndarray
    total: float
    df: int


def fit_paired(points: Together, shared: bool = True, paired: bool = True, seed_noise: float = 0.0) -> Fitted:
    """The joint fit; without `paired` every run's noise counts as its own, though batches may be shared. seed_noise:
    between seeds, as measured: a run's whole noise is no less, also where curves that miss their points hide it."""
    theta, total = fit(points, shared)
    kinds = _kinds(points, paired)
    weigh, sizes = np.eye(len(points)), np.zeros(len(kinds))
    for _ in range(ROUNDS):
        slope = points.jacobian(theta, shared)
        left = np.eye(len(points)) - slope @ np.linalg.pinv(weigh @ slope) @ weigh  # residuals = left @ noise
        residual = points.log_loss - points.predict(theta[None], shared)[0]
        sizes = _components(left @ residual, left, list(kinds.values()))
        whole = float(sizes[: 1 + list(kinds).index("run")].sum())
        sizes[list(kinds).index("run")] += max(seed_noise**2 - whole, 0.0)
        weigh = _root(np.einsum("k,kij->ij", sizes, np.stack(list(kinds.values()))))
        found, reached = solve(points, points.log_loss[None], theta, shared, weigh @ weigh)
        theta, total = found[0], float(reached[0])
    named = dict(zip(kinds, np.sqrt(sizes).tolist(), strict=True))
    noise = Noise(named.get("cell", 0.0), named["run"], named.get("point", 0.0))
    return Fitted(theta, shared, noise, weigh, total, _degrees_of_freedom(points, theta, shared, weigh, kinds))


def p_value_of_one_e(points: Together, free: Fitted) -> float:
    """Of an F test that all architectures have one E, against `free`, which has one for each, with its weights. Of
    one point a run all weighted residuals are alike; of curves those of a run are not quite, since few runs tell its
    noise, and the whole sum is laid on the degrees of freedom of the runs (cautious: docs/research/comparisons.md)."""
    n_archs = len(points.names)
    start = np.concatenate([free.theta[:n_archs].mean(keepdims=True), free.theta[n_archs:]])
    starts = np.stack([start, fit(points, True)[0]])
    _, totals = solve(points, np.repeat(points.log_loss[None], 2, 0), starts, True, free.weigh @ free.weigh)
    more = n_archs - 1
    one_each = points.n_runs == len(points)
    rest = max(free.total, 1e-300) / (max(len(points) - len(free.theta), 1) if one_each else free.df)
    return float(stats.f.sf(max(totals.min() - free.total, 0.0) / more / rest, more, free.df))


def draw(
    points: Together, fitted: Fitted, n_replicates: int, seed: int, wild: bool = False
) -> tuple[dict[str, Surface], np.ndarray]:
    """Refits to `n_replicates` draws around the fit: as `unpack` gives them."""
    rng = np.random.default_rng(seed)
    line = points.predict(fitted.theta[None], fitted.shared)[0]
    if wild:
        slope = fitted.weigh @ points.jacobian(fitted.theta, fitted.shared)
        residual = corrected(slope, fitted.weigh @ (points.log_loss - line), points.cell)
        signs = rng.choice([-1.0, 1.0], size=(n_replicates, points.n_cells))
        noise = np.linalg.solve(fitted.weigh, (signs[:, points.cell] * residual).T).T
    else:
        noise = np.zeros((n_replicates, len(points)))
        for size, label in ((fitted.noise.cell, points.cell), (fitted.noise.run, points.run)):
            noise += size * rng.standard_normal((n_replicates, int(label.max()) + 1))[:, label]
        noise += fitted.noise.point * rng.standard_normal(noise.shape)
    noise *= np.sqrt(fitted.df / rng.chisquare(fitted.df, size=(n_replicates, 1)))
    found, _ = solve(points, line + noise, fitted.theta, fitted.shared, fitted.weigh @ fitted.weigh, small=ROUGH)
    return unpack(points, found, fitted.shared)


def corrected(slope: np.ndarray, residual: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Residuals [n] of a fit with derivatives slope [n, p], each cell's block times (1 - H)^(-1/2)."""
    q, _ = np.linalg.qr(slope)
    out = np.empty_like(residual)
    for c in np.unique(cell):
        here = cell == c
        values, vectors = np.linalg.eigh(np.eye(here.sum()) - q[here] @ q[here].T)
        root = np.where(values > LEFT, 1 / np.sqrt(np.maximum(values, LEFT)), 0.0)
        out[here] = vectors @ (root * (vectors.T @ residual[here]))
    return out


def _kinds(points: Together, paired: bool) -> dict[str, np.ndarray]:
    """The noises that these points can tell apart: for each the matrix [n, n] of which points have the same draw."""
    n, same = len(points), {}
    if paired and points.n_cells < points.n_runs:
        same["cell"] = (points.cell[:, None] == points.cell[None]).astype(float)
    same["run"] = (points.run[:, None] == points.run[None]).astype(float)
    if points.n_runs < n:
        same["point"] = np.eye(n)
    return same


def _components(residual: np.ndarray, left: np.ndarray, kinds: list[np.ndarray]) -> np.ndarray:
    """The variances of the kinds of noise, from residuals [n] = left @ noise: as many quadratic forms, made equal to
    what they are expected to be; a kind whose variance comes out negative is left out."""
    open_ = list(range(len(kinds)))
    forms = [kind / kind.sum(1, keepdims=True) for kind in kinds]  # means over the points of a draw
    values = np.array([float(residual @ form @ residual) for form in forms])
    seen = [left @ kind @ left.T for kind in kinds]
    table = np.array([[float((form * one).sum()) for one in seen] for form in forms])
    while True:
        found = np.zeros(len(kinds))
        found[open_] = np.linalg.solve(table[np.ix_(open_, open_)], values[open_])
        if found.min() >= 0 or len(open_) == 1:
            break
        open_.remove(int(found.argmin()))
    floor = max(1e-6 * float(found.max()), LEAST**2)
    found[-1] = max(float(found[-1]), floor)  # the finest one keeps the covariance invertible
    return np.maximum(found, 0.0)


def _root(covariance: np.ndarray) -> np.ndarray:
    """The inverse root of a covariance [n, n], in units of its mean variance."""
    values, vectors = np.linalg.eigh(covariance / np.diag(covariance).mean())
    return np.asarray(vectors @ (vectors / np.sqrt(np.maximum(values, 1e-14))).T)


def _degrees_of_freedom(
    points: Together, theta: np.ndarray, shared: bool, weigh: np.ndarray, kinds: dict[str, np.ndarray]
) -> int:
    """Of the noise that differences of architectures have: runs, less parameters, less the cells' means where these
    are taken out. By Satterthwaite's formula for the squares within cells of each run's mean residual."""
    n = len(points)
    slope = points.jacobian(theta, shared)
    left = np.eye(n) - slope @ np.linalg.pinv(weigh @ slope) @ weigh
    run = kinds["run"] / kinds["run"].sum(1, keepdims=True)
    form = run - kinds["cell"] / kinds["cell"].sum(1, keepdims=True) if "cell" in kinds else run
    root = np.linalg.inv(weigh)  # noise = root @ independent
    seen = root.T @ left.T @ form @ left @ root
    squares = float((seen * seen.T).sum())
    return max(round(float(np.trace(seen)) ** 2 / squares), 1) if squares > 0 else 1
