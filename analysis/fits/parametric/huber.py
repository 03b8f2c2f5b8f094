"""Huber loss of log L - log(E + A / N^alpha + B / D^beta) (Hoffmann et al. 2022, eq. 3), r data sets at once.

With delta = 1e-3 most residuals lie in the linear part, where the objective is nearly a sum of absolute values: a
search that starts there creeps. So delta falls to its value by factors, each stage from the last one's solution (the
first is least squares), by Newton's method with the exact Hessian, its eigenvalues made positive, and damping that a
rejected step raises. The unknowns are E, log A, log B, alpha and beta: log A as in the paper's logsumexp, but E itself,
since log E runs away to minus infinity where E = 0 is best. log N and log D come centred, L divided by its mean, and
weights sum to one, so the units and the number of points do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.parametric.squares import BOUNDS, Problem

DELTA = 1e-3
FALL = 3.0  # of delta from stage to stage
MAX_STEPS = 150  # of the last stage
ROUGH_STEPS = 20  # of each stage before it
STEP = 1e-10  # largest change of a parameter below which a search has ended
ROUGH = 1e-4  # the same for all stages but the last
GRADIENT = 1e-5  # of the gradient over its largest possible value, below which a search that cannot go down ended well
NONE = 1e6  # residual where the fitted loss is not positive: a step there is always rejected
FLOOR = -14.0  # of log A and log B at the centre, over the loss: as good as zero


@dataclass(frozen=True)
class HuberSolved:
    """[r] each: `theta` (E, log A, log B at the centre, alpha, beta) [r, 5], the weighted mean of Huber losses, and
    whether the search ended where nothing goes down any more."""

    theta: np.ndarray
    value: np.ndarray
    ended_well: np.ndarray


@dataclass(frozen=True)
class _State:
    value: np.ndarray
    gradient: np.ndarray  # [r, k]
    hessian: np.ndarray  # [r, k, k]
    scale: np.ndarray  # [r, k]: the diagonal of the Hessian of least squares


def residuals(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """[r, n]: log L minus the fitted one. `problem.loss` is log L."""
    model, _, _ = _terms(problem, theta)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(model > 0, problem.loss - np.log(model), NONE))


def _terms(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[r, n] each: the fitted loss, and its terms of N and of D."""
    e, a, b, alpha, beta = theta.T[:, :, None]
    p, q = np.exp(a - alpha * problem.x), np.exp(b - beta * problem.y)
    return e + p + q, p, q


def huber(residual: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * residual**2, delta * (size - 0.5 * delta))


def _value(problem: Problem, theta: np.ndarray, delta: float) -> np.ndarray:
    return np.asarray((problem.weights * huber(residuals(problem, theta), delta)).sum(-1))


def _evaluate(problem: Problem, theta: np.ndarray, delta: float, free: np.ndarray) -> _State:
    """Objective, gradient and Hessian over the free directions: theta = theta_0 + free @ unknowns [5, k]."""
    model, p, q = _terms(problem, theta)
    with np.errstate(invalid="ignore", divide="ignore"):
        residual = np.where(model > 0, problem.loss - np.log(model), NONE)
        p, q, one = p / model, q / model, 1 / model
    pull = np.clip(residual, -delta, delta)
    w, x, y = problem.weights, problem.x, problem.y
    slopes = np.stack([one, p, q, -p * x, -q * y], 1)  # of log of the fitted loss
    wp = w * pull
    gradient = -(slopes @ wp[:, :, None])[..., 0]
    # rho'' v v' - rho' (second derivatives of the fitted loss, over it, - v v')
    curve = w * ((np.abs(residual) <= delta) + pull)
    hessian = (slopes * curve[:, None, :]) @ np.swapaxes(slopes, 1, 2)
    p, q = p * wp, q * wp
    for i, j, force, z in ((1, 3, p, x), (2, 4, q, y)):
        hessian[:, i, i] -= force.sum(-1)
        hessian[:, i, j] += (force * z).sum(-1)
        hessian[:, j, i] = hessian[:, i, j]
        hessian[:, j, j] -= (force * z * z).sum(-1)
    scale = (slopes * slopes) @ (w * np.minimum(1.0, delta / np.maximum(np.abs(residual), delta)))[:, :, None]
    return _State(
        (w * huber(residual, delta)).sum(-1),
        gradient @ free,
        free.T @ hessian @ free,
        scale[..., 0] @ free**2,
    )


def _step(state: _State, fixed: np.ndarray, damping: np.ndarray) -> np.ndarray:
    """[r, k]: the Newton step in scaled unknowns on positive eigenvalues; `fixed` ones stay."""
    floor = 1e-10 * state.scale.max(1, keepdims=True) + 1e-300
    root = np.sqrt(np.maximum(state.scale, floor))
    scaled = state.hessian / (root[:, :, None] * root[:, None, :])
    eye = np.eye(scaled.shape[1], dtype=bool)
    scaled = np.where(fixed[:, :, None] | fixed[:, None, :], np.where(eye, 1.0, 0.0), scaled)
    values, vectors = np.linalg.eigh(scaled)
    pull = np.where(fixed, 0.0, -state.gradient) / root
    along = np.einsum("rij,ri->rj", vectors, pull) / (np.maximum(np.abs(values), 1e-9) + damping[:, None])
    step = np.einsum("rij,rj->ri", vectors, along) / root
    return np.asarray(step * np.minimum(1.0, 1.0 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-300)))


