"""What repeated tokens and excess parameters are worth (Muennighoff et al. 2023, arXiv 2305.16264), and the loss then.

D tokens of which U are unique count as D' = U + U R_D* (1 - exp(-(D / U - 1) / R_D*)) (their equation of effective
data), N parameters as N' by the same formula with R_N* and U_N in the place of U: the parameters that are
compute-optimal for U tokens read once under C = 6 N D, at most N; alpha A / U_N^alpha = beta B / U^beta. So U_N moves
with A, B, alpha and beta, and all are fitted together. The loss is E + A / N'^alpha + B / D'^beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fits.parametric.descent import BOUNDS, Problem
from analysis.fits.parametric.newton import FLOOR, Bent
from analysis.fits.parametric.surface import Surface

R_STAR = (0.1, 1e4)  # range of R_D* and R_N*; one that ends here is not identified
MOST = 60.0  # of log N / U_N, beyond which exp would run away
E, A, B, ALPHA, BETA, R_D, R_N = range(7)  # unknowns


def effective(amount: Any, unique: Any, r_star: Any) -> np.ndarray:
    """D' of an amount of tokens of which `unique` are new; the amount itself up to there, and for r_star = inf."""
    unique = np.minimum(unique, amount)
    repeats = amount / unique - 1
    with np.errstate(invalid="ignore"):
        worth = np.where(np.isinf(r_star), repeats, -r_star * np.expm1(-repeats / r_star))
    return np.asarray(unique * (1 + worth))


