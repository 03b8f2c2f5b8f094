"""Several architectures' surfaces fitted at once, with the noise that their runs share: log L_g = log(E_g + A_g
N^-alpha_g + B_g D^-beta_g), by the solver of all fits (analysis.fits.solver).

E, the entropy of the text, is the same for every architecture on one corpus and context, so one E is shared by default;
A, alpha, B and beta are each architecture's own.

Runs of one cell (N, D) read the same batches in the same order, so their losses rise and fall together, and most of the
noise of each is in none of their differences. Three noises are separated by analysis of variance of the residuals: what
the runs of a cell share (where most do share theirs), what moves a run as a whole, and what is left at each point
(where runs have one point, the last two are one). The fit weighs them accordingly (generalised least squares), and
draws have all three: normal noise of the estimated sizes, scaled by a root of df / chi^2(df), as few runs tell its size
only so well. docs/research/comparisons.md has how often the intervals cover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import stats

from analysis.fits.draws import student_scale
from analysis.fits.forms import BOUNDS, FLOOR, Data, Joint
from analysis.fits.parametric import check_design
from analysis.fits.points import Points
from analysis.fits.solver import LEAST_SQUARES, SMALL, Objective, descend, fit_surfaces
from analysis.fits.surface import Surface
from arch.errors import InputError

SHARES = (0.0, 0.3, 0.6, 0.8, 0.95)  # of E in the lowest loss, from which searches start
ROUGH = 1e-6  # of a step, that ends the search of a draw
NEAR = 1.01  # times an end of the range of an exponent: what lies closer ended there
ROUNDS = 3  # of noise and weights; a fourth changes intervals by less than a percent
LEAST = 1e-15  # standard deviation of log loss: noise-free studies stay solvable


@dataclass(frozen=True)
class Together:
    """The points of G architectures, one behind the other: of each point the rank of its architecture [n]; labels: of
    each kind of noise, which draw a point has [n]: that of the cell whose batches it shares, of its run, its own; data:
    log N and log D less their architecture's means, `centre` [G, 2], and the loss over its geometric mean."""

    names: tuple[str, ...]
    arch: np.ndarray
    labels: dict[str, np.ndarray]
    data: Data
    centre: np.ndarray

    def __len__(self) -> int:
        return len(self.arch)

    @property
    def log_loss(self) -> np.ndarray:
        """[n], of the loss over its geometric mean."""
        return np.asarray(np.log(self.data.loss[0]))

    @cached_property
    def kinds(self) -> dict[str, np.ndarray]:
        """The noises that these points can separate: for each the matrix [n, n] of which points have the same draw.
        What cells share is separated where most runs share theirs. Where few do, as of runs of equal compute, which
        read other batches, these few would have to tell the noise of all, and a run's noise is the sum of both."""
        cell_of = dict(zip(self.labels["run"].tolist(), self.labels["cell"].tolist(), strict=True))
        n_runs, n_alone = len(cell_of), sum(number == 1 for number in Counter(cell_of.values()).values())
        kept = {"cell": n_alone < n_runs / 2, "run": True, "point": n_runs < len(self)}
        return {
            name: (label[:, None] == label[None]).astype(float) for name, label in self.labels.items() if kept[name]
        }

    def predict(self, theta: np.ndarray, shared: bool) -> np.ndarray:
        """log loss [r, n] of theta [r, k], in units of the geometric mean."""
        return np.asarray(np.log(Joint(self.arch, shared).loss(theta, self.data)))

    def jacobian(self, theta: np.ndarray, shared: bool) -> np.ndarray:
        """d log loss / d theta [n, k], of theta [k]."""
        return np.asarray(Joint(self.arch, shared).slopes(theta[None], self.data)[1][0].T)


@dataclass(frozen=True)
class Fitted:
    """A joint fit: theta [k], whether E is shared, the standard deviation of log loss of each kind of noise, the matrix
    [n, n] that makes residuals alike and independent, their sum of squares, and the degrees of freedom of the noise."""

    theta: np.ndarray
    shared: bool
    noise: dict[str, float]
    weigh: np.ndarray
    total: float
    df: int


