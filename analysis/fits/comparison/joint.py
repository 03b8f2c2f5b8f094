"""Several architectures' surfaces fitted at once: log L_g = log(E_g + A_g N^-alpha_g + B_g D^-beta_g).

E, the entropy of the text, is the same for every architecture on one corpus and context, so one E is shared by default;
A, alpha, B and beta are each architecture's own. Least squares on log loss, where the noise between seeds has one size,
by the solver of all fits (analysis.fits.solver).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.forms import BOUNDS, FLOOR, Data, Joint
from analysis.fits.parametric import check_design
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, SMALL, Objective, descend, fit_surfaces
from analysis.fits.surface import Surface
from arch.errors import InputError

SHARES = (0.0, 0.3, 0.6, 0.8, 0.95)  # of E in the lowest loss, from which searches start
ROUGH = 1e-6  # of a step, that ends the search of a draw
NEAR = 1.01  # times an end of the range of an exponent: what lies closer ended there


@dataclass(frozen=True)
class Together:
    """The points of G architectures, one behind the other: of each point the rank of its architecture [n], of its run
    and of the cell whose batches it shares; data: log N and log D less their architecture's means, `centre` [G, 2], and
    the loss over its geometric mean."""

    names: tuple[str, ...]
    arch: np.ndarray
    run: np.ndarray
    cell: np.ndarray
    data: Data
    centre: np.ndarray

    def __len__(self) -> int:
        return len(self.arch)

    @property
    def n_cells(self) -> int:
        return int(self.cell.max()) + 1

    @property
    def n_runs(self) -> int:
        return int(self.run.max()) + 1

    @property
    def log_loss(self) -> np.ndarray:
        """[n], of the loss over its geometric mean."""
        return np.asarray(np.log(self.data.loss[0]))

    def predict(self, theta: np.ndarray, shared: bool) -> np.ndarray:
        """log loss [r, n] of theta [r, k], in units of the geometric mean."""
        return np.asarray(np.log(Joint(self.arch, shared).loss(theta, self.data)))

    def jacobian(self, theta: np.ndarray, shared: bool) -> np.ndarray:
        """d log loss / d theta [n, k], of theta [k]."""
        return np.asarray(Joint(self.arch, shared).slopes(theta[None], self.data)[1][0].T)


def gather(groups: Sequence[Points]) -> Together:
    """The points of several architectures, by the names of their groups. Raises InputError where the points of one do
    not identify a surface: too few sizes or numbers of tokens, or tokens that follow the size."""
    for one in groups:
        try:
            check_design(np.log(one.n_params), np.log(one.n_tokens))
        except InputError as error:
            raise InputError(f"{one.group}: {error}") from None
    logs = [(np.log(one.n_params), np.log(one.n_tokens)) for one in groups]
    centre = np.array([[n.mean(), d.mean()] for n, d in logs])
    x, y = (np.concatenate([each[i] - each[i].mean() for each in logs])[None] for i in (0, 1))
    log_loss = np.concatenate([np.log(one.loss) for one in groups])
    unit = float(np.exp(log_loss.mean()))
    data = Data(x, y, np.exp(log_loss)[None] / unit, np.ones((1, len(log_loss))), unit=unit)
    return Together(
        tuple(one.group for one in groups),
        np.concatenate([np.full(len(one), i) for i, one in enumerate(groups)]),
        _ranks([f"{one.group} {run}" for one in groups for run in one.run]),
        _ranks([str(cell) for one in groups for cell in one.cell]),
        data,
        centre,
    )


def _ranks(labels: Sequence[str]) -> np.ndarray:
    rank = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([rank[label] for label in labels])


def solve(
    points: Together,
    log_loss: np.ndarray,
    starts: np.ndarray,
    shared: bool,
    precision: np.ndarray | None = None,
    small: float = SMALL,
) -> tuple[np.ndarray, np.ndarray]:
    """Least squares for log_loss [r, n] from starts [k] or [r, k]: theta [r, k] and e @ precision @ e [r] of its
    residuals e; without a precision [n, n] their sum of squares. small: the step that ends a search."""
    goal = Objective(None, np.eye(len(points)) if precision is None else precision)
    data = replace(points.data, loss=np.exp(log_loss))
    start = np.broadcast_to(starts, (len(log_loss), starts.shape[-1]))
    theta, value, _ = descend(Joint(points.arch, shared), data, goal, start, small=small)
    return theta, 2 * value


def fit(points: Together, shared: bool = True) -> tuple[np.ndarray, float]:
    """The best of several starts, each from the architectures' own surfaces with a given E: theta [k] and the sum of
    squares."""
    lowest, own = float(points.data.loss.min()), []
    e = np.array(SHARES) * lowest
    for g in range(len(points.names)):
        mine = points.arch == g
        x, y, loss = (value[0, mine] for value in (points.data.x, points.data.y, points.data.loss))
        solution = fit_surfaces(x, y, loss, objective=LEAST_SQUARES, irreducible=e)
        own.append(solution.surface)
    logs = [[np.log(np.maximum(getattr(one, name), np.exp(FLOOR))) for one in own] for name in ("A", "B")]
    exponents = [[getattr(one, name) for one in own] for name in ("alpha", "beta")]
    n_e = 1 if shared else len(points.names)
    starts = np.stack([*[e] * n_e, *(row for part in (*logs, *exponents) for row in part)], 1)
    theta, total = solve(points, np.repeat(points.log_loss[None], len(starts), 0), starts, shared)
    best = int(total.argmin())
    return theta[best], float(total[best])


def unpack(points: Together, theta: np.ndarray, shared: bool) -> tuple[dict[str, Surface], np.ndarray]:
    """By name the surfaces [r] of theta [r, k] in the points' own units; and whether all exponents ended inside their
    range [r]."""
    e, log_a, log_b, alpha, beta = Joint(points.arch, shared).parts(theta)
    unit = points.data.unit
    with np.errstate(over="ignore"):
        a, b = np.exp(log_a + alpha * points.centre[:, 0]), np.exp(log_b + beta * points.centre[:, 1])
    low, high = BOUNDS[0] * NEAR, BOUNDS[1] / NEAR
    inside = (alpha > low) & (alpha < high) & (beta > low) & (beta < high)
    fine = inside.all(1) & np.isfinite(a).all(1) & np.isfinite(b).all(1)
    each = enumerate(points.names)
    return {
        name: Surface(e[:, g] * unit, a[:, g] * unit, b[:, g] * unit, alpha[:, g], beta[:, g]) for g, name in each
    }, np.asarray(fine)