def unique_params(surface: Surface, unique_tokens: Any) -> Any:
    """U_N: the parameters that are compute-optimal under C = 6 N D for tokens read once."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(surface.alpha * surface.A / (surface.beta * surface.B))
        return np.exp((ratio + surface.beta * np.log(unique_tokens)) / surface.alpha)


@dataclass(frozen=True)
class Repeats:
    """R_D* and R_N* of one surface, numbers, or of r surfaces, [r]; inf: as good as new. r_n is None where the form
    counts N in full. `at_bound` [r, 2]: they ended at the end of their range."""

    r_d: Any
    r_n: Any
    at_bound: np.ndarray

    def take(self, which: Any) -> Repeats:
        r_n = None if self.r_n is None else self.r_n[which]
        return Repeats(self.r_d[which], r_n, self.at_bound[which])

    def column(self) -> Repeats:
        return self.take((..., None)) if self.at_bound.ndim == 2 and np.ndim(self.r_d) else self

    def loss(self, surface: Surface, n_params: Any, n_tokens: Any, unique_tokens: Any = None) -> Any:
        """L of N parameters after D tokens of which `unique_tokens` are new (all, if left out)."""
        n, d = (np.asarray(value, dtype=float) for value in (n_params, n_tokens))
        unique = d if unique_tokens is None else np.minimum(np.asarray(unique_tokens, dtype=float), d)
        if self.r_n is not None:
            n = effective(n, unique_params(surface, unique), self.r_n)
        return surface.loss(n, effective(d, unique, self.r_d))


@dataclass(frozen=True, kw_only=True)
class Repeated(Problem):
    """A problem with `unique`: centred log of unique tokens, at most D (centred as y is), and `times`: D over them."""

    unique: np.ndarray
    times: np.ndarray


@dataclass(frozen=True)
class _Worth:
    """1 + R (1 - exp(-(ratio - 1) / R)) in logarithms, [r, n], and its derivatives over log ratio (z) and log R (s)."""

    log: np.ndarray
    z: np.ndarray
    s: np.ndarray
    zz: np.ndarray
    zs: np.ndarray
    ss: np.ndarray


def worth(ratio: np.ndarray, log_r: np.ndarray) -> _Worth:
    r = np.exp(log_r)
    k = (ratio - 1) / r
    left = np.exp(-k)
    whole = 1 - r * np.expm1(-k)
    lost = -np.expm1(-k) - k * left
    z, s = ratio * left / whole, r * lost / whole
    zz = ratio * left * (1 - ratio / r) / whole - z * z
    return _Worth(np.log(whole), z, s, zz, k * left * ratio / whole - z * s, r * (lost - k * k * left) / whole - s * s)


def _optimal(problem: Repeated, columns: np.ndarray) -> np.ndarray:
    """[r, n]: log U_N, centred as x is, from theta [k, r, 1]."""
    a, b, alpha, beta = columns[A : BETA + 1]
    return np.asarray((np.log(alpha / beta) + a - b + beta * problem.unique) / alpha)


class Discounted:
    """E + A / N'^alpha + B / D'^beta as a `newton.Model` of E, log A, log B, alpha, beta, log R_D* and, with `excess`,
    log R_N*; without it N' is N."""

    def __init__(self, excess: bool) -> None:
        ends = np.log(R_STAR)
        self.excess = excess
        self.low = np.array([-np.inf, FLOOR, FLOOR, BOUNDS[0], BOUNDS[0], *[ends[0]] * (1 + excess)])
        self.high = np.array([np.inf] * 3 + [BOUNDS[1]] * 2 + [ends[1]] * (1 + excess))

    def loss(self, problem: Problem, theta: np.ndarray) -> np.ndarray:
        return self.bent(problem, theta).loss

    def logs(self, problem: Problem, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(problem, Repeated) and not self.excess
        return problem.x, problem.unique + self.tokens(problem, rest[:, R_D - ALPHA, None]).log

    def tokens(self, problem: Repeated, log_r: np.ndarray) -> _Worth:
        """D' over the unique tokens at log R_D* [r, 1]."""
        return worth(problem.times, log_r)

    def params(self, problem: Repeated, theta: np.ndarray) -> np.ndarray:
        """[r, n]: log N', centred as x is."""
        return self._params(problem, theta.T[:, :, None])[0]

    def is_excess(self, problem: Repeated, theta: np.ndarray) -> np.ndarray:
        """[r, n]: whether N is above U_N."""
        return np.asarray(problem.x > _optimal(problem, theta.T[:, :, None]))

    def bent(self, problem: Problem, theta: np.ndarray) -> Bent:
        assert isinstance(problem, Repeated)
        size = len(self.low)
        columns = theta.T[:, :, None]
        alpha, beta = columns[ALPHA], columns[BETA]
        tokens = self.tokens(problem, columns[R_D])
        x, x1, curve = self._params(problem, columns)
        y = problem.unique + tokens.log
        p, q = np.exp(columns[A] - alpha * x), np.exp(columns[B] - beta * y)
        fitted = columns[E] + p + q
        first_p, first_q = (np.zeros((len(theta), size, y.shape[-1])) for _ in range(2))
        first_p[:, A], first_p[:, ALPHA] = 1.0, -x
        first_p -= alpha[:, None] * x1
        first_q[:, B], first_q[:, BETA], first_q[:, R_D] = 1.0, -y, -beta * tokens.s
        with np.errstate(invalid="ignore", divide="ignore"):
            p, q, one = p / fitted, q / fitted, 1 / fitted
        slopes = p[:, None] * first_p + q[:, None] * first_q
        slopes[:, E] += one

        def bend(weights: np.ndarray) -> np.ndarray:
            of_n, of_d = weights * p, weights * q
            found = (first_p * of_n[:, None]) @ np.swapaxes(first_p, 1, 2)
            found += (first_q * of_d[:, None]) @ np.swapaxes(first_q, 1, 2)
            found[:, BETA, R_D] -= (of_d * tokens.s).sum(-1)
            found[:, R_D, BETA] = found[:, BETA, R_D]
            found[:, R_D, R_D] -= (of_d * beta * tokens.ss).sum(-1)
            if self.excess:
                moved = (x1 * of_n[:, None]).sum(-1)
                found[:, ALPHA] -= moved
                found[:, :, ALPHA] -= moved
                found -= alpha[:, :, None] * curve(of_n)
            return found

        return Bent(fitted, slopes, bend)

    def _params(self, problem: Repeated, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """log N' [r, n] (centred as x is), its first derivatives [r, k, n], and what weights [r, n] make of its second
        ones, summed over the points [r, k, k]."""
        size = len(self.low)
        shape = (columns.shape[1], problem.unique.shape[-1])
        first = np.zeros((shape[0], size, shape[1]))
        if not self.excess:
            return problem.x, first, None
        alpha, beta = columns[ALPHA], columns[BETA]
        optimal = _optimal(problem, columns)
        over = np.clip(problem.x - optimal, 0.0, MOST)
        params = worth(np.exp(over), columns[R_N])
        is_over = over > 0
        x = np.where(is_over, optimal + params.log, problem.x)
        of_u = np.zeros_like(first)  # of U_N
        of_u[:, A], of_u[:, B], of_u[:, BETA] = 1 / alpha, -1 / alpha, (problem.unique - 1 / beta) / alpha
        of_u[:, ALPHA] = 1 / alpha**2 - optimal / alpha
        along = np.where(is_over, 1 - params.z, 0.0)  # of log N' over log U_N
        first += along[:, None] * of_u
        first[:, R_N] = np.where(is_over, params.s, 0.0)

        def curve(weights: np.ndarray) -> np.ndarray:
            w = weights * is_over
            found = (of_u * (w * params.zz)[:, None]) @ np.swapaxes(of_u, 1, 2)
            pull = weights * along
            total = pull.sum(-1)
            al, be = alpha[:, 0], beta[:, 0]
            for i, value in (
                (A, -total / al**2),
                (B, total / al**2),
                (BETA, -(pull * (problem.unique - 1 / beta)).sum(-1) / al**2),
            ):
                found[:, i, ALPHA] += value
                found[:, ALPHA, i] += value
            found[:, BETA, BETA] += total / (be**2 * al)
            found[:, ALPHA, ALPHA] += (pull * (2 * optimal / alpha**2 - 3 / alpha**3)).sum(-1)
            cross = -(of_u * (w * params.zs)[:, None]).sum(-1)
            found[:, R_N] += cross
            found[:, :, R_N] += cross
            found[:, R_N, R_N] += (w * params.ss).sum(-1)
            return found

        return x, first, curve
