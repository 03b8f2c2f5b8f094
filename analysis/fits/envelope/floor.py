"""L(C) with an irreducible loss, E + beta C^alpha, through the same points of the envelope as the pure power law, and
which of the two describes the curve: what the test of its bend finds (curvature.py), and which one, fitted to the first
part of the compute, predicts the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.envelope.intervals import percentiles
from analysis.fits.fit import L_OPT, Band, Estimate, Law, OutOfSample
from analysis.fits.irreducible import EXPONENTS, NEEDED, Irreducible, fit_irreducible
from analysis.fits.powerlaw import fit_power_law
from arch.amounts import counted

CUTS = (0.5, 0.65, 0.8)  # of the range of log C, up to which a form is fitted to predict what follows
BAND = 25  # places of the band within the range
IRREDUCIBLE, POWER_LAW, NEITHER, UNDECIDED = "irreducible", "power law", "neither", "undecided"


@dataclass(frozen=True)
class Floored:
    """L(C) with an irreducible loss; how far its points lie off it, root mean square of log loss (None: too few
    points), and how well it and the pure power law predict what follows a cut."""

    law: Law
    off_line: float | None = None
    out_of_sample: tuple[OutOfSample, ...] = ()


def irreducible_law(log_c: np.ndarray, log_loss: np.ndarray, moved: np.ndarray | None, level: float) -> Floored:
    """Of the points log_loss [g] at log_c [g], and of their replicates `moved` [r, g]: intervals by percentiles, which
    fall short of their level, beyond the range most of all (docs/research/envelope.md), so there is no band there.

    Moving curves at random lowers their least, once in the study and again in each replicate; so replicates are put
    about the study's points less what noise took from them, both told by the mean replicate.
    """
    empty = Law(L_OPT, n_points=len(log_c))
    if len(log_c) < 2 * NEEDED:
        points = counted(len(log_c), "point of the range lies", "points of the range lie")
        return Floored(replace(empty, reason=f"{points} on a curve, {2 * NEEDED} are needed"))
    fitted = fit_irreducible(log_c, np.exp(log_loss))
    steep = float(-fitted.exponent[0])
    found = Floored(empty, _off(fitted, log_c, log_loss), out_of_sample(log_c, log_loss))
    if steep >= EXPONENTS[-1] * 0.99:
        why = "the loss stops falling within the range: no exponent can be told"
        return replace(found, law=replace(empty, reason=why))
    ends: dict[str, Any] = {}
    band = None
    if moved is not None and len(moved):
        drawn = fit_irreducible(log_c, np.exp(moved - 2 * (moved.mean(0) - log_loss)))
        ends = {"floor": percentiles(drawn.floor, level), "exponent": percentiles(drawn.exponent, level)}
        ends["coef"] = [_exp(one) for one in percentiles(drawn.log_coef, level) or (math.nan, math.nan)]
        band = _band(drawn, np.linspace(float(log_c.min()), float(log_c.max()), BAND), level)
    law = replace(
        empty,
        floor=Estimate.of(float(fitted.floor[0]), ends.get("floor")),
        coefficient=Estimate.of(_exp(float(fitted.log_coef[0])), ends.get("coef")),
        exponent=Estimate.of(float(fitted.exponent[0]), ends.get("exponent")),
        centre=(math.exp(fitted.centre), float(fitted.floor[0] + fitted.above[0])),
        range=(math.exp(log_c.min()), math.exp(log_c.max())),
        band=band,
    )
    return replace(found, law=law)


def out_of_sample(log_c: np.ndarray, log_loss: np.ndarray) -> tuple[OutOfSample, ...]:
    """For each cut: how well both forms, fitted below it, predict the loss above."""
    told = []
    for cut in CUTS:
        at = log_c.min() + cut * np.ptp(log_c)
        low = log_c <= at
        if low.sum() < 2 * NEEDED or low.all():
            continue
        pure = fit_power_law(np.exp(log_c[low]), np.exp(log_loss[low]))
        bent = fit_irreducible(log_c[low], np.exp(log_loss[low]))
        off = log_loss[~low] - np.log(pure(np.exp(log_c[~low])))
        error = float(np.sqrt((off**2).mean()))
        told.append(OutOfSample(math.exp(at), error, _off(bent, log_c[~low], log_loss[~low])))
    return tuple(told)


def which(found: Floored, shape: str | None, tested: bool) -> str:
    """The form that describes the curve; `shape` of its bend as the test found it."""
    errors, law = found.out_of_sample, found.law
    better = bool(errors) and sum(one.irreducible for one in errors) < sum(one.power_law for one in errors)
    if shape in ("concave", "ragged") and not (shape == "ragged" and better and law.identified):
        return NEITHER
    if shape is not None:
        return IRREDUCIBLE if better and law.identified and (law.floor.value or 0.0) > 0 else UNDECIDED
    return POWER_LAW if tested and not better else UNDECIDED


def _off(law: Irreducible, log_c: np.ndarray, log_loss: np.ndarray) -> float:
    return float(np.sqrt(((log_loss - np.log(law.at(log_c)[0])) ** 2).mean()))


def _band(drawn: Irreducible, at: np.ndarray, level: float) -> Band:
    low, high = np.nanquantile(drawn.at(at), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(tuple(np.exp(at).tolist()), tuple(low.tolist()), tuple(high.tolist()))


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) and abs(value) < 700 else None
