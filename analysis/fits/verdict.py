"""What a study says: which architecture has the lowest loss at the largest compute that all of them reached, whether
that is more than seed noise, and what the laws tell there and at the end of their own ranges.

Losses are read off the envelopes, not off the laws: they hold where a curve is no power law. The noise of a point is
that between seeds, s / sqrt(seeds) in log loss, of architectures that are not told apart in it (module pooling). The
best is picked after looking, so differences to it have the intervals of Tukey and Kramer, which hold for all pairs of
architectures at once (Hochberg and Tamhane 1987, chapter 3); of two noises, those of Games and Howell (1976).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.envelope.diagnostics import NEAR, interval_of_law, predict
from analysis.fits.envelope.extract import REASONS, SizeCurve, extract
from analysis.fits.noise import SeedNoise
from analysis.fits.smooth import read_at
from arch.amounts import flop

PARTS = ("n_opt", "d_opt", "loss")
WARMUP = "inside warm-up"
MISSED = "the law misses its points"


def judge_architectures(
    curves: Mapping[str, Sequence[SizeCurve]],
    fitted: Mapping[str, Mapping[str, Any]],
    noise: Mapping[str, SeedNoise | None],
    level: float,
) -> dict[str, Any]:
    """The verdict on the architectures that were fitted, as plain data: `c`, the largest compute [FLOP] that all of
    them reached after warm-up, or `reason` why there is none; `best`; `archs`, lowest loss first, with loss,
    difference (of log loss, to the best) and their intervals, `significant` (the interval excludes 0; None
    without replicate seeds), and `predictions`.

    curves: of each architecture that was fitted, smallest size first; fitted: its laws (fit_arch); noise: between its
    seeds.
    """
    result: dict[str, Any] = {"c": None, "reason": None, "best": None, "level": level, "archs": {}}
    if not curves:
        return result | {"reason": "no architecture was fitted"}
    spans = {arch: _reached(fitted[arch]["envelope"]) for arch in curves}
    if missing := [arch for arch, span in spans.items() if span is None]:
        return result | {"reason": f"no curve of {', '.join(missing)} lies in its range of compute after warm-up"}
    low, high = (max(s[0] for s in spans.values() if s), min(s[1] for s in spans.values() if s))
    if low > high:
        return result | {
            "reason": f"no compute was reached by all: some end at {flop(high)} FLOP, some begin at {flop(low)}"
        }
    found = {arch: _loss_at(sizes, high, noise[arch], level) for arch, sizes in curves.items()}
    order = sorted(found, key=lambda arch: found[arch]["loss"])
    for arch in order:
        found[arch] |= _against(found[arch], found[order[0]], noise[arch], noise[order[0]], level, len(order))
        found[arch]["predictions"] = _predictions(fitted[arch], high)
    return result | {"c": high, "best": order[0], "archs": {arch: found[arch] for arch in order}}


def _reached(points: Mapping[str, Any]) -> tuple[float, float] | None:
    """The first and last compute of an envelope's points that lie after warm-up."""
    c = [at for at, why in zip(points["c"], points["censored"], strict=True) if why != WARMUP]
    return (min(c), max(c)) if c else None


def _loss_at(curves: Sequence[SizeCurve], c: float, noise: SeedNoise | None, level: float) -> dict[str, Any]:
    """The lowest loss at C and the size that has it; `censored`: why another size may be better there; n_rivals: of how
    many other sizes that were trained as far."""
    envelope = extract(curves, np.array([math.log(c)]))
    curve, log_loss = curves[int(envelope.owner[0, 0])], float(envelope.log_loss[0, 0])
    half = None
    if noise is not None:
        half = float(stats.t.ppf((1 + level) / 2, noise.df)) * noise.s / math.sqrt(curve.n_seeds)
    return {
        "loss": math.exp(log_loss),
        "interval": None if half is None else [math.exp(log_loss - half), math.exp(log_loss + half)],
        "size": curve.size,
        "n_params": curve.n_params,
        "n_tokens": c / curve.flops_per_token,
        "n_seeds": curve.n_seeds,
        "censored": REASONS[int(envelope.code[0, 0])],
        "n_sizes": len(curves),
        "n_rivals": sum(
            one is not curve and bool(np.isfinite(read_at(one.log_c, one.log_loss, np.array([math.log(c)]))[0]))
            for one in curves
        ),
    }


def _against(
    one: Mapping[str, Any],
    best: Mapping[str, Any],
    noise: SeedNoise | None,
    of_best: SeedNoise | None,
    level: float,
    n_archs: int,
) -> dict[str, Any]:
    """`difference` of log loss, its interval over all pairs of `n_archs`, and whether the two are told apart."""
    difference = math.log(one["loss"] / best["loss"])
    if noise is None or of_best is None or one is best:
        return {"difference": difference, "difference_interval": None, "significant": None}
    own, other = noise.s**2 / one["n_seeds"], of_best.s**2 / best["n_seeds"]
    df = noise.df
    if noise != of_best:  # two noises, each known by itself: Welch's degrees of freedom
        df = (own + other) ** 2 / (own**2 / noise.df + other**2 / of_best.df) if own + other else noise.df
    half = _times(level, n_archs, df) * math.sqrt(own + other)
    interval = [difference - half, difference + half]
    return {"difference": difference, "difference_interval": interval, "significant": interval[0] > 0}


@cache
def _times(level: float, n_archs: int, df: float) -> float:
    """Standard errors to either side of a difference, so that all pairs' intervals hold at once."""
    return float(stats.studentized_range.ppf(level, n_archs, df)) / math.sqrt(2)


def _predictions(one: Mapping[str, Any], c: float) -> list[dict[str, Any]]:
    """Of N_opt, D_opt and loss at C and, where that is another compute, at the end of the range of N_opt (of the loss
    where N_opt is not identified)."""
    laws = one["laws"]
    known = laws["n_opt"] if laws["n_opt"]["identified"] else laws["loss"]
    places = [c]
    if known["identified"] and not 1 / NEAR < known["range"][1] / c < NEAR:
        places.append(known["range"][1])
    return [{"c": at, **{part: _predict(laws[part], part, at) for part in PARTS}} for at in places]


def _predict(law: Mapping[str, Any], part: str, c: float) -> dict[str, Any]:
    """value, interval and reason (why one of them is missing); beyond: how many times C lies outside the law's range,
    1 inside. A law of the loss that misses its own points by more than noise gives no value: it would pass for one."""
    if not law["identified"]:
        return {"value": None, "interval": None, "beyond": None, "reason": law["reason"]}
    if part == "loss" and law["curved"]:
        missed = f"{MISSED} by {math.expm1(law['off_line']):.1%}"
        return {"value": None, "interval": None, "beyond": None, "reason": missed}
    outside = max(law["range"][0] / c, c / law["range"][1])
    beyond = outside if outside > NEAR else 1.0
    told = {"value": predict(dict(law), c), "beyond": beyond, "reason": None}
    if law["interval"] is None:
        return told | {"interval": None, "reason": "no interval"}
    found = interval_of_law(dict(law), c)
    if found is None:
        return told | {"interval": None, "reason": "outside of the range" if beyond > 1 else "no interval"}
    return told | {"interval": list(found)}
