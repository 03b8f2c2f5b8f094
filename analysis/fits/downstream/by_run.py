"""Weighted linear least squares with errors by run: checkpoints of one run share its noise.

The covariance is that of the jackknife over runs (CR3: Bell and McCaffrey 2002; MacKinnon, Nielsen and Webb 2023),
which needs no model of what a run's checkpoints share, and errs on the wide side where runs are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Line:
    """coef [p]; without [runs, p]: the coefficients without each run; df: runs - p, of Student's t."""

    coef: np.ndarray
    without: np.ndarray
    df: int

    @property
    def covariance(self) -> np.ndarray:
        """[p, p]; NaN where there are no degrees of freedom, or a run is needed to know a coefficient."""
        if self.df < 1:
            return np.full((len(self.coef),) * 2, np.nan)
        n = len(self.without)
        off = self.without - self.coef
        return np.asarray((n - 1) / n * off.T @ off)

    def t(self, which: int) -> float:
        """Of one coefficient; NaN where its error is not known or 0."""
        error = float(np.sqrt(self.covariance[which, which]))
        return float(self.coef[which]) / error if error > 0 else float("nan")

    def half_width(self, gradient: np.ndarray, level: float) -> np.ndarray:
        """[m]: half the interval of gradient [m, p] times the coefficients; NaN where there is none."""
        if self.df < 1:
            return np.full(len(gradient), np.nan)
        variance = np.einsum("mp,pq,mq->m", gradient, self.covariance, gradient)
        return np.asarray(np.sqrt(variance) * stats.t.ppf((1 + level) / 2, self.df))


def fit_line(columns: np.ndarray, y: np.ndarray, noise: np.ndarray, run: np.ndarray) -> Line:
    """columns [n, p], y and noise [n]; run [n]: 0, 1, .. Without a run that alone fixes a coefficient there is no fit:
    NaN."""
    x, y = columns / noise[:, None], y / noise
    n_runs = int(run.max()) + 1
    gram = np.zeros((n_runs, x.shape[1], x.shape[1]))
    moment = np.zeros((n_runs, x.shape[1]))
    np.add.at(gram, run, x[:, :, None] * x[:, None, :])
    np.add.at(moment, run, x * y[:, None])
    total, rest = gram.sum(0), gram.sum(0) - gram
    known = np.linalg.cond(rest) < 1e12
    without = np.full(moment.shape, np.nan)
    if known.any():
        without[known] = np.linalg.solve(rest[known], (moment.sum(0) - moment)[known][..., None])[..., 0]
    coef = np.linalg.lstsq(x, y, rcond=None)[0] if np.linalg.cond(total) < 1e12 else np.full(x.shape[1], np.nan)
    return Line(coef, without, n_runs - x.shape[1])
