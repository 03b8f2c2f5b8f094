"""Huber loss of log L - log of the fitted loss (Hoffmann et al. 2022, eq. 3), r data sets at once.

With delta = 1e-3 most residuals lie in the linear part, where the objective is nearly a sum of absolute values: a
search that starts there creeps. So delta falls to its value by factors, each stage from the last one's solution (the
first is least squares), by Newton's method with the exact Hessian, its eigenvalues made positive, and damping that a
rejected step raises. log N and log D come centred, L divided by its mean, and weights sum to one, so the units and the
number of points do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.parametric.descent import Found, Problem, Rules, descend, with_e_not_negative
from analysis.fits.parametric.newton import Curved, InTheta, Model, Plain, directions

DELTA = 1e-3
FALL = 3.0  # of delta from stage to stage
RULES = Rules(steps=150, small=1e-10, stiff=1e10, least=0.0, first=1e-9)  # of the last stage
ROUGH = Rules(steps=20, small=1e-4, stiff=1e10, least=0.0, first=1e-9)  # of each stage before it
GRADIENT = 1e-5  # of the gradient over its largest possible value, below which a search that cannot go down ended well
NONE = 1e6  # residual where the fitted loss is not positive: a step there is always rejected


def huber(residual: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * residual**2, delta * (size - 0.5 * delta))


def residuals(problem: Problem, loss: np.ndarray) -> np.ndarray:
    """[r, n]: log L minus that of the fitted loss. `problem.loss` is log L."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(loss > 0, problem.loss - np.log(loss), NONE))


@dataclass(frozen=True)
class Robust(InTheta):
    """Mean of Huber losses of log L. `problem.loss` is log L."""

    delta: float

    def evaluate(self, problem: Problem, theta: np.ndarray) -> Curved:
        bent, free, delta = self.model.bent(problem, theta), self.free, self.delta
        residual = residuals(problem, bent.loss)
        w, pull, slopes = problem.weights, np.clip(residual, -delta, delta), bent.slopes
        wp = w * pull
        gradient = -(slopes @ wp[:, :, None])[..., 0]
        # rho'' v v' - rho' (second derivatives of the fitted loss, over it, - v v')
        curve = w * ((np.abs(residual) <= delta) + pull)
        hessian = (slopes * curve[:, None, :]) @ np.swapaxes(slopes, 1, 2) - bent.bend(wp)
        hessian[:, 3, 1], hessian[:, 4, 2] = hessian[:, 1, 3], hessian[:, 2, 4]  # a product's rounding is not symmetric
        scale = (slopes * slopes) @ (w * np.minimum(1.0, delta / np.maximum(np.abs(residual), delta)))[:, :, None]
        value = (w * huber(residual, delta)).sum(-1)
        return Curved(value, gradient @ free, free.T @ hessian @ free, scale[..., 0] @ free**2)


def solve_huber(
    problem: Problem, starts: np.ndarray, delta: float, model: Model | None = None, rules: Rules = RULES
) -> Found:
    """With E >= 0 from theta `starts` [r, k], each down the stages of delta. `problem.loss` is log L."""
    model = Plain() if model is None else model

    def objective(problem: Problem, one: float) -> Robust:
        return Robust(model, directions(problem, starts.shape[1]), GRADIENT * one, one)

    def search(problem: Problem, starts: np.ndarray | None) -> Found:
        assert starts is not None
        last = objective(problem, delta)
        theta = last.inside(problem, starts)
        spread = np.minimum(np.abs(residuals(problem, model.loss(problem, theta))), 1.0)
        widest = float(np.median(np.sqrt((problem.weights * spread**2).sum(-1)))) if len(theta) else 0.0
        stages = [delta]
        while stages[-1] * FALL < widest:
            stages.append(stages[-1] * FALL)
        for one in stages[:0:-1]:
            theta = descend(objective(problem, one), problem, theta, ROUGH).unknowns
        return descend(last, problem, theta, rules)

    def rising(problem: Problem, theta: np.ndarray) -> np.ndarray:
        whole = Robust(model, np.eye(theta.shape[1]), 0.0, delta)
        return np.asarray(whole.evaluate(problem, theta).gradient[:, 0] < 0)

    return with_e_not_negative(problem, starts, search, rising)
