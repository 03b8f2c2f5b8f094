"""Least squares of E + A / N^alpha + B / D^beta on the raw loss by variable projection, r data sets at once.

For given exponents the best E, A, B >= 0 have a closed form, which leaves two unknowns (Golub and Pereyra 1973; for
scaling laws arXiv 2603.22339, which finds a condition number near 11 where that of all five is 3.5e11). Newton's method
on the two, damped, from the best node of a grid of exponents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.parametric.descent import BOUNDS, Found, Problem, Rules, State, descend, with_e_not_negative

GRID = np.geomspace(0.02, 1.5, 10)  # of exponents, on which every fit starts
RULES = Rules(steps=100, small=1e-11, stiff=1e8, least=1e-15, first=1e-12)
GRADIENT = 1e-7  # of log sum of squares over an exponent, below which a search that cannot go down has ended well


def linear_terms(m: dict[str, np.ndarray], with_e: bool) -> np.ndarray:
    """[..., 3]: E of any sign, A >= 0 and B >= 0 of least squares from weighted moments of 1, p, q and the loss l, any
    shape [...]. Without E: `l` is what lies above a given one, and E comes back as 0.

    A and B can both be positive, or one, or none: each case has a closed form, and the first is best where feasible.
    """
    p, q, pp, pq, qq, mean, pl, ql = (m[key] for key in ("p", "q", "pp", "pq", "qq", "l", "pl", "ql"))
    if with_e:
        pp, pq, qq, pl, ql = pp - p * p, pq - p * q, qq - q * q, pl - p * mean, ql - q * mean
    with np.errstate(divide="ignore", invalid="ignore"):
        det = pp * qq - pq**2
        both_a, both_b = (qq * pl - pq * ql) / det, (pp * ql - pq * pl) / det
        feasible = (both_a >= 0) & (both_b >= 0) & (det > 0)
        only_a, only_b = (
            np.where(square > 0, np.maximum(cross / square, 0.0), 0.0) for square, cross in ((pp, pl), (qq, ql))
        )
        first = only_a * pl >= only_b * ql  # of the two with one term, the one that explains more
        a = np.where(feasible, both_a, np.where(first, only_a, 0.0))
        b = np.where(feasible, both_b, np.where(first, 0.0, only_b))
    e = mean - a * p - b * q if with_e else np.zeros_like(a)
    return np.stack(np.broadcast_arrays(e, a, b), -1)


def grid_starts(problem: Problem, grid: np.ndarray = GRID) -> np.ndarray:
    """[r, 2]: the node of a grid of exponents with the least sum of squares."""
    w, level = np.broadcast_arrays(problem.weights, _above(problem))
    p, q = (np.exp(-grid[:, None] * value[:, None, :]) for value in (problem.x, problem.y))  # [r, k, n]
    wide, wl = w[:, None, :], (w * level)[:, None, :]
    first = {"p": (wide * p).sum(-1), "pp": (wide * p * p).sum(-1), "pl": (wl * p).sum(-1)}
    second = {"q": (wide * q).sum(-1), "qq": (wide * q * q).sum(-1), "ql": (wl * q).sum(-1)}
    m = {key: value[:, :, None] for key, value in first.items()} | {k: v[:, None, :] for k, v in second.items()}
    m["pq"] = (wide * p) @ np.swapaxes(q, -1, -2)
    m["l"], m["ll"] = wl.sum(-1)[..., None], (w * level * level).sum(-1)[:, None, None]
    e, a, b = np.moveaxis(linear_terms(m, problem.fixed_e is None), -1, 0)
    square = e * e + a * a * m["pp"] + b * b * m["qq"] + 2 * (e * a * m["p"] + e * b * m["q"] + a * b * m["pq"])
    square = square - 2 * (e * m["l"] + a * m["pl"] + b * m["ql"])
    if problem.tied:
        square = np.where(np.eye(len(grid), dtype=bool), square, np.inf)
    best = square.reshape(len(square), -1).argmin(1)
    return np.stack([grid[best // len(grid)], grid[best % len(grid)]], -1)


def _above(problem: Problem) -> np.ndarray:
    return problem.loss if problem.fixed_e is None else problem.loss - problem.fixed_e[:, None]


@dataclass(frozen=True)
class Projected(State):
    """At exponents [r, 2]: half the weighted mean square at the best E, A and B there, `linear` [r, 3] at the centre,
    with its reduced Hessians [r, 2, 2], exact and without second derivatives."""

    linear: np.ndarray
    newton: np.ndarray
    gauss: np.ndarray


def linear_of(problem: Problem, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """[r, 3]: E of any sign (0 where it is given), A >= 0 and B >= 0 of least squares on terms p and q [r, n]."""
    w, level = problem.weights, _above(problem)
    wp, wq, wl = w * p, w * q, w * level
    m = {"p": wp.sum(-1), "q": wq.sum(-1), "l": wl.sum(-1) + 0 * p[:, 0]}
    m |= {"pp": (wp * p).sum(-1), "pq": (wp * q).sum(-1), "qq": (wq * q).sum(-1)}
    m |= {"pl": (wl * p).sum(-1), "ql": (wl * q).sum(-1), "ll": (wl * level).sum(-1)}
    return linear_terms(m, problem.fixed_e is None)


def _evaluate(problem: Problem, exponents: np.ndarray) -> Projected:
    """Half the mean square at the best E, A, B, its gradient and reduced Hessians over the exponents."""
    x, y, w, level = problem.x, problem.y, problem.weights, _above(problem)
    p, q = np.exp(-exponents[:, :1] * x), np.exp(-exponents[:, 1:] * y)
    linear = linear_of(problem, p, q)
    e, a, b = linear.T[:, :, None]
    ap, bq = a * p, b * q
    residual = level - e - ap - bq
    wr = w * residual
    xa, yb = x * ap, y * bq  # of the residual, over alpha and over beta
    jacobian = np.stack(np.broadcast_arrays(-np.ones_like(p), -p, -q, xa, yb), 1)  # [r, 5, n]
    gauss = (jacobian * w[:, None, :]) @ np.swapaxes(jacobian, -1, -2)
    newton = gauss.copy()
    newton[:, 3, 3] -= (wr * x * xa).sum(-1)
    newton[:, 4, 4] -= (wr * y * yb).sum(-1)
    for i, j, cross in ((1, 3, x * p), (2, 4, y * q)):
        newton[:, i, j] += (wr * cross).sum(-1)
        newton[:, j, i] = newton[:, i, j]
    gradient = np.stack([(wr * xa).sum(-1), (wr * yb).sum(-1)], -1)
    free = linear > 0
    free[:, 0] = problem.fixed_e is None
    return Projected(0.5 * (wr * residual).sum(-1), gradient, linear, reduce(newton, free), reduce(gauss, free))


def linear_at(problem: Problem, exponents: np.ndarray) -> np.ndarray:
    """[r, 3]: the best E, A, B >= 0 at the centre for exponents [r, 2]; a given E comes back as 0."""
    linear = _evaluate(problem, exponents).linear
    below = np.flatnonzero(linear[:, 0] < 0)
    if len(below):
        zero = replace(problem.take(below), fixed_e=np.zeros(len(below)))
        linear[below] = _evaluate(zero, exponents[below]).linear
    return linear


def reduce(hessian: np.ndarray, free: np.ndarray) -> np.ndarray:
    """[r, k - 3, k - 3]: a Hessian [r, k, k] over all unknowns but E, A, B when the free ones [r, 3] of them follow."""
    keep = free[:, :, None] & free[:, None, :]
    inner = np.where(keep, hessian[:, :3, :3], np.eye(3))
    cross = np.where(free[:, :, None], hessian[:, :3, 3:], 0.0)
    ridge = 1e-15 * np.trace(inner, axis1=1, axis2=2)[:, None, None] * np.eye(3)  # two columns may be the same
    follow = np.linalg.solve(inner + ridge, cross)
    return np.asarray(hessian[:, 3:, 3:] - np.swapaxes(cross, -1, -2) @ follow)


def _tied_step(state: Projected, damping: np.ndarray) -> np.ndarray:
    h = state.newton.sum((1, 2))
    scale = state.gauss.sum((1, 2))
    h = np.where(h > 1e-6 * scale, h, scale) + damping * scale + 1e-300
    return np.repeat(np.clip(-state.gradient.sum(1) / h, -0.5, 0.5)[:, None], 2, 1)


@dataclass(frozen=True)
class Squares:
    """Least squares over the exponents as a `descent.Objective`."""

    tied: bool

    def inside(self, problem: Problem, exponents: np.ndarray) -> np.ndarray:
        exponents = np.clip(exponents, *BOUNDS)
        return np.repeat(exponents.mean(1, keepdims=True), 2, 1) if self.tied else exponents

    def evaluate(self, problem: Problem, exponents: np.ndarray) -> Projected:
        return _evaluate(problem, exponents)

    def step(self, state: Projected, exponents: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A damped Newton step, Gauss-Newton where the Hessian is not positive, that stays inside the bounds."""
        gradient = state.gradient
        outward = ((exponents <= BOUNDS[0]) & (gradient > 0)) | ((exponents >= BOUNDS[1]) & (gradient < 0))
        if self.tied:
            return _tied_step(state, damping), outward
        scale = np.maximum(np.diagonal(state.gauss, axis1=1, axis2=2), 1e-300)
        scale = np.maximum(scale, 1e-10 * scale.max(1, keepdims=True))
        det = np.linalg.det(state.newton)
        positive = (det > 1e-8 * scale.prod(1)) & (state.newton[:, 0, 0] > 0)
        h = np.where(positive[:, None, None], state.newton, state.gauss)
        h = h + (damping[:, None] * scale + 1e-14 * scale)[:, :, None] * np.eye(2)
        h = np.where(outward[:, :, None] | outward[:, None, :], np.where(np.eye(2, dtype=bool), h, 0.0), h)
        step = -np.linalg.solve(h, np.where(outward, 0.0, gradient)[..., None])[..., 0]
        return step * np.minimum(1.0, 0.5 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-300)), outward

    def ended_well(self, state: Projected, step: np.ndarray, held: np.ndarray, stuck: np.ndarray) -> np.ndarray:
        steep = np.abs(step * state.gradient).max(1) > GRADIENT * np.maximum(state.value, 1e-30)
        return np.asarray(~(stuck & steep))

    def linear(self, exponents: np.ndarray, state: Projected) -> np.ndarray:
        return state.linear


def solve_squares(problem: Problem, starts: np.ndarray | None = None) -> Found:
    """Least squares with E, A, B >= 0 from exponents `starts` [r, 2] (the best node of the grid), each to its own local
    minimum. `linear` is E, A and B at the centre; a given E comes back as 0."""
    objective = Squares(problem.tied)

    def search(problem: Problem, starts: np.ndarray | None) -> Found:
        return descend(objective, problem, grid_starts(problem) if starts is None else starts, RULES)

    return with_e_not_negative(problem, starts, search)
