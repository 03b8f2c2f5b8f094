"""The laws of one architecture under one FLOP convention: L(C), N_opt(C), D_opt(C), and when not to believe them.

A law is plain data: numbers at full precision or, where it is not identified, nulls and the reason. N_opt and D_opt
come twice: from the crossings of neighbouring sizes (optimum.py), and from the points of the envelope, as the
scaling-law papers have it; `optimum` says which of them is the study's own, the other stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.envelope.crossings import Crossing, Missing, find_crossings
from analysis.fits.envelope.curvature import Curvature, find_curvature
from analysis.fits.envelope.diagnostics import diagnostics_of
from analysis.fits.envelope.extract import REASONS, UNCOVERED, Envelope, SizeCurve, extract
from analysis.fits.envelope.floor import irreducible_law, which
from analysis.fits.envelope.intervals import (
    MIN_SIZES,
    Lines,
    Replicates,
    bootstrap,
    owns_stretch,
    percentiles,
    settled,
)
from analysis.fits.envelope.optimum import optimum_laws
from analysis.fits.envelope.staircase import Steps, steps_of
from analysis.fits.noise import SeedNoise
from analysis.fits.powerlaw import fit_power_law
from analysis.fits.settings import FitSettings
from arch.amounts import counted, counted_of

RAGGED = 0.01  # of the loss: the steps of usual ladders stay below
TIMES_NOISE = 3.0
CURVED = "a pure power law does not describe this curve"
NO_SEEDS = "there are no replicate seeds to tell a bend from noise"
ENVELOPE = "points of the envelope, least squares"
ENVELOPE_ESTIMAND = (
    "the best of these sizes at each compute, whose steps make a too small by about 1 / k^2 for k sizes that own points"
)


def fit_arch(
    curves: Sequence[SizeCurve],
    stretch: tuple[float, float],
    noise: SeedNoise | None,
    settings: FitSettings,
    seed: Sequence[int],
) -> dict[str, Any]:
    """Laws, envelope, crossings and diagnostics of `curves` (sorted by size) over C in `stretch` [FLOP]. settings: the
    points of the grid, how N_opt is found, whether points that say nothing about it are left out of its lines, and the
    replicates and level of intervals."""
    log_c = np.linspace(math.log(stretch[0]), math.log(stretch[1]), settings.grid_points)
    full = extract(curves, log_c)
    envelope = full if settings.censor else extract(curves, log_c, censor=False)
    crossings, missing = find_crossings(curves, (float(log_c[0]), float(log_c[-1])))
    optimum, line = optimum_laws(curves, crossings, missing, noise, settings.level)
    steps = steps_of(curves, envelope, crossings, line)
    none = Steps(np.zeros_like(log_c), np.ones(len(log_c), dtype=bool))
    taken = steps if steps is not None and settings.optimum == "crossings" else none  # the papers take nothing off
    replicates = None
    if noise is not None:
        replicates = bootstrap(
            curves, log_c, noise, settings.n_replicates, seed, taken.excess, taken.inside, settings.censor
        )
    points = _envelope_laws(curves, envelope, replicates, settings)
    first, second = (optimum, points) if settings.optimum == "crossings" else (points, optimum)
    laws = {"loss": _loss_law(envelope, taken, replicates, settings.level) | {"curved": False}, **first}
    if laws["loss"]["identified"]:
        curvature = _curvature(envelope, steps, replicates, laws["loss"]["off_line"], noise)
        laws["loss"] |= {"curvature": curvature, "curved": curvature["found"]}  # curved: what every reader asks
        if curvature["found"]:
            laws["loss"] |= {"interval": None, "band": None}
    laws["irreducible"] = _irreducible_law(envelope, taken, replicates, settings.level, laws["loss"].get("curvature"))
    pairs: list[Crossing | Missing] = [*crossings, *missing]
    return {
        "range": [float(stretch[0]), float(stretch[1])],
        "laws": laws,
        "alternative": second,
        "envelope": _points(curves, full),
        "crossings": [_described(curves, one) for one in sorted(pairs, key=lambda one: one.small)],
        "diagnostics": diagnostics_of(curves, full, laws, crossings, missing),
    }


def owner_at_ends(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> tuple[int, int]:
    """Which curve owns each end of `stretch`: the ends of the same envelope under another convention follow from it."""
    envelope = extract(curves, np.log(np.array(stretch)))
    return int(envelope.owner[0, 0]), int(envelope.owner[0, 1])


def _points(curves: Sequence[SizeCurve], envelope: Envelope) -> dict[str, list[Any]]:
    covered = envelope.code[0] != UNCOVERED
    c, owner = np.exp(envelope.log_c), envelope.owner[0]
    per_token = np.array([curve.flops_per_token for curve in curves])[owner]
    return {
        "c": c[covered].tolist(),
        "loss": np.exp(envelope.log_loss[0])[covered].tolist(),
        "n_params": np.array([float(curve.n_params) for curve in curves])[owner][covered].tolist(),
        "n_tokens": (c / per_token)[covered].tolist(),
        "size": [curves[rank].size for rank in owner[covered]],
        "censored": [REASONS[k] for k in envelope.code[0][covered]],
    }


def _described(curves: Sequence[SizeCurve], one: Crossing | Missing) -> dict[str, Any]:
    """A pair of neighbouring sizes: C in FLOP at which the larger one takes over, the sizes' and their tokens'
    geometric means there, and by how much of log C that lies beyond what is compared; or why there is none."""
    small, large = curves[one.small], curves[one.small + 1]
    found: dict[str, Any] = {"sizes": [small.size, large.size], "c": None, "n_params": None, "n_tokens": None}
    found["n_params"] = math.sqrt(float(small.n_params) * large.n_params)
    if isinstance(one, Missing):
        return found | {"beyond": None, "reason": one.reason}
    c = math.exp(one.at)
    tokens = c / math.sqrt(small.flops_per_token * large.flops_per_token)
    return found | {"c": c, "n_tokens": tokens, "beyond": one.beyond, "reason": None}


def _loss_law(envelope: Envelope, taken: Steps, replicates: Replicates | None, level: float) -> dict[str, Any]:
    """L(C) through the settled points of the envelope, less its steps. `steps`: their mean, as a share of the loss;
    n_outside: settled points left out because no size near the optimal one has a curve there; off_line: root mean
    square distance of the points from the line, in log loss; steep_early: the points fall faster early on."""
    after = settled(envelope)[0]
    used = after & taken.inside
    few = (
        f"{counted(used.sum(), 'point of the range lies', 'points of the range lie')} on a curve, after its "
        f"warm-up; a line needs two"
    )
    c, loss = np.exp(envelope.log_c[used]), np.exp((envelope.log_loss[0] - taken.excess)[used])
    law = _law(c, loss, replicates.loss if replicates else None, level, few if used.sum() < 2 else None)
    if law["identified"]:
        law["level_bias"] = replicates.level_bias if replicates else None
        law["steps"] = float(np.expm1(taken.excess[used].mean()))
        line = math.log(law["centre"][1]) + law["exponent"] * (np.log(c) - math.log(law["centre"][0]))
        law["off_line"] = float(np.sqrt(((np.log(loss) - line) ** 2).mean()))
        law["steep_early"] = bool(used.sum() > 2 and np.polyfit(np.log(c), np.log(loss), 2)[0] > 0)
    return law | {"n_outside": int((after & ~taken.inside).sum())}


def _irreducible_law(
    envelope: Envelope,
    taken: Steps,
    replicates: Replicates | None,
    level: float,
    curvature: dict[str, Any] | None,
) -> dict[str, Any]:
    """E + beta C^alpha through the points of L(C); `describes`: the form that the curve has."""
    used = settled(envelope)[0] & taken.inside
    moved = None
    if replicates is not None and replicates.log_loss is not None:
        moved = replicates.log_loss[:, used] - taken.excess[used]
        moved = moved[np.isfinite(moved).all(1)]
    law = irreducible_law(envelope.log_c[used], (envelope.log_loss[0] - taken.excess)[used], moved, level)
    told = curvature or {"shape": None, "tested": False}
    return law | {"describes": which(law, told["shape"], told["tested"])}


def _curvature(
    envelope: Envelope, steps: Steps | None, replicates: Replicates | None, off_line: float, noise: SeedNoise | None
) -> dict[str, Any]:
    """The test's outcome as plain data; where there can be no test, or it finds no bend, `off_line` alone tells a line
    that misses its points."""
    ragged = off_line > max(RAGGED, TIMES_NOISE * (noise.s if noise else 0.0))
    if replicates is None or replicates.log_loss is None or noise is None or steps is None:
        why = "N_opt is not identified, so the envelope's steps cannot be told from a bend" if noise else NO_SEEDS
        return {"tested": False, "found": ragged, "shape": "ragged" if ragged else None, "reason": why}
    used = settled(envelope)[0] & steps.inside
    told: Curvature | None = find_curvature(
        envelope.log_c[used], envelope.log_loss[0, used], steps.excess[used], replicates.log_loss[:, used]
    )
    if told is None:
        return {"tested": False, "found": False, "shape": None, "reason": "fewer than four points"}
    shape = told.shape or ("ragged" if ragged else None)
    return {
        "tested": True,
        "found": shape is not None,
        "shape": shape,
        "reason": CURVED if shape else None,
        "quadratic": told.quadratic,
        "steps": told.steps,
        "p_value": told.p_value,
        "power_half": told.power_half,
        "visible": told.visible,
    }


def _envelope_laws(
    curves: Sequence[SizeCurve], envelope: Envelope, replicates: Replicates | None, settings: FitSettings
) -> dict[str, dict[str, Any]]:
    """N_opt and D_opt through the uncensored points of the envelope."""
    free, owner = envelope.code[0] == 0, envelope.owner[0]
    c = np.exp(envelope.log_c)
    reason = _why_not(curves, envelope)
    values = {
        "n_opt": np.array([float(curve.n_params) for curve in curves])[owner],
        "d_opt": c / np.array([curve.flops_per_token for curve in curves])[owner],
    }
    named = {"method": ENVELOPE, "estimand": ENVELOPE_ESTIMAND}
    return {
        name: _law(c[free], y[free], getattr(replicates, name) if replicates else None, settings.level, reason) | named
        for name, y in values.items()
    }


def _why_not(curves: Sequence[SizeCurve], envelope: Envelope) -> str | None:
    """Why the envelope's points give no N_opt and D_opt; None if they do."""
    code = envelope.code[0]
    sizes = [curve.size for curve, owns in zip(curves, owns_stretch(envelope, len(curves))[0], strict=True) if owns]
    if len(sizes) >= MIN_SIZES:
        return None
    count = counted(len(sizes), "interior size owns", "interior sizes own")
    named = f" ({', '.join(sizes)})" if sizes else ""
    lost = {REASONS[k]: int((code == k).sum()) for k in range(1, len(REASONS)) if (code == k).any()}
    detail = "; ".join(f"{counted_of(n, len(code), 'point')} {why}" for why, n in lost.items())
    return f"{count} an uncensored stretch{named}, {MIN_SIZES} are needed" + (f": {detail}" if detail else "")


