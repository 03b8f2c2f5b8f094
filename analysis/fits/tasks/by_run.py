"""Weighted least squares where the checkpoints of one run share its noise: two estimates of the covariance.

With a random effect of each run: y = X beta + u r + e, r a normal number a run, e independent with variance 1 up to a
common factor; the ratio of the two variances is that of the largest restricted likelihood (Patterson and Thompson
1971). By the jackknife over runs (CR3: Bell and McCaffrey 2002; MacKinnon, Nielsen and Webb 2023), which needs no model
of what a run's checkpoints share, and errs on the wide side where runs are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

RATIOS = np.concatenate([[0.0], np.geomspace(1e-4, 1e6, 121)])  # var r / var e, in units where e has variance 1
NOISE_FREE = 1e-18  # of y's sum of squares: less is rounding
SINGULAR = 1e12  # condition of a matrix that is not solved


@dataclass(frozen=True, eq=False)
class Coefficients:
    """coef [p]; covariance [p, p], NaN where it is not known; df: runs - p, of Student's t."""

    coef: np.ndarray
    covariance: np.ndarray
    df: int

    def half_width(self, gradient: np.ndarray, level: float) -> np.ndarray:
        """[m]: half the interval of gradient [m, p] times the coefficients; NaN where it is not known."""
        if self.df < 1:
            return np.full(len(gradient), np.nan)
        variance = np.einsum("mp,pq,mq->m", gradient, self.covariance, gradient)
        return np.asarray(np.sqrt(np.maximum(variance, 0)) * stats.t.ppf((1 + level) / 2, self.df))


def fit_jackknife(x: np.ndarray, y: np.ndarray, run: np.ndarray) -> Coefficients:
    """x [n, p] and y [n] in units of their noise; run [n]: 0, 1, .. The covariance is NaN where one run alone fixes a
    coefficient."""
    n_runs, p = int(run.max()) + 1, x.shape[1]
    gram, moment = np.zeros((n_runs, p, p)), np.zeros((n_runs, p))
    np.add.at(gram, run, x[:, :, None] * x[:, None, :])
    np.add.at(moment, run, x * y[:, None])
    rest = gram.sum(0) - gram
    known = np.linalg.cond(rest) < SINGULAR
    without = np.full(moment.shape, np.nan)
    if known.any():
        without[known] = np.linalg.solve(rest[known], (moment.sum(0) - moment)[known][..., None])[..., 0]
    solved = np.linalg.cond(gram.sum(0)) < SINGULAR
    coef = np.linalg.lstsq(x, y, rcond=None)[0] if solved else np.full(p, np.nan)
    off = without - coef
    return Coefficients(coef, np.asarray((n_runs - 1) / n_runs * off.T @ off), n_runs - p)


def fit_run_effect(x: np.ndarray, y: np.ndarray, u: np.ndarray, run: np.ndarray) -> tuple[Coefficients, float]:
    """The coefficients by generalised least squares, and the ratio of the two variances. x [n, p], y and u [n] in units
    of their noise; run [n]: 0, 1, .."""
    n, p = x.shape
    n_runs = int(run.max()) + 1
    xu = np.zeros((n_runs, p))
    np.add.at(xu, run, x * u[:, None])
    uu, uy = np.bincount(run, u * u), np.bincount(run, u * y)
    less = RATIOS[:, None] / (1 + RATIOS[:, None] * uu)  # [ratios, runs]: what the run effect takes away
    gram = x.T @ x - np.einsum("lg,gp,gq->lpq", less, xu, xu)
    moment = x.T @ y - (less * uy) @ xu
    inverse = np.linalg.pinv(gram, hermitian=True)
    coef = np.einsum("lpq,lq->lp", inverse, moment)
    rest = y @ y - less @ uy**2 - (coef * moment).sum(1)
    if rest[0] <= NOISE_FREE * float(y @ y):
        best = 0
    else:
        _, size = np.linalg.slogdet(gram)
        spread = np.log1p(RATIOS[:, None] * uu).sum(1)
        likelihood = -(max(n - p, 1) * np.log(np.maximum(rest, 1e-300)) + spread + size) / 2
        best = int(likelihood.argmax())
    factor = max(float(rest[best]), 0.0) / max(n - p, 1)
    return Coefficients(coef[best], factor * inverse[best], n_runs - p), float(RATIOS[best])


def whiten(values: np.ndarray, u: np.ndarray, run: np.ndarray, ratio: float) -> np.ndarray:
    """V^(-1/2) values, for V = I + ratio u u' within each run: values [n] or [n, p]; run [n]: 0, 1, .."""
    if ratio == 0:
        return values
    uu = np.bincount(run, u * u)
    along = np.zeros((len(uu), *values.shape[1:]))
    np.add.at(along, run, (values.T * u).T)
    shrink = (1 - 1 / np.sqrt(1 + ratio * uu)) / np.maximum(uu, 1e-300)
    return np.asarray(values - ((shrink[run] * u) * along[run].T).T)
