"""The points of a study: which losses its fits read, and what these have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CURVE_ROWS, CURVE_FROM = 32, 0.1  # of a curve, as the fits read it (FitSettings.curve_rows)
SMOOTHED = 0.1  # of the tokens seen, over which a point of a curve is a mean: wider windows overlap their neighbours'


@dataclass(frozen=True)
class Layout:
    """The n points of a proposal for one architecture: N, D, the index of the size, the trunk and the run of each.
    swept [2, cells]: N and D of the cells of its sweep of learning rates, None without one. window [n]: tokens that a
    training loss is the mean of, None for held-out losses; text [n]: runs of one text read the same in the same order.
    """

    n_params: np.ndarray
    n_tokens: np.ndarray
    size: np.ndarray
    trunk: np.ndarray
    run: np.ndarray
    curves: bool
    text: np.ndarray
    swept: np.ndarray | None = None
    window: np.ndarray | None = None


def along(tokens: float, window: float = 0.0, share: float = SMOOTHED) -> np.ndarray:
    """[CURVE_ROWS]: the tokens of the points of a curve, each the mean over `share` of the tokens seen, or over
    `window` where that is more: the last one's window ends with the run."""
    last = min(tokens / (1 + share / 2), max(tokens - window / 2, tokens / 2))
    return np.geomspace(min(CURVE_FROM * tokens, last / 2), last, CURVE_ROWS)


def take(layout: Layout, rows: np.ndarray) -> Layout:
    """Some of its points."""
    named = ("n_params", "n_tokens", "size", "trunk", "run", "text")
    window = None if layout.window is None else layout.window[rows]
    found = {name: getattr(layout, name)[rows] for name in named}
    return Layout(**found, curves=layout.curves, swept=layout.swept, window=window)
