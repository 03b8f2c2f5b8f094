"""What noise moves the losses, from how they scatter about their budgets' parabolas, and losses drawn anew from it.

Losses of one trunk share part of their noise: branches of one run by half or so, readings of one curve by all. The two
variances, of the trunk as a whole and of each loss alone, follow from two sums of squares of residuals, whose
expectations are linear in them (Rao 1972, MINQUE). How well the noise is known is told by degrees of freedom
(Satterthwaite 1946), and replicates draw it from their scaled inverse chi-square, as intervals of Student's t do for a
mean. A parabola's own misfit counts as noise, unless a surface tells it: it widens intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.fits.isoflop.budgets import Readings
from analysis.fits.isoflop.minimum import design
from analysis.fits.noise import SeedNoise

FROM_RUNS = 20  # units from which on residuals are resampled
LEAST_FREE = 0.05  # share of a loss's noise that its residual must keep to stand for it
ALIKE = 1e10  # condition of the equations of the two variances, above which they are one
SCATTER = "scatter about the parabolas"
UNFIT = 0.05  # chance of a scatter as large from seeds alone, below which the scatter counts instead


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log loss, of a trunk as a whole and of one loss alone; how well they are known."""

    trunk: float
    own: float
    df: float
    source: str

    @property
    def total(self) -> float:
        return math.hypot(self.trunk, self.own)


@dataclass(frozen=True)
class Residuals:
    """About the parabolas of the budgets: relative [p], as shares of the fitted loss; maker [p, p], which makes
    residuals of losses."""

    relative: np.ndarray
    maker: np.ndarray

    def less(self, misfit: Residuals) -> Residuals:
        """Without what the parabolas miss of a known surface, which is no noise."""
        return replace(self, relative=self.relative - misfit.relative)


def residuals(readings: Readings) -> Residuals:
    """Of the budgets with three sizes or more; 0 elsewhere."""
    p = len(readings.loss)
    fitted, maker = readings.loss.copy(), np.zeros((p, p))
    for j, count in enumerate(readings.counts()):
        if count < 3:
            continue
        mine = np.flatnonzero(readings.budget == j)
        x, _, _ = design(readings.log_n[mine])
        hat = x @ np.linalg.pinv(x)
        fitted[mine] = hat @ readings.loss[mine]
        maker[np.ix_(mine, mine)] = np.eye(len(mine)) - hat
    return Residuals((readings.loss - fitted) / fitted, maker)


def noise_of(readings: Readings, found: Residuals, seeds: SeedNoise | None = None) -> Noise | None:
    """From the residuals, or from replicate seeds unless the losses scatter more than these explain. None where nothing
    tells it."""
    told = _from_residuals(readings, found)
    if seeds is None or not seeds.s > 0:
        return told
    if told is not None and stats.f.sf((told.total / seeds.s) ** 2, told.df, seeds.df) < UNFIT:
        return replace(told, source=f"{SCATTER}, larger than that of seeds")
    return Noise(seeds.s, 0.0, seeds.df, "replicate seeds")


def _from_residuals(readings: Readings, found: Residuals) -> Noise | None:
    r, m = found.relative, found.maker
    shared = (readings.unit[:, None] == readings.unit[None, :]).astype(float)  # Z Z'
    mz = m @ shared
    if np.trace(mz) < LEAST_FREE:
        return None
    q_own, free = float(r @ r), float(np.trace(m))
    matrix = np.array([[np.sum(mz * mz.T), np.trace(mz)], [np.trace(mz), free]])
    if readings.from_curves or np.linalg.cond(matrix) > ALIKE:
        return Noise(math.sqrt(q_own / np.trace(mz)), 0.0, _freedom(mz), SCATTER)
    trunk, own = np.linalg.solve(matrix, [float(r @ shared @ r), q_own])
    if own < 0:
        trunk, own = q_own / np.trace(mz), 0.0
    elif trunk < 0:
        trunk, own = 0.0, q_own / free
    # the sum over trunks is the worse known of the two, and counts for both
    return Noise(math.sqrt(trunk), math.sqrt(own), _freedom(mz @ (mz * trunk + m * own)), SCATTER)


def _freedom(matrix: np.ndarray) -> float:
    """Satterthwaite's, of a sum of squares y' Q y from Q times the covariance of y."""
    square = float(np.sum(matrix * matrix.T))
    return float(np.trace(matrix)) ** 2 / square if square > 0 else 1.0


def draw_noise(readings: Readings, noise: Noise, n_replicates: int, seed: int) -> np.ndarray:
    """[r, p]: the losses that were measured, moved by noise drawn anew."""
    rng = np.random.default_rng([seed, 2])
    scale = np.sqrt(noise.df / rng.chisquare(noise.df, n_replicates))[:, None]
    moved = noise.trunk * rng.standard_normal((n_replicates, len(readings.units)))[:, readings.unit]
    moved = moved + noise.own * rng.standard_normal((n_replicates, len(readings.loss)))
    return np.asarray(readings.loss * np.exp(scale * moved))


def draw_residuals(
    readings: Readings,
    found: Residuals,
    noise: Noise,
    gradients: np.ndarray,
    n_replicates: int,
    level: float,
    seed: int,
) -> np.ndarray:
    """[r, p]: the losses that were measured, moved by every unit's residuals times one sign a unit (wild cluster
    bootstrap: Wu 1986; Cameron, Gelbach and Miller 2008), each residual over the square root of the share of its noise
    that it keeps (HC2), all times t / z for the degrees of freedom of the variance that this gives (Bell and McCaffrey
    2002): the least over the estimates whose `gradients` [e, p] in log loss are given."""
    rng = np.random.default_rng([seed, 2])
    kept = np.diag(found.maker)
    known = kept > LEAST_FREE
    raised = np.where(known, 1 / np.sqrt(np.where(known, kept, 1.0)), 0.0)
    df = math.inf
    member = readings.unit[:, None] == np.arange(len(readings.units))
    for gradient in gradients:
        parts = (gradient * raised)[:, None] * member  # [p, units]
        gram = parts.T @ found.maker @ parts
        df = min(df, float(np.trace(gram)) ** 2 / float((gram**2).sum()))
    tail = (1 + level) / 2
    wider = float(stats.t.ppf(tail, df) / stats.norm.ppf(tail))
    signs = rng.choice([-1.0, 1.0], (n_replicates, len(readings.units)))[:, readings.unit]
    moved = signs * found.relative * raised
    moved += np.where(known, 0.0, noise.total) * rng.standard_normal(moved.shape)  # nothing else stands for these
    return np.asarray(readings.loss * np.exp(wider * moved))