def _law(x: np.ndarray, y: np.ndarray, lines: Lines | None, level: float, reason: str | None) -> dict[str, Any]:
    """A least-squares law as plain data, with percentile intervals of coefficient, exponent and the law (`band`)."""
    empty = {"exponent": None, "coef": None, "r2": None, "n_points": len(x), "interval": None, "band": None}
    if reason is not None:
        return {"identified": False, "reason": reason, **empty}
    law = fit_power_law(x, y)
    result: dict[str, Any] = {
        "identified": True,
        "reason": None,
        "exponent": law.exponent,
        "coef": law.coef,
        "r2": law.r2 if math.isfinite(law.r2) else None,
        "n_points": law.n_points,
        "centre": [law.centre_x, law.centre_y],  # y = centre[1] (x / centre[0])^exponent: the well-conditioned form
        "range": [float(x.min()), float(x.max())],
        "interval": None,
        "band": None,
    }
    if lines is None:
        return result
    slope, intercept, centre = lines
    exponent = percentiles(slope, level)
    if exponent is not None:
        with np.errstate(over="ignore"):
            coef = percentiles(np.exp(intercept - slope * centre), level)
        at = np.linspace(math.log(x.min()), math.log(x.max()), 25)
        drawn = np.exp(intercept + slope * (at[:, None] - centre))  # [25, r]
        low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1)
        result["interval"] = {"exponent": exponent, "coef": coef}
        result["band"] = {"c": np.exp(at).tolist(), "low": low.tolist(), "high": high.tolist()}
    result["replicates"] = len(slope)
    result["replicates_not_identified"] = int((~np.isfinite(slope)).sum())
    return result