def gather(groups: Sequence[Points]) -> Together:
    """The points of several architectures, by the names of their groups. Raises InputError where the points of one do
    not identify a surface: too few sizes or numbers of tokens, or tokens that follow the size."""
    for points in groups:
        try:
            check_design(np.log(points.n_params), np.log(points.n_tokens))
        except InputError as error:
            raise InputError(f"{points.group}: {error}") from None
    logs = [(np.log(points.n_params), np.log(points.n_tokens)) for points in groups]
    centre = np.array([[n.mean(), d.mean()] for n, d in logs])
    x, y = (np.concatenate([each[i] - each[i].mean() for each in logs])[None] for i in (0, 1))
    log_loss = np.concatenate([np.log(points.loss) for points in groups])
    unit = float(np.exp(log_loss.mean()))
    data = Data(x, y, np.exp(log_loss)[None] / unit, np.ones((1, len(log_loss))), unit=unit)
    return Together(
        tuple(points.group for points in groups),
        np.concatenate([np.full(len(points), i) for i, points in enumerate(groups)]),
        {
            "cell": pd.factorize(pd.Series([str(cell) for points in groups for cell in points.cell]))[0],
            "run": pd.factorize(pd.Series([f"{points.group} {run}" for points in groups for run in points.run]))[0],
            "point": np.arange(len(log_loss)),
        },
        data,
        centre,
    )


def fit(points: Together, shared: bool = True) -> tuple[np.ndarray, float]:
    """Least squares without weights, the best of several starts, each from the architectures' own surfaces with a given
    E: theta [k] and the sum of squares."""
    e, own = np.array(SHARES) * float(points.data.loss.min()), []
    for g in range(len(points.names)):
        of_arch = points.arch == g
        x, y, loss = (value[0, of_arch] for value in (points.data.x, points.data.y, points.data.loss))
        own.append(fit_surfaces(x, y, loss, objective=LEAST_SQUARES, irreducible=e).surface)
    logs = [np.log(np.maximum(getattr(surface, name), np.exp(FLOOR))) for name in ("A", "B") for surface in own]
    exponents = [getattr(surface, name) for name in ("alpha", "beta") for surface in own]
    starts = np.stack([*[e] * (1 if shared else len(points.names)), *logs, *exponents], 1)
    theta, total = _solve(points, np.repeat(points.log_loss[None], len(starts), 0), starts, shared)
    best = int(total.argmin())
    return theta[best], float(total[best])


def _solve(
    points: Together,
    log_loss: np.ndarray,
    starts: np.ndarray,
    shared: bool,
    weigh: np.ndarray | None = None,
    small: float = SMALL,
) -> tuple[np.ndarray, np.ndarray]:
    """Least squares for log_loss [r, n] from starts [k] or [r, k]: theta [r, k] and the sum of squares [r] of its
    residuals, times the matrix weigh [n, n] where there is one. small: the step that ends a search."""
    goal = Objective(None, np.eye(len(points)) if weigh is None else weigh @ weigh)
    data = replace(points.data, loss=np.exp(log_loss))
    start = np.broadcast_to(starts, (len(log_loss), starts.shape[-1]))
    theta, value, _ = descend(Joint(points.arch, shared), data, goal, start, small=small)
    return theta, 2 * value


def fit_paired(points: Together, shared: bool = True, seed_noise: float = 0.0) -> Fitted:
    """The joint fit, with weights by its noise. seed_noise: between seeds, as measured: a run's whole noise is no less,
    also where curves that miss their points hide it."""
    theta, total = fit(points, shared)
    names, kinds = list(points.kinds), list(points.kinds.values())
    weigh, variances = np.eye(len(points)), np.zeros(len(kinds))
    for _ in range(ROUNDS):
        left = _left(points, theta, shared, weigh)
        residual = points.log_loss - points.predict(theta[None], shared)[0]
        variances = _components(left @ residual, left, kinds)
        whole = float(variances[: 1 + names.index("run")].sum())
        variances[names.index("run")] += max(seed_noise**2 - whole, 0.0)
        weigh = _root(np.einsum("k,kij->ij", variances, np.stack(kinds)))
        thetas, totals = _solve(points, points.log_loss[None], theta, shared, weigh)
        theta, total = thetas[0], float(totals[0])
    named = dict(zip(names, np.sqrt(variances).tolist(), strict=True))
    return Fitted(theta, shared, named, weigh, total, _degrees_of_freedom(points, theta, shared, weigh))


def _left(points: Together, theta: np.ndarray, shared: bool, weigh: np.ndarray) -> np.ndarray:
    """[n, n]: what the weighted fit leaves of noise as residuals."""
    slope = points.jacobian(theta, shared)
    return np.asarray(np.eye(len(points)) - slope @ np.linalg.pinv(weigh @ slope) @ weigh)


