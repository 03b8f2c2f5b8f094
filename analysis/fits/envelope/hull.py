"""The lower convex hull of log loss over log compute: the envelope as a line that no run lies below.

A hull keeps the runs that stand out, however densely sizes lie: a size that is never far enough ahead of its neighbours
is no vertex, so that shapes of nearly one size need not be told apart. Its vertices are runs as they were trained, the
smallest and the largest size among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits.envelope.extract import SizeCurve


def hulls(
    curves: Sequence[SizeCurve], stretch: tuple[float, float], shifts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log C [n] and size by rank [n] of the points that can be vertices, after warm-up and over C in `stretch` [FLOP];
    and which of them are, up to the lowest loss, where `shifts` [r, sizes] move each size's log loss [r, n]."""
    low, high = np.log(stretch)
    parts = []
    for place, curve in enumerate(curves):
        inside = (curve.log_c >= max(low, curve.settled_from) - 1e-9) & (curve.log_c <= high + 1e-9)
        x, y = curve.log_c[inside], curve.log_loss[inside]
        own = lower_hull(x, y)  # of its own hull alone, wherever the curve is moved to
        parts.append((x[own], y[own], np.full(len(own), place)))
    x, y, rank = (np.concatenate(part) for part in zip(*parts, strict=True))
    is_vertex = np.zeros((len(shifts), len(x)), dtype=bool)
    for row, shift in enumerate(shifts):
        moved = y + shift[rank]
        vertices = lower_hull(x, moved)
        is_vertex[row, vertices[: int(moved[vertices].argmin()) + 1] if len(vertices) else []] = True
    return x, rank, is_vertex


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the vertices of the lower convex hull of points [n], by rising x (Andrew 1979)."""
    chain: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for i in np.lexsort((-y, x)).tolist():
        while chain and xs[chain[-1]] == xs[i]:
            chain.pop()
        while len(chain) > 1 and _is_straight_or_above(xs, ys, chain[-2], chain[-1], i):
            chain.pop()
        chain.append(i)
    return np.array(chain, dtype=int)


def _is_straight_or_above(x: Sequence[float], y: Sequence[float], first: int, middle: int, last: int) -> bool:
    """Whether the middle one of three points lies on the line through the others, or above it."""
    return (x[middle] - x[first]) * (y[last] - y[first]) <= (y[middle] - y[first]) * (x[last] - x[first])
