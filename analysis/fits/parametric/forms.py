"""The forms of the surface: plain, over-training, data-constrained.

over-training (Gadre et al. 2024, eq. 4): L = E + (a M^eta + b M^-eta) C^-eta with M = D / N. Under C = 6 N D, N is
(C / 6 M)^(1/2) and D is (C M / 6)^(1/2), so this is the plain form with alpha = beta = 2 eta, a = A 6^eta and
b = B 6^eta: four parameters. It fits where the two exponents do agree; otherwise the plain form contains it.

data-constrained (Muennighoff et al. 2023, module repeats): a token read again teaches less, by R_D*; N counts in full.
Where nothing is repeated this is the plain form. data-constrained-both is the form as they publish it: parameters
beyond those that are compute-optimal for the unique tokens are worth less too, by R_N*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.fits.parametric import huber, newton, squares
from analysis.fits.parametric.descent import Found, Problem, Rules
from analysis.fits.parametric.many import (
    BLOCK,
    HUBER,
    LEAST_SQUARES,
    Fits,
    Scaled,
    Searched,
    rows_of,
    scaled_problem,
    theta_of,
)
from analysis.fits.parametric.repeats import ALPHA, R_D, R_N, R_STAR, Discounted, Repeated, Repeats
from analysis.fits.parametric.surface import Surface

PLAIN, OVER_TRAINING, DATA_CONSTRAINED, BOTH = "plain", "over_training", "data_constrained", "data_constrained_both"
FORMS = {
    PLAIN: "E + A / N^alpha + B / D^beta",
    OVER_TRAINING: "E + A / N^alpha + B / D^alpha, equally E + (a M^eta + b M^-eta) C^-eta with M = D / N, C = 6 N D",
    DATA_CONSTRAINED: "E + A / N^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens",
    BOTH: "E + A / N'^alpha + B / D'^beta, D' = U + U R* (1 - exp(-(D / U - 1) / R*)) of U unique tokens, N' the same "
    "with R_N* and, for U, U_N: the parameters that are compute-optimal for U tokens under C = 6 N D",
}
REPEATED = (DATA_CONSTRAINED, BOTH)
NODES_D = np.log(np.geomspace(1, 100, 4))  # log R_D* at which searches start
NODES_N = np.log(np.geomspace(0.5, 50, 3))
RULES = replace(huber.RULES, steps=1500)  # E, B, beta and R_D* make up for each other along a bent valley
AGAIN = replace(huber.RULES, steps=200)  # of searches that start near, at a fit of such data
CAREFUL = 4  # unknowns' slopes that a point takes up, over those of the plain form: blocks are smaller by that


def over_training(surface: Surface) -> dict[str, Any]:
    """a, b and eta of Gadre's form for a surface with alpha = beta."""
    eta = surface.alpha / 2
    return {"a": surface.A * 6**eta, "b": surface.B * 6**eta, "eta": eta}


