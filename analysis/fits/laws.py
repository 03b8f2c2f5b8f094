"""The laws of one architecture under one FLOP convention: L(C), N_opt(C), D_opt(C), and when not to believe them.

A law is plain data: numbers at full precision or, where it is not identified, nulls and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.envelope import REASONS, UNCOVERED, WARMUP, Envelope, SizeCurve, extract
from analysis.fits.intervals import (
    MIN_SIZES,
    Lines,
    Replicates,
    SeedNoise,
    bootstrap,
    owns_stretch,
    percentiles,
    settled,
)
from analysis.fits.powerlaw import fit_power_law
from analysis.fits.smooth import read_at

FLAT = 0.005  # sizes within this fraction of the minimal loss count as equally good


def fit_arch(
    curves: Sequence[SizeCurve],
    stretch: tuple[float, float],
    grid_points: int,
    noise: SeedNoise | None,
    n_replicates: int,
    level: float,
    seed: Sequence[int],
) -> dict[str, Any]:
    """Laws, envelope and diagnostics of `curves` (sorted by size) over C in `stretch` [FLOP]."""
    log_c = np.linspace(math.log(stretch[0]), math.log(stretch[1]), grid_points)
    envelope = extract(curves, log_c)
    replicates = bootstrap(curves, log_c, noise, n_replicates, seed) if noise else None
    c, loss, owner, code = np.exp(log_c), np.exp(envelope.log_loss[0]), envelope.owner[0], envelope.code[0]
    n_params = np.array([float(curve.n_params) for curve in curves])[owner]
    n_tokens = c / np.array([curve.flops_per_token for curve in curves])[owner]
    covered, after, free = code != UNCOVERED, settled(envelope)[0], code == 0

    lines = replicates or Replicates(None, None, None)
    reason = _why_not(curves, envelope)
    too_few = f"{after.sum()} points of the range lie on a curve, after its warm-up; a line needs two"
    laws = {
        "loss": _law(c[after], loss[after], lines.loss, level, too_few if after.sum() < 2 else None),
        "n_opt": _law(c[free], n_params[free], lines.n_opt, level, reason),
        "d_opt": _law(c[free], n_tokens[free], lines.d_opt, level, reason),
    }
    if laws["loss"]["identified"]:
        laws["loss"]["level_bias"] = lines.level_bias
    points = {
        "c": c[covered].tolist(),
        "loss": loss[covered].tolist(),
        "n_params": n_params[covered].tolist(),
        "n_tokens": n_tokens[covered].tolist(),
        "size": [curves[rank].size for rank in owner[covered]],
        "censored": [REASONS[k] for k in code[covered]],
    }
    return {
        "range": [float(stretch[0]), float(stretch[1])],
        "laws": laws,
        "envelope": points,
        "diagnostics": _diagnostics(curves, envelope, laws, replicates),
    }


def owner_at_ends(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> tuple[int, int]:
    """Which curve owns each end of `stretch`: the ends of the same envelope under another convention follow from it."""
    envelope = extract(curves, np.log(np.array(stretch)))
    return int(envelope.owner[0, 0]), int(envelope.owner[0, 1])


def _why_not(curves: Sequence[SizeCurve], envelope: Envelope) -> str | None:
    """Why N_opt and D_opt are not identified; None if they are."""
    code = envelope.code[0]
    sizes = [curve.size for curve, owns in zip(curves, owns_stretch(envelope, len(curves))[0], strict=True) if owns]
    if len(sizes) >= MIN_SIZES:
        return None
    count = f"{len(sizes)} interior size{'' if len(sizes) == 1 else 's'} own{'s' if len(sizes) == 1 else ''}"
    named = f" ({', '.join(sizes)})" if sizes else ""
    lost = {REASONS[k]: int((code == k).sum()) for k in range(1, len(REASONS)) if (code == k).any()}
    detail = "; ".join(f"{n} of {len(code)} points {why}" for why, n in lost.items())
    return f"{count} an uncensored stretch{named}, {MIN_SIZES} are needed" + (f": {detail}" if detail else "")


def _law(
    x: np.ndarray,
    y: np.ndarray,
    lines: Lines | None,
    level: float,
    reason: str | None,
) -> dict[str, Any]:
    """A law as plain data, with percentile intervals of coefficient, exponent and of the law itself (`band`)."""
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


def _diagnostics(
    curves: Sequence[SizeCurve], envelope: Envelope, laws: dict[str, Any], replicates: Replicates | None
) -> dict[str, Any]:
    code, owner, log_c = envelope.code[0], envelope.owner[0], envelope.log_c
    covered = code != UNCOVERED
    owners = [
        {
            "size": curve.size,
            "n_params": curve.n_params,
            "n_points": int((covered & (owner == rank)).sum()),
            "n_uncensored": int(((code == 0) & (owner == rank)).sum()),
        }
        for rank, curve in enumerate(curves)
    ]
    result: dict[str, Any] = {
        "n_points": int(covered.sum()),
        "n_uncovered": int((~covered).sum()),
        "n_in_warmup": int((code == WARMUP).sum()),
        "fraction_censored": float((code[covered] != 0).mean()) if covered.any() else None,
        "owners": owners,
        "decades": float(np.ptp(log_c[covered]) / math.log(10)) if covered.any() else 0.0,
        "flatness": _flatness(curves, envelope),
        "a_plus_b": None,
        "cost_identity": None,
        "compute_identity": None,
    }
    if covered.any():
        loss = envelope.log_loss[0, covered]
        result["loss_first_last"] = [float(np.exp(loss[0])), float(np.exp(loss[-1]))]
        result["falling_decades"] = _falling_decades(log_c[covered], loss)
    n_opt, d_opt = laws["n_opt"], laws["d_opt"]
    if n_opt["identified"]:
        # N and D lie on the same points, so a p + b = 1 where fpt ~ N^p along the sizes used; r is 1 for C = 6 N D.
        used = [curve for curve, own in zip(curves, owners, strict=True) if own["n_uncensored"]]
        power = fit_power_law(
            np.array([float(c.n_params) for c in used]), np.array([c.flops_per_token for c in used])
        ).exponent
        result["a_plus_b"] = n_opt["exponent"] + d_opt["exponent"]
        result["cost_identity"] = n_opt["exponent"] * power + d_opt["exponent"] - 1
        ends = n_opt["range"]
        result["compute_identity"] = [
            6 * _predict(n_opt, end) * _predict(d_opt, end) / end  # r(C) = 6 N_opt D_opt / C
            for end in ends
        ]
    return result


def _predict(law: dict[str, Any], c: float) -> float:
    return float(law["centre"][1] * (c / law["centre"][0]) ** law["exponent"])


def _falling_decades(log_c: np.ndarray, log_loss: np.ndarray) -> float:
    """Decades of compute from the first point of the envelope to its lowest."""
    return float((log_c[log_loss.argmin()] - log_c[0]) / math.log(10))


def _flatness(curves: Sequence[SizeCurve], envelope: Envelope) -> float | None:
    """Median over the uncensored points of N_max / N_min among the sizes within 0.5% of the minimal loss."""
    free = envelope.code[0] == 0
    if not free.any():
        return None
    table = np.stack([read_at(curve.log_c, curve.log_loss, envelope.log_c[free]) for curve in curves])
    near = table <= envelope.log_loss[0, free] + math.log1p(FLAT)
    n_params = np.array([float(curve.n_params) for curve in curves])[:, None]
    widest = np.where(near, n_params, 0).max(0) / np.where(near, n_params, np.inf).min(0)
    return float(np.median(widest))
