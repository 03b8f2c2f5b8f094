"""Does a pure power law describe L(C)? A test for an irreducible loss, and what it can see.

With an irreducible loss log L is convex in log C, so the quadratic term of the least-squares parabola through the
envelope is positive; under a power law it is 0 but for the envelope's steps (staircase.py) and for noise. The null
distribution of the noise is simulated: the curves are moved as seeds would move them (intervals.py), and the envelope
read again. A test that finds nothing says little by itself, so its power at this noise stands beside it. A curve that
bends the other way, which no irreducible loss makes, counts as well, but only where noise is far less likely.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analysis.fits.fit import Curvature

LEVEL = 0.05  # chance of a false alarm of a convex curve
LEVEL_CONCAVE = 0.01  # and of a concave one
SEEN = 0.8  # power that counts as seeing an irreducible loss


def find_curvature(log_c: np.ndarray, log_loss: np.ndarray, steps: np.ndarray, moved: np.ndarray) -> Curvature | None:
    """Of the envelope log_loss [g] at log_c [g], `steps` [g] above the continuous optimum's, and of the envelopes
    `moved` [r, g] that noise makes of it. None for fewer than four points."""
    if len(log_c) < 4 or len(moved) == 0:
        return None
    x = log_c - log_c.mean()
    weights = np.linalg.pinv(np.stack([np.ones_like(x), x, x**2], 1))[2]
    raw = float(log_loss @ weights)
    noise = moved @ weights
    noise -= noise.mean()  # noise drawn once more also bends the envelope on average; the first draw hardly does
    of_steps = float(steps @ weights)
    found = raw - of_steps
    threshold = float(np.quantile(noise, 1 - LEVEL))
    loss = np.exp(log_loss - steps)

    def power(irreducible: float) -> float:
        line = np.polyfit(x, np.log(loss - irreducible), 1)
        bent = np.log(irreducible + np.exp(np.polyval(line, x)))
        return float((noise + bent @ weights > threshold).mean())

    lowest = float(loss.min())
    chance = float((noise >= found).mean())
    shape = "convex" if chance < LEVEL else "concave" if chance > 1 - LEVEL_CONCAVE else None
    return Curvature(True, shape, "", found, of_steps, chance, power(lowest / 2), _visible(power, lowest))


def _visible(power: Callable[[float], float], lowest: float) -> float | None:
    """The least irreducible loss that is found with a chance of SEEN, to a hundredth of the lowest loss."""
    for share in np.arange(0.01, 0.99, 0.01):
        if power(share * lowest) >= SEEN:
            return float(share * lowest)
    return None
