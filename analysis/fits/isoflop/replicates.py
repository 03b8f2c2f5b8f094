"""The minima of the used budgets, and how noise would move them: of parabolas alone, and of parabolas together with the
surface that tells their bias.

Joint replicates: losses are drawn on the fitted surface, surface and parabolas are fitted to them anew, and each
replicate's minima are corrected by its own surface. How far these lie off the first surface's optimum is how far the
study's may lie off the truth: what surface and parabolas make of the same noise cancels as it does in the study, and
what parabolas miss of the surface is no noise. It rests on the surface's form, so two tests say whether that holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.bias import Bias, bias_of, surface_losses
from analysis.fits.isoflop.budgets import Readings
from analysis.fits.isoflop.laws import minima_of

STEP = 1e-5  # of log loss, for derivatives


class Redrawn(Protocol):
    """r studies that the noise could have led to: noise [r, n] of log loss at the points, and the surfaces refitted
    with it (analysis.fits.parametric.redraw)."""

    @property
    def noise(self) -> np.ndarray: ...

    def loss(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """[r, k] by every surface, at N and D [k] or [r, k]."""


@dataclass(frozen=True)
class Joint:
    """Corrected minima of the study and of r replicates, [1 + r, k]: log N and loss. Where the surface's form is right,
    the share of replicates in which parabolas and surface differ as much as in the study (p_agrees), and in which
    losses lie as far from the surface (p_scatter)."""

    log_n: np.ndarray
    loss: np.ndarray
    p_agrees: float
    p_scatter: float


def minima_at(readings: Readings, loss: np.ndarray, variant: str, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log N and loss at the minimum of each used budget, [r, k] each, for losses [r, p]."""
    found = [
        one for one, keep in zip(minima_of(readings, loss, variant), used, strict=True) if keep and one is not None
    ]
    return np.stack([one.log_n for one in found], 1), np.stack([one.loss for one in found], 1)


def gradients(readings: Readings, variant: str, used: np.ndarray) -> np.ndarray:
    """[2, p]: of log N_opt in the middle and of its exponent, in each log loss."""
    p = len(readings.loss)
    moved = readings.loss * np.exp(STEP * np.concatenate([np.eye(p), -np.eye(p)]))
    log_n, _ = minima_at(readings, moved, variant, used)
    change = (log_n[:p] - log_n[p:]) / (2 * STEP)  # [p, k]
    log_c = readings.log_c[used]
    off = log_c - log_c.mean()
    return np.nan_to_num(np.stack([change.mean(1), change @ off / (off @ off)]))


def joint(
    readings: Readings, clean: np.ndarray, bias: Bias, redrawn: Redrawn, variant: str, used: np.ndarray, cost: Cost
) -> Joint:
    """clean [p]: the losses of the surface that `bias` is of, on which `redrawn` was drawn."""
    drawn = clean * np.exp(readings.read(redrawn.noise))
    again = surface_losses(readings, redrawn.loss, cost)  # [r, p]: by the surface of each replicate
    own = bias_of(readings, again, variant, redrawn.loss, cost)

    def of_all(name: str) -> np.ndarray:
        """[1 + r, k]: of the study's surface and of the replicates'."""
        return np.concatenate([getattr(bias, name)[None], getattr(own, name)])[:, used]

    log_n, loss = minima_at(readings, np.concatenate([readings.loss[None], drawn]), variant, used)
    with np.errstate(invalid="ignore", divide="ignore"):
        at, level = log_n - of_all("log_n"), np.log(loss) - of_all("log_loss")
    apart = np.stack([at - of_all("true_log_n"), level - of_all("true_log_loss")])
    # a replicate's departure from the surface that it was drawn on, laid on what the study found
    at[1:] += at[0] - bias.true_log_n[used]
    level[1:] += level[0] - bias.true_log_loss[used]
    scatter = (np.log(np.concatenate([readings.loss[None] / clean, drawn / again])) ** 2).mean(1)
    return Joint(at, np.exp(level), _p_agrees(readings.log_c[used], apart), float((scatter >= scatter[0]).mean()))


def _p_agrees(log_c: np.ndarray, apart: np.ndarray) -> float:
    """apart [2, 1 + r, k]: minima, in log N and log loss, less those on the same study's surface. The share whose
    level and slope over log C lie as far from 0 as the first's, in units of their covariance."""
    off = (log_c - log_c.mean()) / log_c.std()
    found = np.concatenate([apart.mean(2), apart @ off / len(off)]).T  # [1 + r, 4]
    whole = np.isfinite(found).all(1)
    if not whole[0] or whole.sum() < 2 * found.shape[1]:
        return 0.0
    inverse = np.linalg.pinv(np.cov(found[1:][whole[1:]].T), hermitian=True)
    far = np.einsum("ri,ij,rj->r", found[whole], inverse, found[whole])
    return float((far >= far[0]).mean())
