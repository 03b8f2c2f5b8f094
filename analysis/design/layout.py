"""The points of a study: which losses its fits read, what these have in common, and the noise of the text read there.

A point of a curve of training loss is a mean over the tokens of its window. Text is harder or easier from one sequence
to the next: the mean of n tokens has a standard deviation of `text` / sqrt(n) nats, whatever the batch
(docs/research/designs.md). It is white noise along the tokens, so means share the noise of the tokens that their
windows share. Runs of one seed read the same text in the same order, whatever their size, so they share most of it; the
rest is a run's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CURVE_ROWS, CURVE_FROM = 32, 0.1  # of a curve, as the fits read it (FitSettings.curve_rows)
SMOOTHED = 0.1  # of the tokens seen, over which a point of a curve is a mean: wider windows overlap their neighbours'


@dataclass(frozen=True)
class Layout:
    """The n points of a proposal for one architecture: N, D, the index of the size, the trunk and the run of each.
    swept [2, cells]: N and D of the cells of its sweep of learning rates, None without a sweep. window [n]: the tokens
    over which a training loss is a mean, None for held-out losses; text [n]: runs of equal text read the same in the
    same order.
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
    `window` where that is more: the last window ends with the run."""
    last = min(tokens / (1 + share / 2), max(tokens - window / 2, tokens / 2))
    return np.geomspace(min(CURVE_FROM * tokens, last / 2), last, CURVE_ROWS)


def take(layout: Layout, rows: np.ndarray) -> Layout:
    """The layout of some of its points."""
    named = ("n_params", "n_tokens", "size", "trunk", "run", "text")
    window = None if layout.window is None else layout.window[rows]
    parts = {name: getattr(layout, name)[rows] for name in named}
    return Layout(**parts, curves=layout.curves, swept=layout.swept, window=window)


# Nats: 5.5 on Python's library read 256 bytes at a time, 5.3 on books read 2,048 at a time, and much the same at all
# sizes (docs/research/designs.md); other text may have half of that, or twice.
TEXT = 5.4
CONTROLLED = 0.65  # times that, less what a bigram model says of each batch: 0.53 and 0.73 there
SHARED = 0.9  # of the variance, that runs of one seed have in common
FROM, DEGREE = 0.1, 4  # of a run's tokens, from where on its log loss is a polynomial of log tokens of this degree
LEAST_ROWS = 100  # of a run that its noise is measured on


def weighed(layout: Layout, weight: np.ndarray) -> np.ndarray:
    """[...]: the variance of weight @ losses for weights [..., n], where a token's noise is 1 nat."""
    if layout.window is None:
        return np.zeros(weight.shape[:-1])
    variance = np.zeros(weight.shape[:-1])
    for labels, share in ((layout.text, SHARED), (layout.run, 1 - SHARED)):
        order, length = _axis(layout, labels)
        density = weight / layout.window
        height = np.cumsum(np.concatenate([density, -density], -1)[..., order], -1)
        variance += share * (height[..., :-1] ** 2 @ length)
    return variance


def drawn(layout: Layout, rng: np.random.Generator) -> np.ndarray:
    """[n]: a draw of the text's noise in nats, where a token's noise is 1 nat."""
    n = len(layout.n_tokens)
    if layout.window is None:
        return np.zeros(n)
    noise = np.zeros(n)
    for labels, share in ((layout.text, SHARED), (layout.run, 1 - SHARED)):
        order, length = _axis(layout, labels)
        walk = np.empty(2 * n)
        walk[order] = np.cumsum(np.r_[0.0, rng.standard_normal(len(length)) * np.sqrt(length)])
        noise += np.sqrt(share) * (walk[n:] - walk[:n]) / layout.window
    return noise


def _axis(layout: Layout, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order [2 n] of the windows' beginnings and ends along the tokens, label after label, and the tokens between
    neighbours [2 n - 1]."""
    start, end = _ends(layout)
    _, which = np.unique(labels.astype(str), return_inverse=True)
    place = np.concatenate([start, end]) + np.tile(which, 2) * 2 * float(end.max())
    order = np.argsort(place, kind="stable")
    return order, np.diff(place[order])


def _ends(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    assert layout.window is not None
    start = np.maximum(layout.n_tokens - layout.window / 2, 0.0)
    return start, start + layout.window


def text_noise(curves: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> float | None:
    """The noise of the text in nats, of a pilot's own runs: the root mean square of steps' losses about a smooth curve,
    times the root of a step's tokens; the median over runs. curves: tokens [n], loss [n] of single steps and tokens of
    a step. None where no run is long enough."""
    noises = []
    for tokens, loss, batch in curves:
        late = tokens >= FROM * tokens[-1] if len(tokens) else np.zeros(0, dtype=bool)
        if late.sum() < LEAST_ROWS:
            continue
        smooth = np.polynomial.Polynomial.fit(np.log(tokens[late]), np.log(loss[late]), DEGREE)
        off = loss[late] - np.exp(smooth(np.log(tokens[late])))
        noises.append(math.sqrt(batch * float((off**2).sum()) / (len(off) - DEGREE - 1)))
    return float(np.median(noises)) if noises else None


def seeds_alone(s: float, text: float, loss: float, window: float) -> float:
    """The noise between seeds of log loss, without that of the text: s is measured on points that are means of `window`
    tokens, whose text differs too. At least a third of s, since both are estimates."""
    return math.sqrt(max(s**2 - (text / loss) ** 2 / window, (s / 3) ** 2))
