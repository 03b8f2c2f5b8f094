"""The lower envelope of one architecture's training curves over compute, and who owns each point of it.

At each C of a log-spaced grid the owner is the size with the lowest loss among those whose curve covers C (Hoffmann et
al. 2022, approach 1). An owned point says something about N_opt only where a better size could have shown itself; every
other point is censored, with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.fits.smooth import read_at

# What a point's code means; 0 is an uncensored point.
REASONS = (
    None,
    "owned by the smallest size",
    "owned by the largest size",
    "inside warm-up",
    "a smaller size was still ahead when its run ended",
    "no curve covers this compute",
    "the next larger size has no curve here, after its warm-up",
)
SMALLEST, LARGEST, WARMUP, ENDED, UNCOVERED, UNRIVALLED = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class SizeCurve:
    """One size's smoothed curve, its seeds averaged in log loss. C in FLOP of one convention; loss in nats a token.

    Before `warmup_tokens` a point counts as inside warm-up: with a smoothed loss, until the whole window has left it.
    """

    size: str
    n_params: float
    flops_per_token: float
    warmup_tokens: float
    n_seeds: int
    log_c: np.ndarray
    log_loss: np.ndarray

    @property
    def settled_from(self) -> float:
        """log C from which on the curve counts: after its warm-up."""
        return max(float(self.log_c[0]), math.log(max(self.warmup_tokens, 1e-300) * self.flops_per_token))


@dataclass(frozen=True)
class Envelope:
    """Envelopes of r replicates on a grid of g points: log loss (inf: uncovered), owner and code, each [r, g]."""

    log_c: np.ndarray
    log_loss: np.ndarray
    owner: np.ndarray
    code: np.ndarray


def average_seeds(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean log loss of several (log C, log loss) curves over the stretch that all of them cover."""
    if len(curves) == 1:
        return curves[0]
    start, end = max(c[0][0] for c in curves), min(c[0][-1] for c in curves)
    base = curves[0][0]
    grid = base[(base >= start) & (base <= end)]
    return grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0)


def near_as_one(curves: Sequence[SizeCurve], factor: float) -> list[SizeCurve]:
    """`curves`, smallest first, with those of near sizes as one: at each compute the lowest loss among them, for the
    geometric means of their sizes and of their costs of a token. Where two such curves cross says little of the optimal
    size: noise, or another shape, moves the crossing by decades."""
    return [_as_one(group) if len(group) > 1 else group[0] for group in near_sizes(curves, factor)]


def near_sizes(curves: Sequence[SizeCurve], factor: float) -> list[list[SizeCurve]]:
    """`curves`, smallest first, in groups of sizes less than `factor` times the smallest of their group."""
    groups: list[list[SizeCurve]] = []
    for curve in curves:
        if groups and curve.n_params < factor * groups[-1][0].n_params:
            groups[-1].append(curve)
        else:
            groups.append([curve])
    return groups


def _as_one(curves: Sequence[SizeCurve]) -> SizeCurve:
    log_c = np.unique(np.concatenate([curve.log_c for curve in curves]))
    n_params, per_token = (
        float(np.exp(np.mean(np.log([float(getattr(curve, name)) for curve in curves]))))
        for name in ("n_params", "flops_per_token")
    )
    return SizeCurve(
        f"{curves[0].size} to {curves[-1].size}",
        float(round(n_params)),
        per_token,
        max(curve.warmup_tokens for curve in curves),
        min(curve.n_seeds for curve in curves),
        log_c,
        np.min([read_at(curve.log_c, curve.log_loss, log_c) for curve in curves], axis=0),
    )


def extract(
    curves: Sequence[SizeCurve], log_c: np.ndarray, shifts: np.ndarray | None = None, censor: bool = True
) -> Envelope:
    """The envelope of `curves`, smallest size first, on the grid log_c [g]; shifts [r, sizes] move each log loss.
    Without `censor` only points in warm-up and without a curve are told apart from the others."""
    shifts = np.zeros((1, len(curves))) if shifts is None else shifts
    table = np.stack([read_at(curve.log_c, curve.log_loss, log_c) for curve in curves])  # [sizes, g]
    moved = table[None] + shifts[:, :, None]
    owner, log_loss = moved.argmin(1), moved.min(1)

    rank = np.arange(len(curves))
    warm_until = np.log([max(curve.warmup_tokens, 1e-300) * curve.flops_per_token for curve in curves])
    warm_until -= 1e-12 * np.abs(warm_until)  # a range that begins where the warm-up ends keeps its first point
    code = np.zeros(owner.shape, dtype=int)
    if censor:
        code[owner == rank[-1]] = LARGEST
        code[owner == 0] = SMALLEST
        code[(code == 0) & _ended_ahead(curves, log_c, shifts, owner)] = ENDED
        # a larger size whose curve has ended (or not begun) might be ahead; the next one, behind, rules all others out
        rival = np.isfinite(table[1:]) & (log_c > warm_until[1:, None])
        above = np.concatenate([rival, np.ones((1, len(log_c)), dtype=bool)])
        code[(code == 0) & ~above[owner, np.arange(len(log_c))]] = UNRIVALLED
    code[(log_c[None] < warm_until[owner]) & np.isfinite(log_loss)] = WARMUP
    code[~np.isfinite(log_loss)] = UNCOVERED
    return Envelope(log_c, log_loss, owner, code)


def _ended_ahead(curves: Sequence[SizeCurve], log_c: np.ndarray, shifts: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """[r, g]: whether some size smaller than the owner ended before this C while no larger size had overtaken it.

    Two curves of one architecture cross once, so a size that was behind a larger one when it ended stays behind that
    one; a size still ahead of all larger ones might own this point, had it gone on.
    """
    censored = np.zeros(owner.shape, dtype=bool)
    for rank, curve in enumerate(curves[:-1]):
        if not len(curve.log_c):
            continue
        end = curve.log_c[-1:]
        larger = np.array([read_at(other.log_c, other.log_loss, end)[0] for other in curves[rank + 1 :]])
        best = (larger + shifts[:, rank + 1 :]).min(1)  # [r]
        ahead = curve.log_loss[-1] + shifts[:, rank] < best
        censored |= (owner > rank) & (log_c > end)[None] & ahead[:, None]
    return censored
