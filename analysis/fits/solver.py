"""The one solver of every fit of a surface: Huber losses or least squares, r data sets at once.

Newton's method with the exact Hessian, its eigenvalues made positive, and damping that a rejected step raises. Unknowns
stay in their ranges: what is at an end and would leave it is held, and the others follow. Searches begin at the best
node of a grid of exponents, for which E, A and B have a closed form, and go down by least squares.

Huber losses of log L - log of the fitted loss (Hoffmann et al. 2022, eq. 3) go on from there: with delta = 1e-3 most
residuals lie in the linear part, where the objective is nearly a sum of absolute values and a search would creep. So
delta falls to its value by factors, each stage from the last one's solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from analysis.fits.forms import ALPHA, FLOOR, PLAIN, A, Data, E, Form, Joint, form_of, present
from analysis.fits.surface import Surface
from arch.errors import InputError

HUBER, LEAST_SQUARES = "huber", "least_squares"
OBJECTIVES = {
    HUBER: "sum of Huber losses (delta {delta:g}) of log L - log(E + A / N^alpha + B / D^beta)",
    LEAST_SQUARES: "sum of squares of L - (E + A / N^alpha + B / D^beta)",
}
DELTA = 1e-3
FALL = 3.0  # of delta from stage to stage
GRID = np.geomspace(0.02, 1.5, 10)  # of exponents, on which searches start
# Of a search, which may have to follow a bent valley (E, B, beta and R_D make up for each other); of a stage before the
# last.
STEPS, ROUGH_STEPS = 1500, 20
SMALL, ROUGH_SMALL = 1e-10, 1e-4  # of a step, below which a search has ended
FIRST_DAMPING, LEAST_RAISED, STIFF = 1e-3, 1e-9, 1e10  # damping: first, of a rejected step, at which a search is stuck
FLAT = {HUBER: 1e-5, LEAST_SQUARES: 1e-7}  # of the gradient over its largest possible value: nothing goes down any more
UNSOLVED = 1e6  # residual where the fitted loss is not positive: a step there is always rejected
# Searches that start at a fit of such data end where others do while an exponent moves by less, as a share of itself;
# where more of them than a tenth move farther, the data hardly tell it, and there may be several such ends
# (docs/research/fit-speed.md).
SAME_BASIN, FEW_LOST = 0.2, 0.1
BLOCK = 150_000  # points of all data sets that are worked on together, for the cache's sake


@dataclass(frozen=True)
class Objective:
    """What is minimised. delta: of Huber's loss of log residuals; None: squares of the loss itself, or, with
    `precision` [n, n], squares of log residuals e as e @ precision @ e."""

    delta: float | None = DELTA
    precision: np.ndarray | None = None

    @property
    def is_of_squares(self) -> bool:
        """Whether it is of squares of the loss itself."""
        return self.delta is None and self.precision is None

    def residual(self, data: Data, loss: np.ndarray) -> np.ndarray:
        if self.is_of_squares:
            return data.loss - loss
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(loss > 0, np.log(data.loss / loss), UNSOLVED))


SQUARES = Objective(None)


@dataclass(frozen=True)
class State:
    """Of r trials: the objective [r], its gradient [r, k] and Hessian [r, k, k] over the unknowns, the diagonal of that
    of least squares, `scale` [r, k], and whether the gradient is as good as none, where it is not held [r, k]."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    scale: np.ndarray
    flat: np.ndarray

    def take(self, rows: np.ndarray) -> State:
        return State(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: np.ndarray, other: State) -> None:
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(other, field.name)[rows]


