"""Huber loss of log L - log of the fitted loss (Hoffmann et al. 2022, eq. 3), r data sets at once.

With delta = 1e-3 most residuals lie in the linear part, where the objective is nearly a sum of absolute values: a
search that starts there creeps. So delta falls to its value by factors, each stage from the last one's solution (the
first is least squares), by Newton's method with the exact Hessian, its eigenvalues made positive, and damping that a
rejected step raises. The unknowns are E, log A, log B, alpha and beta: log A as in the paper's logsumexp, but E itself,
since log E runs away to minus infinity where E = 0 is best. log N and log D come centred, L divided by its mean, and
weights sum to one, so the units and the number of points do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.fits.parametric.descent import BOUNDS, Found, Problem, Rules, State, descend, with_e_not_negative

DELTA = 1e-3
FALL = 3.0  # of delta from stage to stage
RULES = Rules(steps=150, small=1e-10, stiff=1e10, least=0.0, first=1e-9)  # of the last stage
ROUGH = Rules(steps=20, small=1e-4, stiff=1e10, least=0.0, first=1e-9)  # of each stage before it
GRADIENT = 1e-5  # of the gradient over its largest possible value, below which a search that cannot go down ended well
NONE = 1e6  # residual where the fitted loss is not positive: a step there is always rejected
FLOOR = -14.0  # of log A and log B at the centre, over the loss: as good as zero


@dataclass(frozen=True)
class Bent:
    """A model's fitted loss [r, n] at unknowns [r, k], its slopes over them, over itself [r, k, n], and `bend`: what
    weights [r, n] make of its second derivatives, over itself, summed over the points [r, k, k]."""

    loss: np.ndarray
    slopes: np.ndarray
    bend: Callable[[np.ndarray], np.ndarray]


class Model(Protocol):
    """A fitted loss of unknowns [r, k], the first of which are E, log A, log B at the centre, alpha and beta, with the
    range [k] of each."""

    low: np.ndarray
    high: np.ndarray

    def loss(self, problem: Problem, theta: np.ndarray) -> np.ndarray: ...

    def bent(self, problem: Problem, theta: np.ndarray) -> Bent: ...


class Plain:
    """E + A / N^alpha + B / D^beta."""

    low = np.array([-np.inf, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0]])
    high = np.array([np.inf] * 3 + [BOUNDS[1]] * 2)

    def loss(self, problem: Problem, theta: np.ndarray) -> np.ndarray:
        return self._terms(problem, theta)[0]

    def _terms(self, problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[r, n] each: the fitted loss, and its terms of N and of D."""
        e, a, b, alpha, beta = theta.T[:, :, None]
        p, q = np.exp(a - alpha * problem.x), np.exp(b - beta * problem.y)
        return e + p + q, p, q

    def bent(self, problem: Problem, theta: np.ndarray) -> Bent:
        model, p, q = self._terms(problem, theta)
        x, y = problem.x, problem.y
        with np.errstate(invalid="ignore", divide="ignore"):
            p, q, one = p / model, q / model, 1 / model

        def bend(weights: np.ndarray) -> np.ndarray:
            found = np.zeros((len(theta), 5, 5))
            for i, j, force, z in ((1, 3, p * weights, x), (2, 4, q * weights, y)):
                found[:, i, i] = force.sum(-1)
                found[:, i, j] = found[:, j, i] = -(force * z).sum(-1)
                found[:, j, j] = (force * z * z).sum(-1)
            return found

        return Bent(model, np.stack([one, p, q, -p * x, -q * y], 1), bend)


def huber(residual: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * residual**2, delta * (size - 0.5 * delta))


def residuals(problem: Problem, loss: np.ndarray) -> np.ndarray:
    """[r, n]: log L minus that of the fitted loss. `problem.loss` is log L."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(loss > 0, problem.loss - np.log(loss), NONE))


@dataclass(frozen=True)
class Curved(State):
    """The weighted mean of Huber losses (of squares) at theta [r, k], its gradient and Hessian [r, f, f] over the free
    directions, and the diagonal of the Hessian of least squares, `scale` [r, f]."""

    hessian: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class InTheta:
    """Of a model's unknowns theta, as a `descent.Objective` but for its value: the directions `free` [k, f] along which
    a step may go, and Newton's step."""

    model: Model
    free: np.ndarray
    flat: float  # of the gradient: below it nothing goes down any more

    def inside(self, problem: Problem, theta: np.ndarray) -> np.ndarray:
        theta = theta.copy()
        if problem.fixed_e is not None:
            theta[:, 0] = problem.fixed_e
        if problem.tied:
            theta[:, 3:5] = theta[:, 3:5].mean(1, keepdims=True)
        return np.clip(theta, self.model.low, self.model.high)

    def step(self, state: Curved, theta: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The Newton step in scaled unknowns on positive eigenvalues; those at a bound stay."""
        down = np.sign(state.gradient @ self.free.T)
        blocked = ((theta <= self.model.low) & (down > 0)) | ((theta >= self.model.high) & (down < 0))
        held = (blocked @ np.abs(self.free)) > 0
        floor = 1e-10 * state.scale.max(1, keepdims=True) + 1e-300
        root = np.sqrt(np.maximum(state.scale, floor))
        scaled = state.hessian / (root[:, :, None] * root[:, None, :])
        eye = np.eye(scaled.shape[1], dtype=bool)
        scaled = np.where(held[:, :, None] | held[:, None, :], np.where(eye, 1.0, 0.0), scaled)
        values, vectors = np.linalg.eigh(scaled)
        pull = np.where(held, 0.0, -state.gradient) / root
        along = np.einsum("rij,ri->rj", vectors, pull) / (np.maximum(np.abs(values), 1e-9) + damping[:, None])
        step = np.einsum("rij,rj->ri", vectors, along) / root
        step = step * np.minimum(1.0, 1.0 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-300))
        return step @ self.free.T, held

    def ended_well(self, state: Curved, step: np.ndarray, held: np.ndarray, stuck: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(np.where(held, 0, state.gradient)).max(1) <= self.flat)

    def linear(self, theta: np.ndarray, state: Curved) -> np.ndarray:
        return theta[:, :1]


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


def directions(problem: Problem, size: int) -> np.ndarray:
    """[k, f]: the free directions of k unknowns: one for both exponents that are tied, none for a given E."""
    free = np.eye(size)
    if problem.tied:
        free = np.column_stack([free[:, :3], free[:, 3] + free[:, 4], free[:, 5:]])
    return free if problem.fixed_e is None else free[:, 1:]


def solve_huber(problem: Problem, starts: np.ndarray, delta: float, model: Model | None = None) -> Found:
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
        return descend(last, problem, theta, RULES)

    def rising(problem: Problem, theta: np.ndarray) -> np.ndarray:
        whole = Robust(model, np.eye(theta.shape[1]), 0.0, delta)
        return np.asarray(whole.evaluate(problem, theta).gradient[:, 0] < 0)

    return with_e_not_negative(problem, starts, search, rising)