def _components(residual: np.ndarray, left: np.ndarray, kinds: Sequence[np.ndarray]) -> np.ndarray:
    """The variances of the kinds of noise, from residuals [n] = left @ noise: as many quadratic forms, made equal to
    what they are expected to be; a kind whose variance comes out negative is left out."""
    forms = [_mean_of(kind) for kind in kinds]
    values = np.array([float(residual @ form @ residual) for form in forms])
    seen = [left @ kind @ left.T for kind in kinds]
    table = np.array([[float((form * covariance).sum()) for covariance in seen] for form in forms])
    open_ = list(range(len(kinds)))
    while True:
        variances = np.zeros(len(kinds))
        variances[open_] = np.linalg.solve(table[np.ix_(open_, open_)], values[open_])
        if variances.min() >= 0 or len(open_) == 1:
            break
        open_.remove(int(variances.argmin()))
    # the finest kind keeps the covariance invertible
    variances[-1] = max(float(variances[-1]), 1e-6 * float(variances.max()), LEAST**2)
    return np.maximum(variances, 0.0)


def _mean_of(kind: np.ndarray) -> np.ndarray:
    """[n, n]: for each point the mean over those that have the same draw."""
    return np.asarray(kind / kind.sum(1, keepdims=True))


def _root(covariance: np.ndarray) -> np.ndarray:
    """The inverse root of a covariance [n, n], in units of its mean variance."""
    values, vectors = np.linalg.eigh(covariance / np.diag(covariance).mean())
    return np.asarray(vectors @ (vectors / np.sqrt(np.maximum(values, 1e-14))).T)


def _degrees_of_freedom(points: Together, theta: np.ndarray, shared: bool, weigh: np.ndarray) -> int:
    """Of the noise that differences of architectures have: runs, less parameters, less the cells' means where these
    are taken out. By Satterthwaite's formula for the squares within cells of each run's mean residual."""
    kinds = points.kinds
    form = _mean_of(kinds["run"]) - (_mean_of(kinds["cell"]) if "cell" in kinds else 0.0)
    noise = _left(points, theta, shared, weigh) @ np.linalg.inv(weigh)  # of independent draws, as residuals
    seen = noise.T @ form @ noise
    squares = float((seen * seen.T).sum())
    return max(round(float(np.trace(seen)) ** 2 / squares), 1) if squares > 0 else 1


def p_value_of_shared_e(points: Together, free: Fitted) -> float:
    """Of an F test that all architectures have one E, against `free`, which has one for each, with its weights. Of
    one point a run all weighted residuals are alike; of curves those of a run are not quite, since few runs tell its
    noise, and the whole sum is laid on the degrees of freedom of the runs (cautious: docs/research/comparisons.md)."""
    n_archs, n = len(points.names), len(points)
    start = np.concatenate([free.theta[:n_archs].mean(keepdims=True), free.theta[n_archs:]])
    starts = np.stack([start, fit(points, True)[0]])
    _, totals = _solve(points, np.repeat(points.log_loss[None], 2, 0), starts, True, free.weigh)
    more = n_archs - 1
    rest = max(free.total, 1e-300) / (free.df if "point" in points.kinds else max(n - len(free.theta), 1))
    return float(stats.f.sf(max(totals.min() - free.total, 0.0) / more / rest, more, free.df))


def draw(points: Together, fitted: Fitted, n_replicates: int, seed: int) -> tuple[dict[str, Surface], np.ndarray]:
    """The surfaces of the fit and of its refits to `n_replicates` draws around it, [1 + r], as `unpack` gives them."""
    rng = np.random.default_rng(seed)
    noise = np.zeros((n_replicates, len(points)))
    for kind, label in points.labels.items():
        of_kind = rng.standard_normal((n_replicates, int(label.max()) + 1))
        noise += fitted.noise.get(kind, 0.0) * of_kind[:, label]
    noise *= student_scale(rng, fitted.df, n_replicates)[:, None]
    line = points.predict(fitted.theta[None], fitted.shared)[0]
    drawn, _ = _solve(points, line + noise, fitted.theta, fitted.shared, fitted.weigh, ROUGH)
    return unpack(points, np.concatenate([fitted.theta[None], drawn]), fitted.shared)


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
    surfaces = {
        name: Surface(e[:, g] * unit, a[:, g] * unit, b[:, g] * unit, alpha[:, g], beta[:, g])
        for g, name in enumerate(points.names)
    }
    return surfaces, np.asarray(fine)
