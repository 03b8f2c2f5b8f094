"""How wide a proposal's intervals would be, by the linearised least-squares fit, for many surfaces at once.

The fit is of L = E + A / N^alpha + B / D^beta to points whose log losses have independent effects of trunks, of runs
and of points along a curve. The covariance of the five parameters is that of weighted least squares under this noise (a
sandwich), and a quantity of them has the delta method's standard error; its derivatives are central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.design.proposal import Proposal, Rows
from analysis.fits.cost import Cost
from analysis.fits.parametric.surface import Surface

STEP = 1e-4  # of a difference, in E / E, log A, log B, alpha and beta
UNKNOWNS = 5


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of log loss between seeds, and how it splits: `branch`, of a run about its trunk, and `along`,
    of a point about its run, as shares of it."""

    sd: float = 0.005
    branch: float = 0.3
    along: float = 0.2

    def covariance(self, rows: Rows, branches: bool) -> np.ndarray:
        """[n, n] of log loss."""
        same_trunk = rows.trunk[:, None] == rows.trunk
        same_run = rows.run[:, None] == rows.run
        own = self.branch if branches else 0.0
        whole = (1 - own**2) * same_trunk + own**2 * same_run
        several = len(set(rows.run.tolist())) < len(rows)
        return np.asarray(self.sd**2 * (whole + (self.along**2 * np.eye(len(rows)) if several else 0.0)))

    def draw(self, rows: Rows, branches: bool, rng: np.random.Generator, count: int) -> np.ndarray:
        """[count, n] log noise."""
        root = np.linalg.cholesky(self.covariance(rows, branches) + 1e-18 * np.eye(len(rows)))
        return np.asarray(rng.standard_normal((count, len(rows))) @ root.T)


@dataclass(frozen=True)
class Expected:
    """Of r surfaces: half-widths [r] of 95% intervals of a (b has the same) and, as logarithms, of N_opt and L_opt at
    the target; exact where the fit is linear in what noise does."""

    a: np.ndarray
    n_opt: np.ndarray
    l_opt: np.ndarray


def slopes(surface: Surface, rows: Rows) -> np.ndarray:
    """[r, n, 5]: d log L over log E, log A, log B, alpha, beta at the points."""
    log_n, log_d = np.log(rows.n_params), np.log(rows.n_tokens)
    e, a, b, alpha, beta = (np.asarray(value, dtype=float)[:, None] for value in vars(surface).values())
    term_n, term_d = a * np.exp(-alpha * log_n), b * np.exp(-beta * log_d)
    found = np.stack([e + 0 * term_n, term_n, term_d, -term_n * log_n, -term_d * log_d], -1)
    return np.asarray(found / (e + term_n + term_d)[..., None])


def covariance(surface: Surface, proposal: Proposal, noise: SeedNoise) -> np.ndarray:
    """[r, 5, 5] of log E, log A, log B, alpha, beta."""
    rows = proposal.rows()
    jacobian = slopes(surface, rows)
    weight = 1 / np.bincount(rows.run)[rows.run]  # as the fit weighs: a run counts once
    noisy = noise.covariance(rows, proposal.decay is not None)
    scale = np.sqrt((jacobian**2).sum(1, keepdims=True))  # columns differ by orders
    unit = jacobian / scale
    normal = np.swapaxes(unit, 1, 2) @ (unit * weight[:, None])
    inner = np.linalg.pinv(normal, rcond=1e-14, hermitian=True)
    lever = inner @ np.swapaxes(unit * weight[:, None], 1, 2)
    return np.asarray(lever @ noisy @ np.swapaxes(lever, 1, 2) / (scale * np.swapaxes(scale, 1, 2)))


def expected(surface: Surface, proposal: Proposal, noise: SeedNoise, cost: Cost, target: float) -> Expected:
    """Half-widths under the real cost of a token, at `target` [FLOP under the convention of `cost`]. The noise is taken
    to be estimated from the runs: its t quantile has as many degrees of freedom as trunks beyond the five unknowns."""
    spread = covariance(surface, proposal, noise)
    quantities: Mapping[str, Callable[[Surface], np.ndarray]] = {
        "a": lambda one: one.a,
        "n_opt": lambda one: np.log(one.n_opt(target, cost)),
        "l_opt": lambda one: np.log(one.l_opt(target, cost)),
    }
    trunks = len(set(proposal.rows().trunk.tolist()))
    wide = float(stats.t.ppf(0.975, max(1, trunks - UNKNOWNS)))
    found = {}
    for name, of in quantities.items():
        gradient = np.stack([(of(up) - of(down)) / (2 * STEP) for up, down in _moved(surface)], -1)
        found[name] = wide * np.sqrt(np.einsum("ri,rij,rj->r", gradient, spread, gradient))
    return Expected(**found)


def _moved(surface: Surface) -> list[tuple[Surface, Surface]]:
    """The surfaces with one of log E, log A, log B, alpha, beta a step up and down."""
    e, a, b, alpha, beta = (np.asarray(value, dtype=float) for value in vars(surface).values())
    up, down = np.exp(STEP), np.exp(-STEP)
    return [
        (Surface(e * up, a, b, alpha, beta), Surface(e * down, a, b, alpha, beta)),
        (Surface(e, a * up, b, alpha, beta), Surface(e, a * down, b, alpha, beta)),
        (Surface(e, a, b * up, alpha, beta), Surface(e, a, b * down, alpha, beta)),
        (Surface(e, a, b, alpha + STEP, beta), Surface(e, a, b, alpha - STEP, beta)),
        (Surface(e, a, b, alpha, beta + STEP), Surface(e, a, b, alpha, beta - STEP)),
    ]
