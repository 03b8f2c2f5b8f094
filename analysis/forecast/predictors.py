"""What a surface says of runs beyond its points, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.curves import check_design, prepare
from analysis.fits.parametric.fit import ParametricFit, fit_form
from analysis.fits.points import Points
from analysis.fits.surface import Surface
from arch.errors import InputError

Value = tuple[float, tuple[float, float] | None]  # and its interval
LEVEL = 0.95


@dataclass(frozen=True)
class Predictor:
    """loss: of N, D and the unique ones of its tokens (nan where no fitted point tells what repeated ones are worth);
    noise: standard deviation of log loss between runs."""

    loss: Callable[[float, float, float], Value]
    noise: float


def of_surface(fit: ParametricFit, noise: SeedNoise | None, level: float = LEVEL) -> Predictor:
    """What a fitted surface says, with intervals at `level`; noise: between seeds."""

    def loss(n_params: float, n_tokens: float, unique: float) -> Value:
        if _cannot_tell(fit.surface, n_tokens, unique):
            return math.nan, None
        ends = (
            _ends(fit.loss_interval(n_params, n_tokens, unique, level=level)[:, 0]) if fit.draws is not None else None
        )
        return float(fit.surface.loss(n_params, n_tokens, unique)), ends

    kept = fit.points
    residual = np.log(kept.loss / fit.surface.loss(kept.n_params, kept.n_tokens, kept.unique_tokens))
    own = float(np.sqrt((residual**2).sum() / max(len(residual) - fit.n_free, 1)))
    return Predictor(loss, noise.s if noise else own)


def predicted(points: Points, objective: str, first_share: float, n: float, d: float, unique: float) -> float | None:
    """The loss at N and D by a surface without replicates; None where the points identify none."""
    try:
        prepared = prepare(points, first_share=first_share)
        kept = prepared.points
        check_design(np.log(kept.n_params), np.log(kept.n_tokens))
    except InputError:
        return None
    solution = fit_form(kept, kept.loss, prepared.weights, objective)
    if solution.unidentified.any():
        return None
    loss = float(solution.surface.one().loss(n, d, unique))
    return loss if math.isfinite(loss) and loss > 0 else None


def _cannot_tell(surface: Surface, n_tokens: float, unique: float) -> bool:
    """Whether tokens are repeated while no fitted point had any that were: R* is then not known."""
    return surface.r_d is not None and math.isinf(surface.r_d) and n_tokens > unique * (1 + 1e-9)


def of_new_runs(
    value: Value, noise: float | None, df: float | None, level: float, n_runs: int = 1
) -> tuple[float, float] | None:
    """Of the loss of a run that is to come, or of the mean of several: the error of what is expected (the interval of
    `value`, at `level`) and the noise of runs, which are independent, in logarithms. noise: standard deviation of log
    loss between runs, df its degrees of freedom (None: taken as known). None where one of the two is not known."""
    predicted, ends = value
    if ends is None or noise is None or not ends[0] > 0:
        return None
    times = float(stats.t.ppf((1 + level) / 2, df) if df is not None else stats.norm.ppf((1 + level) / 2))
    low, high = (math.log(end / predicted) for end in ends)
    own = times * noise / math.sqrt(n_runs)
    low, high = -math.hypot(min(low, 0), own), math.hypot(max(high, 0), own)
    return predicted * math.exp(low), predicted * math.exp(high)


def _ends(values: np.ndarray) -> tuple[float, float] | None:
    low, high = (float(value) for value in values)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
