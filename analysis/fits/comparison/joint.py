"""Several architectures' surfaces fitted at once: log L_g = log(E_g + A_g N^-alpha_g + B_g D^-beta_g).

E, the entropy of the text, is the same for every architecture on one corpus and context, so one E is shared by default;
A, alpha, B and beta are each architecture's own. Least squares on log loss, where the noise between seeds has one size;
N and D are centred in logarithms. The solver (Levenberg-Marquardt with analytic derivatives) works on r replicates of
the losses at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.fits.parametric.curves import check_design
from analysis.fits.points import Points
from arch.errors import InputError

OWN = 4  # parameters of an architecture beside E: log A', alpha, log B', beta, A' and B' at its centre
LEAST, MOST = 0.01, 3.0  # exponents; one that ends there is not identified
STEPS, IDLE = 200, 4
EXACT, ROUGH = 1e-13, 1e-8  # of the sum of squares: a step that gains less is the last, of a fit and of a draw


@dataclass(frozen=True)
class Data:
    """The points of G architectures, one behind the other: `arch` [n] is each point's rank, `run` [n] the rank of its
    run, `cell` [n] that of the cell whose batches it shares; log N and log D [n] less their architecture's means,
    `centre` [G, 2]."""

    names: tuple[str, ...]
    arch: np.ndarray
    run: np.ndarray
    cell: np.ndarray
    log_n: np.ndarray
    log_d: np.ndarray
    log_loss: np.ndarray
    centre: np.ndarray

    @property
    def n_cells(self) -> int:
        return int(self.cell.max()) + 1


@dataclass(frozen=True)
class Parameters:
    """Of r replicates and G architectures: E [r, G], A, alpha, B, beta [r, G] in the points' own units; `fine` [r]:
    whether the solver ended at a minimum inside the bounds of the exponents."""

    e: np.ndarray
    a: np.ndarray
    alpha: np.ndarray
    b: np.ndarray
    beta: np.ndarray
    fine: np.ndarray

    def take(self, rows: np.ndarray) -> Parameters:
        return Parameters(*(getattr(self, name)[rows] for name in ("e", "a", "alpha", "b", "beta", "fine")))


def gather(groups: Sequence[Points]) -> Data:
    """The points of several architectures, by the names of their groups. Raises InputError where the points of one do
    not identify a surface: too few sizes or numbers of tokens, or tokens that follow the size."""
    for one in groups:
        try:
            check_design(np.log(one.n_params), np.log(one.n_tokens))
        except InputError as error:
            raise InputError(f"{one.group}: {error}") from None
    logs = [(np.log(one.n_params), np.log(one.n_tokens)) for one in groups]
    centre = np.array([[n.mean(), d.mean()] for n, d in logs])
    return Data(
        tuple(one.group for one in groups),
        np.concatenate([np.full(len(one), i) for i, one in enumerate(groups)]),
        _ranks([f"{one.group} {run}" for one in groups for run in one.run]),
        _ranks([str(cell) for one in groups for cell in one.cell]),
        np.concatenate([n - n.mean() for n, _ in logs]),
        np.concatenate([d - d.mean() for _, d in logs]),
        np.concatenate([np.log(one.loss) for one in groups]),
        centre,
    )


def _ranks(labels: Sequence[str]) -> np.ndarray:
    rank = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([rank[label] for label in labels])


def solve(
    data: Data,
    log_loss: np.ndarray,
    start: np.ndarray,
    shared: bool,
    weigh: np.ndarray | None = None,
    tolerance: float = EXACT,
) -> tuple[np.ndarray, np.ndarray]:
    """Least squares for log_loss [r, n] from start [p] or [r, p]: theta [r, p] and the sum of squares [r].

    theta: E (one, or G), then log A', alpha, log B', beta of each architecture; weigh [n, n]: what residuals are
    multiplied with first, so that their noise is alike and independent.
    """
    theta = np.array(np.broadcast_to(start, (len(log_loss), start.shape[-1])))
    damping, idle = np.full(len(theta), 1e-3), np.zeros(len(theta), dtype=int)
    weigh = np.eye(len(data.arch)) if weigh is None else weigh
    residual = (log_loss - predict(data, theta, shared)) @ weigh.T
    total = (residual**2).sum(1)
    active = np.ones(len(theta), dtype=bool)
    is_e = np.arange(theta.shape[1]) < (1 if shared else len(data.names))
    reach = np.where(is_e, np.exp(log_loss.min()), 1.0)  # of a step in each parameter
    for _ in range(STEPS):
        rows = np.flatnonzero(active)
        if not len(rows):
            break
        slope = np.matmul(weigh, jacobian(data, theta[rows], shared))
        normal = slope.transpose(0, 2, 1) @ slope
        pull = (residual[rows][:, None] @ slope)[:, 0]
        step = _step(normal, pull, damping[rows], np.zeros_like(pull), np.zeros(pull.shape, dtype=bool))
        below = is_e & (theta[rows] + step < 0)  # an E that would go below 0 ends there, and the others follow
        if below.any():
            step = _step(normal, pull, damping[rows], np.where(below, -theta[rows], 0.0), below)
        trial = bounded(theta[rows] + np.clip(step, -reach, reach), data, shared)
        rest = (log_loss[rows] - predict(data, trial, shared)) @ weigh.T
        reached = (rest**2).sum(1)
        better = reached < total[rows]
        gain = total[rows] - reached
        good = rows[better]
        theta[good], residual[good] = trial[better], rest[better]
        total[good] = reached[better]
        damping[rows] = np.where(better, np.maximum(damping[rows] * 0.2, 1e-12), damping[rows] * 5)
        # one step that gains next to nothing may be a short one; several in a row are the end
        idle[rows] = np.where(better & (gain > tolerance * total[rows]), 0, idle[rows] + better)
        settled = (idle[rows] >= IDLE) | (better & (gain <= tolerance * total[rows]) & (damping[rows] < 1.0))
        active[rows[settled | (damping[rows] > 1e10) | (total[rows] < 1e-28)]] = False
    return theta, total


def _step(normal: np.ndarray, pull: np.ndarray, damping: np.ndarray, fixed: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Damped steps [r, p] of normal equations [r, p, p] and right sides `pull`, in which what is `held` is `fixed`."""
    scale = np.einsum("rpp->rp", normal)
    pull = np.where(held, 0.0, pull - (normal @ fixed[:, :, None])[:, :, 0])
    free = ~held
    damped = normal * (free[:, :, None] & free[:, None])
    damped = damped + (damping[:, None] * scale + held + 1e-300)[:, :, None] * np.eye(normal.shape[1])
    try:
        return np.asarray(fixed + np.linalg.solve(damped, pull[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:  # a term that vanished: its columns are nothing beside the others
        size = np.sqrt(np.maximum(np.einsum("rpp->rp", damped), 1e-300))
        alike = damped / size[:, :, None] / size[:, None] + 1e-12 * np.eye(normal.shape[1])
        return np.asarray(fixed + np.linalg.solve(alike, (pull / size)[:, :, None])[:, :, 0] / size)


def fit(data: Data, shared: bool = True, log_loss: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """The best of several starts for the losses of `data`: theta [p] and the sum of squares."""
    y = data.log_loss if log_loss is None else log_loss
    least = float(np.exp(y.min()))
    starts = []
    for share in (0.3, 0.6, 0.8, 0.95):  # of E in the lowest loss
        for exponent in (0.2, 0.5):
            e = np.full(1 if shared else len(data.names), share * least)
            own = []
            for g in range(len(data.names)):
                here = data.arch == g
                rest = np.maximum(np.exp(y[here]) - share * least, 1e-3 * least)
                columns = np.exp(-exponent * np.stack([data.log_n[here], data.log_d[here]], axis=1))
                weights = np.maximum(optimize.nnls(columns, rest)[0], 1e-3 * rest.mean())
                own += [np.log(weights[0]), exponent, np.log(weights[1]), exponent]
            starts.append(np.concatenate([e, own]))
    theta, total = solve(data, np.repeat(y[None], len(starts), axis=0), np.array(starts), shared)
    best = int(total.argmin())
    return theta[best], float(total[best])


def predict(data: Data, theta: np.ndarray, shared: bool) -> np.ndarray:
    """Log loss [r, n] of theta [r, p]."""
    return np.asarray(np.log(sum(_parts(data, theta, shared))))


def jacobian(data: Data, theta: np.ndarray, shared: bool) -> np.ndarray:
    """d log loss / d theta [r, n, p]."""
    e, a, b = _parts(data, theta, shared)
    whole = e + a + b
    n_e = 1 if shared else len(data.names)
    found = np.zeros((len(theta), len(data.arch), theta.shape[1]))
    at = np.arange(len(data.arch))
    column = n_e + OWN * data.arch
    found[:, at, 0 if shared else data.arch] = 1 / whole
    for k, value in enumerate((a, -a * data.log_n, b, -b * data.log_d)):
        found[:, at, column + k] = value / whole
    return found


def bounded(theta: np.ndarray, data: Data, shared: bool) -> np.ndarray:
    """theta with its exponents inside LEAST and MOST, and no E below 0."""
    n_e = 1 if shared else len(data.names)
    theta[:, :n_e] = np.maximum(theta[:, :n_e], 0.0)
    for k in (1, 3):
        theta[:, n_e + k :: OWN] = np.clip(theta[:, n_e + k :: OWN], LEAST, MOST)
    return theta


def unpack(data: Data, theta: np.ndarray, shared: bool) -> Parameters:
    """theta [r, p] in the points' own units."""
    g = len(data.names)
    n_e = 1 if shared else g
    e = np.broadcast_to(theta[:, :n_e], (len(theta), g))
    log_a, alpha, log_b, beta = (theta[:, n_e + k :: OWN] for k in range(OWN))
    with np.errstate(over="ignore"):
        a, b = np.exp(log_a + alpha * data.centre[:, 0]), np.exp(log_b + beta * data.centre[:, 1])
    inside = (alpha > 1.01 * LEAST) & (alpha < 0.99 * MOST) & (beta > 1.01 * LEAST) & (beta < 0.99 * MOST)
    return Parameters(e, a, alpha, b, beta, inside.all(1) & np.isfinite(a).all(1) & np.isfinite(b).all(1))


def _parts(data: Data, theta: np.ndarray, shared: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n_e = 1 if shared else len(data.names)
    log_a, alpha, log_b, beta = (theta[:, n_e + k :: OWN][:, data.arch] for k in range(OWN))
    e = theta[:, :1] if shared else theta[:, data.arch]
    with np.errstate(over="ignore"):
        return np.broadcast_to(e, log_a.shape), np.exp(log_a - alpha * data.log_n), np.exp(log_b - beta * data.log_d)
