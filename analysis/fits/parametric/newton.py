"""A fitted loss of unknowns theta, and Newton's step in them, for objectives that do not solve for E, A and B.

The unknowns are E, log A, log B, alpha and beta: log A as in Hoffmann et al.'s logsumexp, but E itself, since log E
runs away to minus infinity where E = 0 is best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.fits.parametric.descent import BOUNDS, Found, Problem, Rules, State, descend, with_e_not_negative
from analysis.fits.parametric.squares import linear_of, reduce

FLOOR = -14.0  # of log A and log B at the centre, over the loss: as good as zero
RULES = Rules(steps=150, small=1e-10, stiff=1e10, least=0.0, first=1e-9)
FLAT = 1e-9  # of the gradient of least squares, the mean loss being one


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

    def logs(self, problem: Problem, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log N' and log D' from the unknowns after log B, where those alone tell."""


class Plain:
    """E + A / N^alpha + B / D^beta."""

    low = np.array([-np.inf, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0]])
    high = np.array([np.inf] * 3 + [BOUNDS[1]] * 2)

    def loss(self, problem: Problem, theta: np.ndarray) -> np.ndarray:
        return self._terms(problem, theta)[0]

    def logs(self, problem: Problem, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return problem.x, problem.y

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


@dataclass(frozen=True)
class Curved(State):
    """The weighted mean of Huber losses (of squares) at theta [r, k], its gradient and Hessian [r, f, f] over the free
    directions, and the diagonal of the Hessian of least squares, `scale` [r, f]."""

    hessian: np.ndarray
    scale: np.ndarray


def newton_step(
    state: Curved, unknowns: np.ndarray, damping: np.ndarray, ends: tuple[np.ndarray, np.ndarray], free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The step in scaled unknowns on positive eigenvalues, and which free directions stay, as they are at an end."""
    down = np.sign(state.gradient @ free.T)
    blocked = ((unknowns <= ends[0]) & (down > 0)) | ((unknowns >= ends[1]) & (down < 0))
    held = (blocked @ np.abs(free)) > 0
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
    return step @ free.T, held


@dataclass(frozen=True)
class Followed(Curved):
    """With `linear` [r, 3]: E, A and B that follow."""

    linear: np.ndarray


@dataclass(frozen=True)
class InTheta:
    """Of a model's unknowns theta, as a `descent.Objective` but for its value: the directions `free` [k, f] along which
    a step may go."""

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
        return newton_step(state, theta, damping, (self.model.low, self.model.high), self.free)

    def ended_well(self, state: Curved, step: np.ndarray, held: np.ndarray, stuck: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(np.where(held, 0, state.gradient)).max(1) <= self.flat)

    def linear(self, theta: np.ndarray, state: Curved) -> np.ndarray:
        return theta[:, :1]


def directions(problem: Problem, size: int) -> np.ndarray:
    """[k, f]: the free directions of k unknowns: one for both exponents that are tied, none for a given E."""
    free = np.eye(size)
    if problem.tied:
        free = np.column_stack([free[:, :3], free[:, 3] + free[:, 4], free[:, 5:]])
    return free if problem.fixed_e is None else free[:, 1:]


@dataclass(frozen=True)
class Raw(InTheta):
    """Half the mean square of the loss less the fitted one."""

    def evaluate(self, problem: Problem, theta: np.ndarray) -> Curved:
        bent, w, free = self.model.bent(problem, theta), problem.weights, self.free
        slopes = bent.slopes * bent.loss[:, None]
        wr = w * (problem.loss - bent.loss)
        gradient = -(slopes @ wr[:, :, None])[..., 0]
        hessian = (slopes * w[:, None, :]) @ np.swapaxes(slopes, 1, 2) - bent.bend(wr * bent.loss)
        scale = ((slopes * slopes) @ w[..., None])[..., 0]
        value = 0.5 * (wr * (problem.loss - bent.loss)).sum(-1)
        return Curved(value, gradient @ free, free.T @ hessian @ free, np.broadcast_to(scale, gradient.shape) @ free**2)


def solve_raw(problem: Problem, starts: np.ndarray, model: Model, rules: Rules) -> Found:
    """Least squares with E >= 0 from theta `starts` [r, k]."""

    def search(problem: Problem, starts: np.ndarray | None) -> Found:
        assert starts is not None
        return descend(Raw(model, directions(problem, starts.shape[1]), FLAT), problem, starts, rules)

    def rising(problem: Problem, theta: np.ndarray) -> np.ndarray:
        whole = Raw(model, np.eye(theta.shape[1]), FLAT)
        return np.asarray(whole.evaluate(problem, theta).gradient[:, 0] < 0)

    return with_e_not_negative(problem, starts, search, rising)


@dataclass(frozen=True)
class Projection(InTheta):
    """The same over the unknowns after E, log A and log B alone, which follow from them: for models whose N' and D' do
    not depend on A and B. `linear` is E, A and B."""

    def inside(self, problem: Problem, rest: np.ndarray) -> np.ndarray:
        return np.clip(rest, self.model.low[3:], self.model.high[3:])

    def evaluate(self, problem: Problem, rest: np.ndarray) -> Followed:
        x, y = self.model.logs(problem, rest)
        linear = linear_of(problem, np.exp(-rest[:, :1] * x), np.exp(-rest[:, 1:2] * y))
        e = linear[:, :1] if problem.fixed_e is None else problem.fixed_e[:, None]
        theta = np.concatenate([e, np.log(np.maximum(linear[:, 1:], 1e-300)), rest], 1)
        bent, w = self.model.bent(problem, theta), problem.weights
        slopes = bent.slopes * bent.loss[:, None]
        wr = w * (problem.loss - bent.loss)
        gauss = (slopes * w[:, None, :]) @ np.swapaxes(slopes, 1, 2)
        free = linear > 0
        free[:, 0] = problem.fixed_e is None
        hessian, reduced = (reduce(one, free) for one in (gauss - bent.bend(wr * bent.loss), gauss))
        gradient = -(slopes[:, 3:] @ wr[:, :, None])[..., 0]
        value = 0.5 * (wr * (problem.loss - bent.loss)).sum(-1)
        return Followed(value, gradient, hessian, np.diagonal(reduced, axis1=1, axis2=2), linear)

    def step(self, state: Curved, rest: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = self.model.low[3:], self.model.high[3:]
        return newton_step(state, rest, damping, ends, np.eye(rest.shape[1]))

    def linear(self, rest: np.ndarray, state: Curved) -> np.ndarray:
        assert isinstance(state, Followed)
        return state.linear


def solve_projected(problem: Problem, starts: np.ndarray, model: Model) -> Found:
    """Least squares with E, A, B >= 0 from alpha, beta and what else the model has [r, k - 3]."""
    objective = Projection(model, np.eye(starts.shape[1]), FLAT)

    def search(problem: Problem, starts: np.ndarray | None) -> Found:
        assert starts is not None
        return descend(objective, problem, starts, RULES)

    return with_e_not_negative(problem, starts, search)
