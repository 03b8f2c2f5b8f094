"""How log L moves with the unknowns of a fit that are free: what noise a fit absorbs, and how many it has."""

from __future__ import annotations

import numpy as np

from analysis.fits.parametric.descent import BOUNDS, Problem
from analysis.fits.parametric.newton import Plain
from analysis.fits.parametric.repeats import R_STAR, Discounted, Repeated, Repeats
from analysis.fits.parametric.surface import Surface
from analysis.fits.points import Points


def slopes(surface: Surface, repeats: Repeats | None, points: Points, tied: bool) -> np.ndarray:
    """[n, free]: of log L over E, log A, log B, alpha, beta and log R*. A tie makes one of alpha and beta; E = 0, a
    term that is not there, and what ended at the end of its range are no unknowns."""
    log_n, log_d = np.log(points.n_params)[None], np.log(points.n_tokens)[None]
    x, y, one = log_n - log_n.mean(), log_d - log_d.mean(), np.ones((1, len(points)))
    e, a, b, alpha, beta = surface.to_dict().values()
    with np.errstate(divide="ignore"):
        log_a, log_b = np.maximum(np.log([a, b]), -1e3)
    theta = [e, log_a - alpha * log_n.mean(), log_b - beta * log_d.mean(), alpha, beta]
    inside = [BOUNDS[0] * (1 + 1e-9) < value < BOUNDS[1] * (1 - 1e-9) for value in (alpha, beta)]
    free = [e > 0, a > 0, b > 0, a > 0 and inside[0], b > 0 and inside[1]]
    if repeats is None:
        told = Plain().bent(Problem(x, y, one, one), np.array([theta])).slopes[0].T
    else:
        stars = [repeats.r_d] if repeats.r_n is None else [repeats.r_d, repeats.r_n]
        unique = np.minimum(points.unique_tokens, points.n_tokens)[None]
        problem = Repeated(x, y, one, one, unique=np.log(unique) - log_d.mean(), times=points.n_tokens / unique)
        theta += [float(np.log(np.clip(star, *R_STAR))) for star in stars]
        free += [not bound for bound in repeats.at_bound[: len(stars)]]
        told = Discounted(repeats.r_n is not None).bent(problem, np.array([theta])).slopes[0].T
    if tied:
        told = np.column_stack([told[:, :3], told[:, 3] + told[:, 4], told[:, 5:]])
        free = [*free[:3], free[3] and free[4], *free[5:]]
    return np.asarray(told[:, free])