def evaluate(form: Form | Joint, data: Data, objective: Objective, theta: np.ndarray) -> State:
    loss, slopes = form.slopes(theta, data)
    e, w, turned = objective.residual(data, loss), data.weights, np.swapaxes(slopes, 1, 2)
    if objective.precision is not None:
        pull = e @ objective.precision
        value, curve = 0.5 * (pull * e).sum(-1), pull
        square = slopes @ objective.precision @ turned
        hessian = square + (slopes * curve[:, None]) @ turned
        most = np.sqrt(2 * value)[:, None]
    elif objective.delta is None:
        slopes = slopes * loss[:, None]
        turned = np.swapaxes(slopes, 1, 2)
        pull = w * e
        value, hessian = 0.5 * (pull * e).sum(-1), (slopes * w[:, None]) @ turned
        square, most = hessian, np.sqrt(2 * value)[:, None]
    else:
        delta, size = objective.delta, np.abs(e)
        clipped = np.clip(e, -delta, delta)
        pull = w * clipped
        value = (pull * (e - 0.5 * clipped)).sum(-1)  # half the square up to delta, linear beyond
        hessian = (slopes * (w * ((size <= delta) + clipped))[:, None]) @ turned
        inside = w * (delta / np.maximum(size, delta))
        scale = ((slopes * slopes) @ np.broadcast_to(inside, e.shape)[..., None])[..., 0]
        most = np.full((len(theta), 1), delta)
    gradient = -(slopes @ np.broadcast_to(pull, e.shape)[..., None])[..., 0]
    if objective.delta is None:
        scale = np.diagonal(square, axis1=1, axis2=2).copy()
        limit = FLAT[LEAST_SQUARES] * most * np.sqrt(np.maximum(scale, 1e-10 * scale.max(1, keepdims=True))) + 1e-14
    else:
        limit = np.broadcast_to(FLAT[HUBER] * most, gradient.shape)
    if objective.is_of_squares:  # of the loss, not of its logarithm
        slopes, pull = slopes / loss[:, None], pull * loss
    hessian = hessian - form.bend(theta, data, loss, slopes, pull)
    hessian = (hessian + np.swapaxes(hessian, 1, 2)) / 2
    return State(value, gradient, hessian, scale, np.abs(gradient) <= limit)