def fit_repeated(
    log_n: np.ndarray,
    n_tokens: np.ndarray,
    unique_tokens: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    excess: bool = False,
    objective: str = HUBER,
    every_start: bool = False,
    near: Repeats | None = None,
    told: Callable[[float], None] | None = None,
) -> tuple[Searched, Repeats]:
    """A data-constrained form for r data sets at once, arguments as `fit_many`'s but for n_tokens and unique_tokens
    [n]: the fits, and R* [r] of each. excess: N' too. Repeated tokens, or excess parameters, that no weighted row has
    make R* inf.

    Every search starts from least squares at the best node of a grid of R*, or at `near`, where a fit of such data
    ended; with `every_start`, from each node, and the best of their ends is taken. `objectives` and `ended_well` of
    what comes back are [starts, r].
    """
    w = np.ones(np.shape(losses)[-1]) if weights is None else weights
    table = [np.atleast_2d(np.asarray(one, dtype=float)) for one in (log_n, np.log(n_tokens), losses, w)]
    unique = np.minimum(unique_tokens, n_tokens)
    r, n = max(len(one) for one in table), table[2].shape[-1]
    block = max(1, BLOCK // (CAREFUL * n))
    parts = []
    for first in range(0, r, block):
        rows = slice(first, min(first + block, r))
        scaled = scaled_problem([rows_of(one, rows) for one in table], None, False, rows.stop - first)
        base = {name: getattr(scaled.problem, name) for name in ("x", "y", "loss", "weights")}
        times, log_unique = (n_tokens / unique)[None], np.log(unique)[None] - scaled.centre_d[:, None]
        problem = Repeated(**base, unique=log_unique, times=times)
        parts.append(_fit_block(problem, scaled, Discounted(excess), objective, every_start, near))
        if told is not None:
            told(rows.stop / r)
    surface = Surface(
        *(np.concatenate([getattr(p.best.surface, name) for p, _ in parts]) for name in Surface.__annotations__)
    )
    rest = (
        np.concatenate([getattr(p.best, name) for p, _ in parts]) for name in ("objective", "ended_well", "at_bound")
    )
    ends = (np.concatenate([getattr(p, name) for p, _ in parts], 1) for name in ("objectives", "ended_well"))
    r_d, bound = (np.concatenate([getattr(q, name) for _, q in parts]) for name in ("r_d", "at_bound"))
    r_n = np.concatenate([q.r_n for _, q in parts]) if excess else None
    return Searched(Fits(surface, *rest), *ends), Repeats(r_d, r_n, bound)


def _fit_block(
    problem: Repeated, scaled: Scaled, model: Discounted, objective: str, every_start: bool, near: Repeats | None
) -> tuple[Searched, Repeats]:
    r = len(problem.loss)
    starts = _starts(problem, model, every_start, near)
    again = problem.take(np.tile(np.arange(r), len(starts) // r))
    found = _solved(again, starts, objective, model, RULES if near is None else AGAIN)
    values = found.value.reshape(-1, r)
    best = values.argmin(0) * r + np.arange(r)
    unit = 2 * scaled.total * scaled.unit**2 if objective == LEAST_SQUARES else scaled.total
    theta = found.unknowns[best]
    fits = scaled.fits_of_theta(theta[:, :5], found.value[best] * unit, found.ended_well[best])
    return Searched(fits, values * unit, found.ended_well.reshape(-1, r)), _repeats(problem, theta, model)


def _solved(problem: Repeated, start: np.ndarray, objective: str, model: Discounted, rules: Rules) -> Found:
    """By least squares, from which Huber losses start too."""
    if model.excess:
        least = newton.solve_raw(problem, start, model, rules)
        theta = least.unknowns
    else:
        least = newton.solve_projected(problem, start[:, ALPHA:], model)
        theta = _theta(problem, least.linear, least.unknowns)
    if objective == LEAST_SQUARES:
        return replace(least, unknowns=theta, linear=theta[:, :1].copy())
    return huber.solve_huber(replace(problem, loss=np.log(problem.loss)), theta, huber.DELTA, model, rules)


def _theta(problem: Problem, linear: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.concatenate([theta_of(problem, rest[:, :2], linear), rest[:, 2:]], 1)


def _starts(problem: Repeated, model: Discounted, every_start: bool, near: Repeats | None) -> np.ndarray:
    """theta [s r, k], the r data sets again and again, from least squares: at `near`, else at each node of R_D* (and of
    R_N*, U_N being that of the fit in full N), or at the best of them."""
    r, end = len(problem.loss), np.log(R_STAR[1])

    def at(ends: np.ndarray, x: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Where log R* are `ends` [s r, 1 or 2] and log N' is x (log N)."""
        part = problem.take(np.tile(np.arange(r), len(ends) // r))
        y = part.unique + model.tokens(part, ends[:, :1]).log
        least = squares.solve_squares(Problem(part.x if x is None else x, y, part.loss, part.weights))
        return _theta(part, least.linear, np.concatenate([least.unknowns, ends], 1)), least.value

    def kept(found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        theta, value = found
        return theta if every_start else theta[value.reshape(-1, r).argmin(0) * r + np.arange(r)]

    stars = [] if near is None else [near.r_d, np.inf if near.r_n is None else near.r_n]
    of_d, of_n = ([np.log(min(star, R_STAR[1]))] for star in stars) if stars else (NODES_D, NODES_N)
    ends = np.full((len(of_d), 1 + model.excess), end)  # R_N* there: N as good as in full
    ends[:, 0] = of_d
    theta = kept(at(np.repeat(ends, r, 0)))
    if not model.excess:
        return theta
    theta = np.tile(theta, (len(of_n), 1))
    theta[:, R_N] = np.repeat(of_n, len(theta) // len(of_n))
    part = problem.take(np.tile(np.arange(r), len(theta) // r))
    return kept(at(theta[:, R_D:], model.params(part, theta)))


def _repeats(problem: Repeated, theta: np.ndarray, model: Discounted) -> Repeats:
    """R* of each end; inf where no weighted row tells of it."""
    seen = problem.weights > 0
    told = [np.broadcast_to((seen & (problem.times > 1 + 1e-9)).any(-1), len(theta))]
    if model.excess:
        told.append((seen & model.is_excess(problem, theta)).any(-1))
    logs = theta[:, R_D:]
    low, high = np.log(R_STAR)
    edge = (logs <= low + 1e-9) | (logs >= high - 1e-9)
    values = np.where(np.stack(told, 1), np.exp(logs), np.inf)
    bound = edge | ~np.isfinite(values)
    bound = bound if model.excess else np.column_stack([bound, np.zeros(len(bound), dtype=bool)])
    return Repeats(values[:, 0], values[:, 1] if model.excess else None, bound)
