"""What other losses the noise could have led to on a fitted surface, with the surface that each would have given.

An approach that reads its bias off the surface errs with it: both are of the same losses. Its replicates need losses
drawn anew together with the surface fitted to them: with noise of whole trunks and runs as residuals show it, which
the fit's own replicates have below 20 trunks (a bootstrap leaves runs out). From 30 trunks on the residuals themselves
are drawn, each trunk's with one sign, since noise may be larger at some sizes than at others; fewer are too few signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.forms import PLAIN
from analysis.fits.parametric.fit import ParametricFit, free_slopes, refit
from analysis.fits.points import Points
from analysis.fits.surface import Surface

LEAST_SIGNED = 30  # trunks; of 20, signs cover N_opt beyond the range too seldom (docs/research/isoflop.md)
LEAST_LEFT = 0.05  # of a run's noise that its residual must keep to stand for it


@dataclass(frozen=True)
class Redrawn:
    """r studies: noise [r, m] of log loss at m points, and the surfaces [r] refitted with it; at_bound: the share of
    those that do not identify an exponent."""

    noise: np.ndarray
    surfaces: Surface
    at_bound: float

    def loss(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[r, k]: of every surface at N and D, [k] or [r, k]."""
        return np.asarray(self.surfaces.column().loss(n_params, n_tokens))


def bias_told_by(
    fit: ParametricFit | None, points: Points, n_replicates: int, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """What isoFLOP on `points` takes as `surface` and `redrawn`. None of them unless the fit, and `level` of what is
    redrawn, identify both exponents, and the form is of N and D alone and assumes no exponent."""
    if fit is None or fit.form != PLAIN or not fit.identified:
        return {}
    redrawn = redraw(fit, points, n_replicates, seed, level)
    if redrawn is not None and redrawn.at_bound > 1 - level:
        return {}
    return {"surface": fit.surface.loss, "redrawn": redrawn}


def redraw(fit: ParametricFit, points: Points, n_replicates: int, seed: int = 0, level: float = 0.95) -> Redrawn | None:
    """Noise at `points` of the runs that `fit`, of the plain form, is of (their ends, or their curves): a run's at
    another D is interpolated in log D. None where the residuals tell no noise, no replicates are asked for or a run is
    not among the fitted ones."""
    found = _between(fit.points, points)
    if fit.effects is None or n_replicates <= 0 or found is None:
        return None
    first, second, share = found
    if fit.draws is not None and fit.draws.noise is not None and len(fit.draws.noise) == n_replicates:
        noise, surfaces, edge = fit.draws.noise, fit.draws.surface, max(fit.draws.at_bound[:2])
    else:
        rng = np.random.default_rng(seed)  # below 20 trunks this draws what the fit itself draws
        many = len(set(fit.points.trunk.tolist())) >= LEAST_SIGNED
        noise = _signed(fit, rng, n_replicates, level) if many else fit.effects.draw(rng, n_replicates)
        noise = noise + fit.points.common(n_replicates, seed)
        clean = fit.surface.loss(fit.points.n_params, fit.points.n_tokens)
        again = refit(fit, clean * np.exp(noise), fit.prepared.weights)
        surfaces, edge = again.surface, float(again.at_bound[:, :2].mean(0).max())
    return Redrawn(noise[:, first] * (1 - share) + noise[:, second] * share, surfaces, edge)


def _signed(fit: ParametricFit, rng: np.random.Generator, r: int, level: float) -> np.ndarray:
    """[r, n]: the residuals of log loss, one random sign a trunk (wild cluster bootstrap: Wu 1986; Cameron, Gelbach and
    Miller 2008), each over the share of its noise that the fit leaves in it (HC3), all times t / z of the residuals'
    degrees of freedom at `level`. So noise is as large for each run as it was."""
    kept = fit.points
    residual = np.log(kept.loss / fit.surface.loss(kept.n_params, kept.n_tokens))
    root = np.sqrt(fit.prepared.weights)[:, None]
    slope = free_slopes(kept, PLAIN, fit.surface, fit.solution.at_bound[0]) * root
    absorbed = np.einsum("np,pn->n", slope, np.linalg.pinv(slope))
    _, unit = np.unique(kept.trunk.astype(str), return_inverse=True)
    n = int(unit.max()) + 1
    left = 1 - (np.bincount(unit, absorbed) / np.bincount(unit))[unit]
    tail = (1 - level) / 2
    wider = float(stats.t.isf(tail, n - fit.n_free) / stats.norm.isf(tail))
    raised = residual * wider / np.maximum(left, LEAST_LEFT)
    return np.asarray(rng.choice([-1.0, 1.0], (r, n))[:, unit] * raised)


def _between(fitted: Points, points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """[m] each: the two fitted rows of the same run between which a point lies in log D, and the share of the second;
    beyond a run's rows its first or last. None for a run that is not there."""
    rows = {}
    for run, mine in fitted.rows_of_runs.items():
        rows[run] = mine[np.argsort(fitted.n_tokens[mine], kind="stable")]
    if not set(points.run.tolist()) <= rows.keys():
        return None
    log_d, at = np.log(fitted.n_tokens), np.log(points.n_tokens)
    first, second, share = (np.zeros(len(points), dtype=kind) for kind in (int, int, float))
    for run, here in points.rows_of_runs.items():
        mine = rows[run]
        place = np.interp(at[here], log_d[mine], np.arange(len(mine)))
        low = np.floor(place).astype(int)
        first[here], second[here] = mine[low], mine[np.minimum(low + 1, len(mine) - 1)]
        share[here] = place - low
    return first, second, share
