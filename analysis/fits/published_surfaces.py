"""Surfaces of the loss that papers printed, laid beside a fit of the points: by how much each misses them, how far its
parameters lie from the fit's, and which optimum it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fits.parametric import ParametricFit
from analysis.fits.points import Points
from analysis.fits.published import Stated
from analysis.fits.surface import PARAMS, Surface


@dataclass(frozen=True)
class Printed:
    """A surface L = E + A / N^alpha + B / D^beta in nats a token, and where it is printed."""

    surface: Surface
    source: str


PRINTED: Mapping[str, Printed] = {
    "Hoffmann et al. 2022": Printed(
        Surface(1.69, 406.4, 410.7, 0.34, 0.28), "arXiv 2203.15556, approach 3, as printed"
    ),
    "Hoffmann et al. 2022, more digits": Printed(
        Surface(1.6934, 406.4, 410.7, 0.3392, 0.2849), "its TeX source, as Besiroglu et al. quote it"
    ),
    "Besiroglu et al. 2024": Printed(
        Surface(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "arXiv 2404.10102, of 240 points read off a figure of the first",
    ),
}
OURS = "this fit"


def law_of(name: str, surface: Surface) -> Stated:
    """The laws of N_opt and D_opt that a surface implies under C = 6 N D, C in FLOP."""
    a, b, g = float(surface.a), float(surface.b), float(surface.G)
    return Stated(name, {"n_opt": (g * 6**-a, a), "d_opt": (6**-b / g, b)})


def misses(points: Points, surface: Surface) -> np.ndarray:
    """ln L less ln of the surface's loss, point by point."""
    return np.asarray(np.log(points.loss) - np.log(surface.loss(points.n_params, points.n_tokens)))


def beside(fit: ParametricFit, c: float, printed: Mapping[str, Printed] = PRINTED) -> list[dict[str, Any]]:
    """A row for `fit` and for each of `printed`, by name: E, A, B, alpha, beta; a, N_opt and L_opt at C = 6 N D = `c`;
    `off` and `spread`, mean and standard deviation of `misses` of the fit's own points; and `farther`, the share of
    the fit's draws that lie farther from it than this surface does, in all five parameters at once (None without
    draws).

    Distances are those of (E, ln A, ln B, alpha, beta) by the covariance of the draws.
    """
    surfaces = {OURS: fit.surface} | {name: law.surface for name, law in printed.items()}
    drawn = None if fit.draws is None else _coordinates(fit.draws.surface)
    rows = []
    for name, surface in surfaces.items():
        off = misses(fit.points, surface)
        row: dict[str, Any] = {"surface": name} | {key: float(getattr(surface, key)) for key in PARAMS}
        row |= {"a": float(surface.a), "n_opt": float(surface.n_opt(c)), "l_opt": float(surface.l_opt(c))}
        row |= {"off": float(off.mean()), "spread": float(off.std(ddof=1))}
        row["farther"] = None if drawn is None else _farther(drawn, _coordinates(fit.surface), _coordinates(surface))
        rows.append(row)
    return rows


def _coordinates(surface: Surface) -> np.ndarray:
    """[5], or [r, 5] of many."""
    logs = {key: np.log(getattr(surface, key)) if key in ("A", "B") else getattr(surface, key) for key in PARAMS}
    return np.stack([np.asarray(value, dtype=float) for value in logs.values()], axis=-1)


def _farther(drawn: np.ndarray, centre: np.ndarray, other: np.ndarray) -> float:
    kept = drawn[np.isfinite(drawn).all(1)] - centre
    weigh = np.linalg.pinv(kept.T @ kept / len(kept))
    distance = np.einsum("ri,ij,rj->r", kept, weigh, kept)
    away = other - centre
    return float((distance > away @ weigh @ away).mean())