def solve(problem: Problem, starts: np.ndarray, delta: float = DELTA) -> HuberSolved:
    """With E >= 0 from theta `starts` [r, 5], each down the stages of delta. `problem.loss` is log L.

    Where the search wants E < 0 the fit with E = 0 is searched as a problem of its own; should the objective fall with
    E from there, the search goes on from there.
    """
    found = _down_the_stages(problem, starts, delta)
    below = np.flatnonzero(found.theta[:, 0] < 0)
    if problem.fixed_e is not None or not len(below):
        return found
    part = problem.take(below)
    zero = replace(part, fixed_e=np.zeros(len(below)))
    again = _down_the_stages(zero, np.where(np.arange(5) == 0, 0.0, starts[below]), delta)
    rising = np.flatnonzero(_evaluate(part, again.theta, delta, np.eye(5)).gradient[:, 0] < 0)
    more = _down_the_stages(part.take(rising), again.theta[rising], delta)
    better = np.flatnonzero((more.theta[:, 0] >= 0) & (more.value < again.value[rising]))
    for here, fits, rows in ((below, again, slice(None)), (below[rising[better]], more, better)):
        for name in ("theta", "value", "ended_well"):
            getattr(found, name)[here] = getattr(fits, name)[rows]
    return found


def _down_the_stages(problem: Problem, starts: np.ndarray, delta: float) -> HuberSolved:
    theta = _inside(starts, problem.tied)
    if not len(theta):
        return HuberSolved(theta, np.zeros(0), np.zeros(0, dtype=bool))
    spread = np.minimum(np.abs(residuals(problem, theta)), 1.0)
    widest = float(np.median(np.sqrt((problem.weights * spread**2).sum(-1))))
    stages = [delta]
    while stages[-1] * FALL < widest:
        stages.append(stages[-1] * FALL)
    well = np.zeros(len(theta), dtype=bool)
    for one in reversed(stages):
        theta, well = _descend(problem, theta, one, STEP if one == delta else ROUGH)
    return HuberSolved(theta, _value(problem, theta, delta), well)


def _inside(theta: np.ndarray, tied: bool) -> np.ndarray:
    theta = theta.copy()
    theta[:, 1:3] = np.maximum(theta[:, 1:3], FLOOR)
    theta[:, 3:] = np.clip(theta[:, 3:].mean(1, keepdims=True) if tied else theta[:, 3:], *BOUNDS)
    return theta


def _descend(problem: Problem, theta: np.ndarray, delta: float, end: float) -> tuple[np.ndarray, np.ndarray]:
    free = np.eye(5)
    if problem.tied:
        free = np.column_stack([free[:, :3], free[:, 3] + free[:, 4]])
    if problem.fixed_e is not None:
        free = free[:, 1:]
    low = np.array([-np.inf, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0]])
    high = np.array([np.inf] * 3 + [BOUNDS[1]] * 2)
    theta, well = theta.copy(), np.zeros(len(theta), dtype=bool)
    active, part = np.arange(len(theta)), problem
    state, damping = _evaluate(problem, theta, delta, free), np.full(len(theta), 1e-3)
    for _ in range(MAX_STEPS if end == STEP else ROUGH_STEPS):
        here = theta[active]
        down = np.sign(state.gradient @ free.T)
        blocked = ((here <= low) & (down > 0)) | ((here >= high) & (down < 0))
        step = _step(state, (blocked @ np.abs(free)) > 0, damping)
        there = _inside(here + step @ free.T, problem.tied)
        tried = _evaluate(part, there, delta, free)
        better = tried.value < state.value
        moved = np.abs(there - here)[:, free.any(1)].max(1)
        theta[active] = np.where(better[:, None], there, here)
        state = _choose(better, tried, state)
        damping = np.where(better, damping / 10, np.maximum(damping, 1e-9) * 10)
        small, stuck = moved < end, ~better & (damping > 1e10)
        steep = np.abs(np.where(blocked @ np.abs(free) > 0, 0, state.gradient)).max(1) > GRADIENT * delta
        done = small | stuck
        well[active] = done & ~steep
        if done.any():
            active = active[~done]
            if not len(active):
                break
            state = _State(*(getattr(state, key)[~done] for key in _State.__dataclass_fields__))
            damping, part = damping[~done], problem.take(active)
    return theta, well


def _choose(better: np.ndarray, tried: _State, kept: _State) -> _State:
    def one(key: str) -> np.ndarray:
        new, old = getattr(tried, key), getattr(kept, key)
        return np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return _State(*(one(key) for key in _State.__dataclass_fields__))
