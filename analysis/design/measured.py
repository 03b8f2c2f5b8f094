"""The noise of a pilot's own runs, which replaces the assumed noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.design.layout import along
from analysis.design.precision import MEMORY
from analysis.design.worlds import Noise
from analysis.fits.parametric import ParametricFit

FROM, DEGREE = 0.1, 4  # of a run's tokens, from where on its log loss is a polynomial of log tokens of this degree
LEAST_ROWS = 100  # of a run
SLOPE = "slope along a run"


def text_noise(curves: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> float | None:
    """The noise of the text in nats: the root mean square of steps' losses about a smooth curve, times the root of a
    step's tokens; the median over runs. curves: tokens [n], loss [n] of single steps and tokens of a step. None where
    no run is long enough."""
    noises = []
    for tokens, loss, batch in curves:
        late = tokens >= FROM * tokens[-1] if len(tokens) else np.zeros(0, dtype=bool)
        if late.sum() < LEAST_ROWS:
            continue
        at = np.log(tokens[late])
        at = (at - at.mean()) / at.std()
        smooth = np.polynomial.polynomial.polyval(at, np.polynomial.polynomial.polyfit(at, np.log(loss[late]), DEGREE))
        off = loss[late] - np.exp(smooth)
        noises.append(math.sqrt(batch * float((off**2).sum()) / (len(off) - DEGREE - 1)))
    return float(np.median(noises)) if noises else None


def seeds_alone(s: float, text: float, loss: float, window: float) -> float:
    """The noise between seeds of log loss, without that of the text: s is measured on points that are means of `window`
    tokens, whose text differs too. At least a third of s, since both are estimates."""
    return math.sqrt(max(s**2 - (text / loss) ** 2 / window, (s / 3) ** 2))


def bend(fits: Sequence[ParametricFit], noise: Noise) -> float | None:
    """How much faster or slower than the surface the log loss of a run falls with an e-fold of tokens: the root mean
    square over fits, less the contribution of the noise between seeds; at least 0. None where no fit has curves."""
    squares = []
    for fit in fits:
        if fit.effects is None:
            continue
        for kind, s in zip(fit.effects.kinds, fit.effects.s, strict=True):
            if kind.name == SLOPE:
                logs = np.log(fit.points.n_tokens)
                _, which = np.unique(fit.points.run.astype(str), return_inverse=True)
                rows = np.bincount(which)
                spread = np.sqrt(np.bincount(which, logs**2) / rows - (np.bincount(which, logs) / rows) ** 2)
                squares.append((float(s) / float(spread[spread > 0].mean())) ** 2)
    if not squares:
        return None
    return math.sqrt(max(float(np.mean(squares)) - (noise.seed * _slope_of_seeds()) ** 2, 0.0))


def _slope_of_seeds() -> float:
    """The standard deviation of the slope along a decade of a curve, where that of the curve's noise is 1."""
    at = np.log(along(1.0))
    known = np.exp(-np.abs(at[:, None] - at[None]) / MEMORY)
    weight = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
    return math.sqrt(float(weight @ known @ weight))