def descend(
    form: Form | Joint,
    data: Data,
    objective: Objective,
    starts: np.ndarray,
    steps: int = STEPS,
    small: float = SMALL,
    first_damping: float = FIRST_DAMPING,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From `starts` [r, k], each down to where nothing goes down any more: the unknowns [r, k], the objective [r], and
    whether each ended well [r]."""
    block = max(1, BLOCK // data.loss.shape[-1])
    if len(starts) > block:
        rows = np.arange(len(starts))
        parts = [rows[first : first + block] for first in range(0, len(rows), block)]
        ends = [descend(form, data.take(part), objective, starts[part], steps, small, first_damping) for part in parts]
        theta, value, well = map(np.concatenate, zip(*ends, strict=True))
        return theta, value, well
    theta = _inside(form, data, starts)
    value, well = np.empty(len(theta)), np.zeros(len(theta), dtype=bool)
    active, damping, part = np.arange(len(theta)), np.full(len(theta), first_damping), data
    state = evaluate(form, part, objective, theta)
    for _ in range(steps):
        here = theta[active]
        there = _stepped(form, part, state, here, damping)
        if objective.is_of_squares and isinstance(form, Form) and form.linear:
            there = _at(form, part, there[:, ALPHA:])  # E, A and B follow from the others
        tried = evaluate(form, part, objective, there)
        better = tried.value < state.value
        moved = np.abs(there - here).max(1)
        theta[active[better]] = there[better]
        state.put(better, tried)
        damping = np.where(better, damping / 10, np.maximum(damping, LEAST_RAISED) * 10)
        done = (moved < small) | (~better & (damping > STIFF))
        if done.any():
            held = _outward(form, part, theta[active], state.gradient)
            well[active[done]] = (held | state.flat).all(1)[done]
            value[active[done]] = state.value[done]
            active, damping, state = active[~done], damping[~done], state.take(~done)
            if not len(active):
                return theta, value, well
            part = data.take(active)
    value[active] = state.value
    return theta, value, well


def _inside(form: Form | Joint, data: Data, theta: np.ndarray) -> np.ndarray:
    theta = np.clip(theta, form.low, form.high)
    if data.e is not None:
        theta[:, E] = data.e
    return theta


def _outward(form: Form | Joint, data: Data, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """[r, k]: the unknowns at an end of their range that the gradient would move beyond it, and E where it is given."""
    held = ((theta <= form.low) & (gradient > 0)) | ((theta >= form.high) & (gradient < 0))
    if data.e is not None:
        held[:, E] = True
    return np.asarray(held)


def _stepped(form: Form | Joint, data: Data, state: State, theta: np.ndarray, damping: np.ndarray) -> np.ndarray:
    """Where a damped Newton step leads; what it would carry out of its range goes to the end of that, and the others
    follow."""
    held = _outward(form, data, theta, state.gradient)
    step = _newton(state, held, np.zeros_like(theta), damping)
    there = theta + step
    out = ~held & ((there < form.low) | (there > form.high))
    rows = np.flatnonzero(out.any(1))
    if len(rows):
        moved = np.where(out[rows], np.clip(there[rows], form.low, form.high) - theta[rows], 0.0)
        step[rows] = _newton(state.take(rows), held[rows] | out[rows], moved, damping[rows])
        there[rows] = theta[rows] + step[rows]
    return _inside(form, data, there)


def _newton(state: State, held: np.ndarray, moved: np.ndarray, damping: np.ndarray) -> np.ndarray:
    """The step [r, k] in scaled unknowns on positive eigenvalues, no longer than 1; what is `held` moves by `moved`."""
    floor = 1e-10 * state.scale.max(1, keepdims=True) + 1e-300
    root = np.sqrt(np.maximum(state.scale, floor))
    scaled = state.hessian / (root[:, :, None] * root[:, None, :])
    pull = -(state.gradient + (state.hessian @ moved[:, :, None])[..., 0]) / root
    eye = np.eye(held.shape[1], dtype=bool)
    scaled = np.where(held[:, :, None] | held[:, None, :], np.where(eye, 1.0, 0.0), scaled)
    values, vectors = np.linalg.eigh(scaled)
    along = (np.swapaxes(vectors, 1, 2) @ np.where(held, 0.0, pull)[:, :, None])[..., 0]
    along = along / (np.maximum(np.abs(values), 1e-9) + damping[:, None])
    step = (vectors @ along[:, :, None])[..., 0] / root
    step = step * np.minimum(1.0, 1.0 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-300))
    return np.where(held, moved, step)


def minimise(
    form: Form | Joint, data: Data, objective: Objective, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`descend` by any objective; a Huber loss down the stages of its delta."""
    if objective.delta is None:
        return descend(form, data, objective, starts)
    theta = _inside(form, data, starts)
    spread = np.minimum(np.abs(objective.residual(data, form.loss(theta, data))), 1.0)
    widest = float(np.median(np.sqrt((data.weights * spread**2).sum(-1)))) if len(theta) else 0.0
    deltas = [objective.delta]
    while deltas[-1] * FALL < widest:
        deltas.append(deltas[-1] * FALL)
    for delta in deltas[:0:-1]:
        theta = descend(form, data, replace(objective, delta=delta), theta, ROUGH_STEPS, ROUGH_SMALL)[0]
    return descend(form, data, objective, theta)


@dataclass(frozen=True)
class Solution:
    """r fits: their surfaces [r], the objective [r] (weighted sum as OBJECTIVES says), whether each search ended where
    nothing goes down, and which parameters of the form's `ranges` ended at the end of theirs or are decided by no point
    [r, ranges]. starts [s, r]: the objective at the end of every start."""

    surface: Surface
    objective: np.ndarray
    ended_well: np.ndarray
    at_bound: np.ndarray
    starts: np.ndarray

    @property
    def unidentified(self) -> np.ndarray:
        """[r]: whether alpha or beta is not identified."""
        return np.asarray(self.at_bound[:, :2].any(1))


def fit_surfaces(
    log_n: np.ndarray,
    log_d: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    form: str = PLAIN,
    objective: str = HUBER,
    delta: float = DELTA,
    log_unique: np.ndarray | None = None,
    irreducible: np.ndarray | float | None = None,
    every_start: bool = False,
    near: Surface | None = None,
) -> Solution:
    """Fit a form to each of r data sets of n points; every array is [n], shared by all, or [r, n].

    log_n, log_d, log_unique: natural logarithms of N, D and, for forms with R*, the unique tokens (None: all). losses:
    positive. weights: not negative; a bootstrap's multiplicities, or 1 over the rows of a point's run; with weights of
    zero a data set has fewer points than the others. objective, delta: OBJECTIVES. irreducible: E where it is given, a
    number or [r]. every_start: from many starts, of which the best end is kept, in place of the grid's best node. near:
    a fit of such data, at which searches start. Raises InputError for an unknown form or objective.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective}: one of {', '.join(OBJECTIVES)}")
    model, goal = form_of(form), Objective(delta if objective == HUBER else None)
    w = np.ones(np.shape(losses)[-1]) if weights is None else weights
    table = [np.atleast_2d(np.asarray(value, dtype=float)) for value in (log_n, log_d, losses, w)]
    unique = np.atleast_2d(log_d if log_unique is None else log_unique) if model.repeated else None
    data = data_of(table, unique, None if irreducible is None else np.atleast_1d(np.asarray(irreducible, dtype=float)))
    r, n = data.loss.shape
    block = max(1, BLOCK // (n * (4 if model.repeated else 1)))
    blocks = np.split(np.arange(r), range(block, r, block))
    return joined([_solved(model, data.take(rows), goal, every_start, near) for rows in blocks])


def joined(parts: Sequence[Solution]) -> Solution:
    """The fits of several solutions as one."""
    surfaces = [[getattr(part.surface, field.name) for part in parts] for field in fields(Surface)]
    return Solution(
        Surface(*(None if values[0] is None else np.concatenate(values) for values in surfaces)),
        np.concatenate([part.objective for part in parts]),
        np.concatenate([part.ended_well for part in parts]),
        np.concatenate([part.at_bound for part in parts]),
        np.concatenate([part.starts for part in parts], 1),
    )


def data_of(table: Sequence[np.ndarray], log_unique: np.ndarray | None, irreducible: np.ndarray | None) -> Data:
    """r data sets in centred, unit-free numbers. table: log N, log D, loss and weights, [r or 1, n] each, as log_unique
    is; irreducible [r or 1]."""
    log_n, log_d, loss, weights = table
    r = max(len(value) for value in (*table, log_unique, irreducible) if value is not None)
    total = weights.sum(-1, keepdims=True)
    w = weights / total
    centre_n, centre_d = (value.mean(-1, keepdims=True) for value in (log_n, log_d))
    unit = (w * loss).sum(-1, keepdims=True)
    scaled = np.broadcast_to(loss / unit, (r, loss.shape[-1]))  # one row a data set even where all share everything
    unique = None if log_unique is None else np.minimum(log_unique, log_d) - centre_d
    e = None if irreducible is None else np.broadcast_to(irreducible / unit[:, 0], (r,))
    of_units = centre_n[:, 0], centre_d[:, 0], unit[:, 0], total[:, 0]
    return Data(log_n - centre_n, log_d - centre_d, scaled, w, unique, e, *of_units)


def _solved(form: Form, data: Data, goal: Objective, every: bool, near: Surface | None) -> Solution:
    r = len(data.loss)
    if near is None or form.repeated:
        theta, value, well = _searched(form, data, goal, every, near)
    else:
        starts = _inside(form, data, form.theta(near, data))
        theta, value, well = descend(form, data, goal, starts, first_damping=LEAST_RAISED)
        moved = np.abs(theta[:, ALPHA:] / starts[:, ALPHA:] - 1).max(1)
        lost = ~well | form.surface(theta, data)[1].any(1) | (moved > SAME_BASIN)
        lost |= lost.mean() > FEW_LOST
        if lost.any():
            theta[lost], value[lost], well[lost] = _searched(form, data.take(lost), goal, False, None)
    value = value.reshape(-1, r)
    lower = value < value[:1] * (1 - 1e-9)  # of equal ends the first start's, whatever the others are
    best = np.where(lower.any(0), np.where(lower, value, np.inf).argmin(0), 0)
    chosen = best * r + np.arange(r)
    surface, at_bound = form.surface(theta[chosen], data)
    sums = value * (data.total if goal.delta is not None else 2 * data.total * data.unit**2)
    return Solution(surface, sums[best, np.arange(r)], well[chosen], at_bound, sums)


def _searched(
    form: Form, data: Data, goal: Objective, every: bool, near: Surface | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`minimise` from the starts of r data sets: [s r, k], [s r] and [s r], the best by least squares first."""
    r = len(data.loss)
    own = form.starts(data, _least_squares, every, near)
    theta = _with_exponents(form, data, _best_node(form, data)) if own is None else own
    theta = descend(form, data.take(np.tile(np.arange(r), len(theta) // r)), SQUARES, theta)[0]
    if every and own is None:
        nodes = np.stack(np.meshgrid(GRID[::2], GRID[::2]), -1).reshape(-1, 2).repeat(r, 0)
        more = data.take(np.tile(np.arange(r), len(nodes) // r))
        theta = np.concatenate([theta, _with_exponents(form, more, nodes)])
    again = data.take(np.tile(np.arange(r), len(theta) // r))
    return minimise(form, again, goal, present(theta) if goal.delta is not None else theta)


def _least_squares(form: Form, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """theta and half the mean square of least squares from the grid."""
    return descend(form, data, SQUARES, _with_exponents(form, data, _best_node(form, data)))[:2]


def _moments(w: np.ndarray, level: np.ndarray, p: np.ndarray, q: np.ndarray) -> dict[str, np.ndarray]:
    """Weighted means of the terms p [..., n] of N and q [..., n] of D, of the loss l, and of their products."""
    wp, wq, wl = w * p, w * q, w * level
    means = {"p": wp, "q": wq, "l": wl, "pp": wp * p, "pq": wp * q, "qq": wq * q, "pl": wp * level, "ql": wq * level}
    return {name: value.sum(-1) for name, value in means.items()}


def _linear(m: dict[str, np.ndarray], with_e: bool) -> np.ndarray:
    """[..., 3]: E of any sign, A >= 0 and B >= 0 of least squares, from moments of any shape [...]. Without E: the loss
    counts from a given one, and E comes back as 0.

    A and B can both be positive, or one, or none: each case has a closed form, and the first is best where feasible.
    """
    p, q, pp, pq, qq, mean, pl, ql = (m[key] for key in ("p", "q", "pp", "pq", "qq", "l", "pl", "ql"))
    if with_e:
        pp, pq, qq, pl, ql = pp - p * p, pq - p * q, qq - q * q, pl - p * mean, ql - q * mean
    with np.errstate(divide="ignore", invalid="ignore"):
        det = pp * qq - pq**2
        both_a, both_b = (qq * pl - pq * ql) / det, (pp * ql - pq * pl) / det
        feasible = (both_a >= 0) & (both_b >= 0) & (det > 0)
        alone_a, alone_b = (
            np.where(square > 0, np.maximum(cross / square, 0.0), 0.0) for square, cross in ((pp, pl), (qq, ql))
        )
        first = alone_a * pl >= alone_b * ql  # of the two with one term, the one that explains more
        a = np.where(feasible, both_a, np.where(first, alone_a, 0.0))
        b = np.where(feasible, both_b, np.where(first, 0.0, alone_b))
    e = mean - a * p - b * q if with_e else np.zeros_like(a)
    return np.stack(np.broadcast_arrays(e, a, b), -1)


def _best_node(form: Form, data: Data) -> np.ndarray:
    """[r, 2]: the node of the grid of exponents with the least sum of squares; of one exponent where the form ties
    them."""
    w, level = np.broadcast_arrays(data.weights, data.loss if data.e is None else data.loss - data.e[:, None])
    p, q = (np.exp(-GRID[:, None] * value[:, None, :]) for value in (data.x, data.y))  # [r, nodes, n]
    wide, wl = w[:, None, :], (w * level)[:, None, :]
    of_n = {"p": (wide * p).sum(-1), "pp": (wide * p * p).sum(-1), "pl": (wl * p).sum(-1)}
    of_d = {"q": (wide * q).sum(-1), "qq": (wide * q * q).sum(-1), "ql": (wl * q).sum(-1)}
    m = {name: value[:, :, None] for name, value in of_n.items()}
    m |= {name: value[:, None, :] for name, value in of_d.items()}
    m |= {"pq": (wide * p) @ np.swapaxes(q, -1, -2), "l": wl.sum(-1)[..., None]}
    e, a, b = np.moveaxis(_linear(m, data.e is None), -1, 0)
    square = e * e + a * a * m["pp"] + b * b * m["qq"] + 2 * (e * a * m["p"] + e * b * m["q"] + a * b * m["pq"])
    square = square - 2 * (e * m["l"] + a * m["pl"] + b * m["ql"])
    if form.tied:
        square = np.where(np.eye(len(GRID), dtype=bool), square, np.inf)
    best = square.reshape(len(square), -1).argmin(1)
    return np.stack([GRID[best // len(GRID)], GRID[best % len(GRID)]], -1)


def _at(form: Form, data: Data, rest: np.ndarray) -> np.ndarray:
    """theta [r, k]: the unknowns after log B, `rest` [r, k - 3], with the E, A, B >= 0 of least squares there."""
    theta = np.concatenate([np.zeros((len(rest), 3)), np.clip(rest, form.low[ALPHA:], form.high[ALPHA:])], 1)
    p, q = form.terms(theta, data)
    e = np.zeros(len(theta)) if data.e is None else data.e
    linear = _linear(_moments(data.weights, data.loss - e[:, None], p, q), data.e is None)
    if data.e is None and (below := linear[:, 0] < 0).any():
        linear = np.where(below[:, None], _linear(_moments(data.weights, data.loss, p, q), False), linear)
    theta[:, E] = linear[:, 0] if data.e is None else e
    theta[:, A:ALPHA] = np.log(np.maximum(linear[:, 1:], np.exp(FLOOR)))
    return theta


def _with_exponents(form: Form, data: Data, exponents: np.ndarray) -> np.ndarray:
    """The same of a plain or tied form from alpha and beta [r, 2]."""
    return _at(form, data, exponents.mean(1, keepdims=True) if form.tied else exponents)
