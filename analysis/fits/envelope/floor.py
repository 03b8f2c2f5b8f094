"""L(C) with an irreducible loss, E + beta C^alpha, through the same points of the envelope as the pure power law, and
which of the two describes the curve: what the test of its bend finds (curvature.py), and which one, fitted to the first
part of the compute, predicts the rest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from analysis.fits.envelope.intervals import percentiles
from analysis.fits.irreducible import EXPONENTS, NEEDED, Irreducible, fit_irreducible
from analysis.fits.powerlaw import fit_power_law
from arch.amounts import counted

CUTS = (0.5, 0.65, 0.8)  # of the range of log C, up to which a form is fitted to predict what follows
BAND = 25  # places of the band within the range
IRREDUCIBLE, POWER_LAW, NEITHER, UNDECIDED = "irreducible", "power law", "neither", "undecided"


def irreducible_law(log_c: np.ndarray, log_loss: np.ndarray, moved: np.ndarray | None, level: float) -> dict[str, Any]:
    """Of the points log_loss [g] at log_c [g], and of their replicates `moved` [r, g]; as plain data: E, coef and
    exponent of E + coef C^exponent, intervals by percentiles, and `out_of_sample`. The intervals fall short of their
    level, beyond the range most of all (docs/research/envelope.md), so there is no band there.

    Moving curves at random lowers their least, once in the study and again in each replicate; so replicates are put
    about the study's points less what noise took from them, both told by the mean replicate.
    """
    found: dict[str, Any] = {"identified": False, "reason": None, "E": None, "coef": None, "exponent": None}
    found |= {"interval": None, "band": None, "n_points": len(log_c), "out_of_sample": []}
    if len(log_c) < 2 * NEEDED:
        points = counted(len(log_c), "point of the range lies", "points of the range lie")
        return found | {"reason": f"{points} on a curve, {2 * NEEDED} are needed"}
    law = fit_irreducible(log_c, np.exp(log_loss))
    steep = float(-law.exponent[0])
    found |= {"out_of_sample": out_of_sample(log_c, log_loss), "off_line": _off(law, log_c, log_loss)}
    if steep >= EXPONENTS[-1] * 0.99:
        return found | {"reason": "the loss stops falling within the range: no exponent can be told"}
    found |= {
        "identified": True,
        "E": float(law.floor[0]),
        "coef": _exp(float(law.log_coef[0])),
        "exponent": float(law.exponent[0]),
        "centre": [math.exp(law.centre), float(law.floor[0] + law.above[0])],
        "above": float(law.above[0]),  # L - E at the centre
        "range": [math.exp(log_c.min()), math.exp(log_c.max())],
    }
    if moved is None or len(moved) == 0:
        return found
    drawn = fit_irreducible(log_c, np.exp(moved - 2 * (moved.mean(0) - log_loss)))
    found["interval"] = {
        "E": percentiles(drawn.floor, level),
        "exponent": percentiles(drawn.exponent, level),
        "coef": [_exp(one) for one in percentiles(drawn.log_coef, level) or (math.nan, math.nan)],
    }
    low, high = float(log_c.min()), float(log_c.max())
    found["band"] = _band(drawn, np.linspace(low, high, BAND), level)
    return found


def out_of_sample(log_c: np.ndarray, log_loss: np.ndarray) -> list[dict[str, float]]:
    """For each cut: C up to which both forms were fitted, and the root mean square error of log loss of each above."""
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
        told.append({"c": math.exp(at), "power_law": error, "irreducible": _off(bent, log_c[~low], log_loss[~low])})
    return told


def which(law: dict[str, Any], shape: str | None, tested: bool) -> str:
    """The form that describes the curve; `shape` of its bend as the test found it."""
    errors = law["out_of_sample"]
    better = bool(errors) and sum(one["irreducible"] for one in errors) < sum(one["power_law"] for one in errors)
    if shape in ("concave", "ragged") and not (shape == "ragged" and better and law["identified"]):
        return NEITHER
    if shape is not None:
        return IRREDUCIBLE if better and law["identified"] and law["E"] > 0 else UNDECIDED
    return POWER_LAW if tested and not better else UNDECIDED


def _off(law: Irreducible, log_c: np.ndarray, log_loss: np.ndarray) -> float:
    return float(np.sqrt(((log_loss - np.log(law.at(log_c)[0])) ** 2).mean()))


def _band(drawn: Irreducible, at: np.ndarray, level: float) -> dict[str, list[float]]:
    low, high = np.nanquantile(drawn.at(at), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {"c": np.exp(at).tolist(), "low": low.tolist(), "high": high.tolist()}


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) and abs(value) < 700 else None
