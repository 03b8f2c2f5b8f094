"""IsoFLOP profiles: the best size at each budget of compute, and the laws through them (Hoffmann et al. 2022, approach
2).

Losses are fitted as they are, not their logarithms: with E in L = E + A / N^alpha + B / D^beta the loss above E of
budgets whose sizes lie alike about the optimum differs by a factor alone, so a parabola's vertex is off by one factor
at all of them and the exponent is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.fits.cost import Cost
from analysis.fits.isoflop.bias import Bias, Surface, bias_of, surface_losses
from analysis.fits.isoflop.budgets import TOLERANCE, Readings, read_budgets
from analysis.fits.isoflop.correct import Corrected, correct
from analysis.fits.isoflop.laws import Above, Budget, Laws, describe, exp_interval, fit_laws, minima_of
from analysis.fits.isoflop.minimum import NEEDED
from analysis.fits.isoflop.noise import FROM_RUNS, Noise, draw_noise, draw_residuals, noise_of, residuals
from analysis.fits.isoflop.replicates import Redrawn, gradients, minima_at
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from arch.amounts import counted_of, flop
from arch.errors import InputError

LOSS_REACH = {False: 1.0, True: 10.0}  # times the last budget, up to which intervals of L_opt were seen to cover
MIN_BUDGETS = 3  # two fix a line, a third can tell whether it is one


@dataclass(frozen=True)
class IsoFlop:
    """A fit with its replicates. lines: N_opt, D_opt and L_opt of the minima, the first replicate being the study
    itself; bias: where a surface was given; corrected: where it has an optimum at every used budget."""

    readings: Readings
    budgets: tuple[Budget, ...]
    used: np.ndarray  # [k]: budgets that enter the laws
    lines: Laws
    corrected: Corrected | None
    bias: Bias | None
    noise: Noise | None
    wild: bool
    variant: str
    level: float
    rise: float  # of log loss for an e-fold of C, by which losses off their budget's C were moved

    @property
    def range(self) -> tuple[float, float]:
        """C of the first and last budget that has a minimum [FLOP]."""
        log_c = self.readings.log_c[self.used]
        return float(np.exp(log_c.min())), float(np.exp(log_c.max()))

    def predict(self, name: str, c: float) -> tuple[float, tuple[float, float] | None]:
        """N_opt, D_opt or L_opt of the minima at C [FLOP], and its interval."""
        drawn = self.lines[name].at(math.log(c))
        return float(np.exp(drawn[0])), exp_interval(drawn[1:], self.level)

    def optimum(self, name: str, c: float) -> tuple[float, tuple[float, float] | None]:
        """The same of the optimum where a surface told the bias, else of the minima. No interval for a loss at a
        C where none was seen to cover, and for any by interpolation, whose lowest point lies too low."""
        value, ends = self.predict(name, c)
        if self.corrected is not None:
            drawn = self.corrected.laws[name].at(math.log(c))
            value, ends = float(np.exp(drawn[0])), self.reaching(exp_interval(drawn[1:], self.level), value)
        low, high = np.log(self.range)
        reach = math.log(LOSS_REACH[self.corrected is not None])
        beyond = not low - TOLERANCE <= math.log(c) <= high + reach + TOLERANCE
        return value, None if name == "L_opt" and (beyond or self.variant == "interpolation") else ends

    def tells_loss(self, c: float) -> bool:
        """Whether L_opt is to be had at C: outside three budgets their power law runs below any irreducible loss."""
        return isinstance(self.lines["L_opt"], Above) or self.range[0] <= c <= self.range[1]

    def reaching(self, ends: tuple[float, float] | None, raw: float) -> tuple[float, float] | None:
        """The interval of a corrected value, out to the raw one where the correction is not sure."""
        sure = self.corrected is None or not self.corrected.reaches
        return ends if ends is None or sure else (min(ends[0], raw), max(ends[1], raw))


def isoflop(
    points: Points,
    cost: Cost,
    variant: str = "parabola",
    *,
    budgets: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    curves: bool | None = None,
    surface: Surface | None = None,
    known: bool = False,
    redrawn: Redrawn | None = None,
    noise: SeedNoise | None = None,
    n_replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> IsoFlop:
    """The fit with its replicates.

    variant: `parabola` in log N, or `interpolation` (Akima). budgets: their C [FLOP]; without them end points are
    grouped by `tolerance` in log C, and whole curves (`curves`; by default from four rows a run) read at eight.
    surface: the loss of N and D: the parabola's bias is told by it and taken off. known: it was not fitted to these
    losses, so what the parabolas miss of it is no noise. redrawn: else, the same surface refitted to losses drawn anew,
    for the intervals (module replicates); without them, or where the losses do not lie about the surface as its noise
    would have them, intervals reach to the value without the correction. Without a surface all numbers are of the
    minima, not of the optimum. noise: between seeds, where replicates tell it: of the parabolas' own intervals.

    Raises InputError for fewer than three budgets with a minimum inside their sizes, and says what is wrong with each.
    """
    if variant not in NEEDED:
        raise InputError(f"isoFLOP has no variant {variant!r}: {', '.join(NEEDED)}")
    if known and surface is None:
        raise InputError("isoFLOP: known=True tells of a surface, but none is given: give it as surface")
    readings = read_budgets(points, budgets, tolerance, curves)
    told = describe(readings, minima_of(readings, readings.loss[None], variant), cost, variant)
    rise = _rise(told)
    if readings.offset is not None and readings.offset.any():
        readings = readings.at_budget(rise)
        told = describe(readings, minima_of(readings, readings.loss[None], variant), cost, variant)
    used = np.array([one.reason is None for one in told])
    if used.sum() < MIN_BUDGETS:
        raise InputError(_too_few(told, readings, variant))
    found = residuals(readings)
    clean = None if surface is None else surface_losses(readings, surface, cost)
    if clean is not None and known:
        found = found.less(residuals(replace(readings, loss=clean)))
    told_noise = noise_of(readings, found, noise)
    wild = told_noise is not None and noise is None and len(readings.units) >= FROM_RUNS
    drawn = np.empty((0, len(readings.loss)))
    if told_noise is not None and n_replicates and wild:
        slopes = gradients(readings, variant, used)
        drawn = draw_residuals(readings, found, told_noise, slopes, n_replicates, level, seed)
    elif told_noise is not None and n_replicates:
        drawn = draw_noise(readings, told_noise, n_replicates, seed)
    if points.shift.size and len(drawn):
        drawn = drawn * np.exp(readings.read(points.common(len(drawn), seed)))
    log_n, loss = minima_at(readings, np.concatenate([readings.loss[None], drawn]), variant, used)
    bias, corrected = None, None
    if surface is not None and clean is not None:
        bias = bias_of(readings, clean, variant, surface, cost)
        corrected = correct(readings, used, (log_n, loss), bias, clean, cost, variant, known, redrawn, level)
    lines = fit_laws(readings.log_c[used], log_n, loss, cost)
    return IsoFlop(readings, tuple(told), used, lines, corrected, bias, told_noise, wild, variant, level, rise)


def _rise(budgets: Sequence[Budget]) -> float:
    """d log L_opt / d log C through the minima; 0 for fewer than two."""
    kept = [(math.log(one.c), math.log(one.loss)) for one in budgets if one.loss is not None]
    log_c, log_loss = np.array(kept).reshape(-1, 2).T
    return float(np.polyfit(log_c, log_loss, 1)[0]) if len(kept) > 1 else 0.0


def _too_few(budgets: Sequence[Budget], readings: Readings, variant: str) -> str:
    kept = sum(one.reason is None for one in budgets)
    alike: dict[str, list[float]] = {}
    for one in budgets:
        if one.reason is not None:
            alike.setdefault(one.reason, []).append(one.c)
    where = {True: "at {0} FLOP", False: "at {1} budgets from {0} to {2} FLOP"}
    why = "; ".join(
        f"{where[len(at) == 1].format(flop(min(at)), len(at), flop(max(at)))} {reason}" for reason, at in alike.items()
    )
    left = "; ".join(readings.left_out)
    told = "; ".join(part for part in (why, left) if part)
    return (
        f"isoFLOP ({variant}): {counted_of(kept, len(budgets), 'budget', 'has', 'have')} a minimum inside "
        f"{'its' if kept == 1 else 'their'} sizes, {MIN_BUDGETS} are needed" + (f" ({told})" if told else "")
    )
