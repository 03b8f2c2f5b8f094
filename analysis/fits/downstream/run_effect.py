"""Least squares with a random effect of each run: its checkpoints lie above or below the link together.

y = X beta + u r + e, r one normal number a run, e independent with variance 1 up to a common factor. The ratio of the
two variances is that of the largest restricted likelihood (Patterson and Thompson 1971); given it, the coefficients are
generalised least squares. Errors use Student's t with runs - p degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

RATIOS = np.concatenate([[0.0], np.geomspace(1e-4, 1e6, 121)])  # var r / var e, in units where e has variance 1
NOISE_FREE = 1e-18  # of y's sum of squares: less is rounding


@dataclass(frozen=True)
class RunEffect:
    """coef [p]; covariance [p, p]; ratio: var r / var e; factor: of var e; df: runs - p, of Student's t."""

    coef: np.ndarray
    covariance: np.ndarray
    ratio: float
    factor: float
    df: int

    def half_width(self, gradient: np.ndarray, level: float) -> np.ndarray:
        """[m]: half the interval of gradient [m, p] times the coefficients; NaN where there are no degrees of
        freedom."""
        if self.df < 1:
            return np.full(len(gradient), np.nan)
        variance = np.einsum("mp,pq,mq->m", gradient, self.covariance, gradient)
        return np.asarray(np.sqrt(np.maximum(variance, 0)) * stats.t.ppf((1 + level) / 2, self.df))


def fit_run_effect(x: np.ndarray, y: np.ndarray, u: np.ndarray, run: np.ndarray) -> RunEffect:
    """x [n, p], y and u [n], in units of the noise of e; run [n]: 0, 1, .."""
    (n, p), n_runs = x.shape, int(run.max()) + 1
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
        which = 0
    else:
        _, size = np.linalg.slogdet(gram)
        spread = np.log1p(RATIOS[:, None] * uu).sum(1)
        likelihood = -(max(n - p, 1) * np.log(np.maximum(rest, 1e-300)) + spread + size) / 2
        which = int(likelihood.argmax())
    factor = max(float(rest[which]), 0.0) / max(n - p, 1)
    return RunEffect(coef[which], factor * inverse[which], float(RATIOS[which]), factor, n_runs - p)


def whiten(values: np.ndarray, u: np.ndarray, run: np.ndarray, ratio: float) -> np.ndarray:
    """V^(-1/2) values, for V = I + ratio u u' within each run: values [n] or [n, p]; run [n]: 0, 1, .."""
    if ratio == 0:
        return values
    uu = np.bincount(run, u * u)
    along = np.zeros((len(uu), *values.shape[1:]))
    np.add.at(along, run, (values.T * u).T)
    shrink = (1 - 1 / np.sqrt(1 + ratio * uu)) / np.maximum(uu, 1e-300)
    return np.asarray(values - ((shrink[run] * u) * along[run].T).T)
