"""The laws of one architecture under one FLOP convention: L(C), N_opt(C), D_opt(C), and when not to believe them.

N_opt and D_opt come twice: from the crossings of neighbouring sizes (optimum.py), and from the points of the envelope,
as the scaling-law papers have it; `optimum` says which of them is the study's own, the other stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.fits.envelope.crossings import Crossing, Missing, find_crossings
from analysis.fits.envelope.curvature import find_curvature
from analysis.fits.envelope.diagnostics import diagnostics_of
from analysis.fits.envelope.extract import REASONS, UNCOVERED, Envelope, SizeCurve, extract, near_as_one
from analysis.fits.envelope.floor import Floored, irreducible_law, which
from analysis.fits.envelope.hull import hulls
from analysis.fits.envelope.intervals import (
    MIN_SIZES,
    Lines,
    Replicates,
    bootstrap,
    draw_shifts,
    owns_stretch,
    percentiles,
    settled,
)
from analysis.fits.envelope.optimum import optimum_laws
from analysis.fits.envelope.staircase import Steps, steps_of
from analysis.fits.fit import (
    D_OPT,
    L_OPT,
    N_OPT,
    Band,
    Curvature,
    EnvelopePart,
    EnvelopePoints,
    Estimate,
    Law,
    LossLine,
    Pair,
)
from analysis.fits.noise import SeedNoise
from analysis.fits.powerlaw import fit_lines, fit_power_law
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
HULL = "vertices of the convex hull of log loss over log compute, least squares"
HULL_ESTIMAND = "the runs that no straight line of two others in log loss over log compute lies below"


def fit_arch(
    curves: Sequence[SizeCurve],
    stretch: tuple[float, float],
    noise: SeedNoise | None,
    settings: FitSettings,
    seed: Sequence[int],
) -> tuple[tuple[Law, ...], EnvelopePart]:
    """N_opt, D_opt and L(C) of `curves` (sorted by size) over C in `stretch` [FLOP], and the envelope, its crossings
    and diagnostics. settings: the points of the grid, which sizes count as one, how N_opt is found, whether points that
    say nothing about it are left out of its lines, and the replicates and level of intervals."""
    every, curves = curves, near_as_one(curves, settings.near_sizes)
    log_c = np.linspace(math.log(stretch[0]), math.log(stretch[1]), settings.grid_points)
    full = extract(curves, log_c)
    envelope = full if settings.censor else extract(curves, log_c, censor=False)
    crossings, missing = find_crossings(curves, (float(log_c[0]), float(log_c[-1])))
    optimum = optimum_laws(curves, crossings, missing, noise, settings.level)
    steps = steps_of(curves, envelope, crossings, optimum[0].line)
    none = Steps(np.zeros_like(log_c), np.ones(len(log_c), dtype=bool))
    taken = steps if steps is not None and settings.optimum == "crossings" else none  # the papers take nothing off
    replicates = None
    if noise is not None:
        replicates = bootstrap(
            curves, log_c, noise, settings.n_replicates, seed, taken.excess, taken.inside, settings.censor
        )
    points = _envelope_laws(curves, envelope, replicates, settings)
    if settings.optimum == "hull":
        points = _hull_laws(every, stretch, noise, settings, seed)
    (n_opt, d_opt), second = (optimum, points) if settings.optimum == "crossings" else (points, optimum)
    loss = _loss_law(envelope, taken, replicates, settings.level)
    curvature = None
    if loss.identified and loss.about_loss is not None:
        curvature = _curvature(envelope, steps, replicates, loss.about_loss.off_line or 0.0, noise)
        loss = replace(loss, about_loss=replace(loss.about_loss, curvature=curvature))
        if curvature.found:
            loss = replace(
                loss,
                exponent=Estimate(loss.exponent.value, reason=CURVED),
                coefficient=Estimate(loss.coefficient.value, reason=CURVED),
                band=None,
            )
    bent = _irreducible_law(envelope, taken, replicates, settings.level)
    pairs: list[Crossing | Missing] = [*crossings, *missing]
    part = EnvelopePart(
        points=_points(curves, full),
        pairs=tuple(_described(curves, one) for one in sorted(pairs, key=lambda one: one.small)),
        alternative=second,
        irreducible=bent.law,
        describes=which(bent, *((curvature.shape, curvature.tested) if curvature else (None, False))),
        out_of_sample=bent.out_of_sample,
        off_irreducible=bent.off_line,
        **diagnostics_of(curves, full, loss, n_opt, d_opt, crossings, missing),
    )
    return (n_opt, d_opt, loss), part


def owner_at_ends(curves: Sequence[SizeCurve], stretch: tuple[float, float]) -> tuple[int, int]:
    """Which curve owns each end of `stretch`: the ends of the same envelope under another convention follow from it."""
    envelope = extract(curves, np.log(np.array(stretch)))
    return int(envelope.owner[0, 0]), int(envelope.owner[0, 1])


def _points(curves: Sequence[SizeCurve], envelope: Envelope) -> EnvelopePoints:
    covered = envelope.code[0] != UNCOVERED
    c, owner = np.exp(envelope.log_c), envelope.owner[0]
    per_token = np.array([curve.flops_per_token for curve in curves])[owner]
    return EnvelopePoints(
        c=tuple(c[covered].tolist()),
        loss=tuple(np.exp(envelope.log_loss[0])[covered].tolist()),
        n_params=tuple(np.array([float(curve.n_params) for curve in curves])[owner][covered].tolist()),
        n_tokens=tuple((c / per_token)[covered].tolist()),
        size=tuple(curves[rank].size for rank in owner[covered]),
        censored=tuple(REASONS[k] for k in envelope.code[0][covered]),
    )


def _described(curves: Sequence[SizeCurve], one: Crossing | Missing) -> Pair:
    small, large = curves[one.small], curves[one.small + 1]
    named, n_params = (small.size, large.size), math.sqrt(float(small.n_params) * large.n_params)
    if isinstance(one, Missing):
        return Pair(named, n_params, reason=one.reason)
    c = math.exp(one.at)
    tokens = c / math.sqrt(small.flops_per_token * large.flops_per_token)
    return Pair(named, n_params, c, tokens, one.beyond)


def _loss_law(envelope: Envelope, taken: Steps, replicates: Replicates | None, level: float) -> Law:
    """L(C) through the settled points of the envelope, less its steps."""
    after = settled(envelope)[0]
    used = after & taken.inside
    few = (
        f"{counted(used.sum(), 'point of the range lies', 'points of the range lie')} on a curve, after its "
        f"warm-up; a line needs two"
    )
    c, loss = np.exp(envelope.log_c[used]), np.exp((envelope.log_loss[0] - taken.excess)[used])
    law = _law(L_OPT, c, loss, replicates.loss if replicates else None, level, few if used.sum() < 2 else "")
    about = LossLine(n_outside=int((after & ~taken.inside).sum()))
    if law.centre is not None and law.exponent.value is not None:
        line = math.log(law.centre[1]) + law.exponent.value * (np.log(c) - math.log(law.centre[0]))
        about = replace(
            about,
            level_bias=replicates.level_bias if replicates else None,
            steps=float(np.expm1(taken.excess[used].mean())),
            off_line=float(np.sqrt(((np.log(loss) - line) ** 2).mean())),
            steep_early=bool(used.sum() > 2 and np.polyfit(np.log(c), np.log(loss), 2)[0] > 0),
        )
    return replace(law, about_loss=about)


def _irreducible_law(envelope: Envelope, taken: Steps, replicates: Replicates | None, level: float) -> Floored:
    """E + beta C^alpha through the points of L(C)."""
    used = settled(envelope)[0] & taken.inside
    moved = None
    if replicates is not None and replicates.log_loss is not None:
        moved = replicates.log_loss[:, used] - taken.excess[used]
        moved = moved[np.isfinite(moved).all(1)]
    return irreducible_law(envelope.log_c[used], (envelope.log_loss[0] - taken.excess)[used], moved, level)


def _curvature(
    envelope: Envelope, steps: Steps | None, replicates: Replicates | None, off_line: float, noise: SeedNoise | None
) -> Curvature:
    """The test's outcome; where there can be no test, or it finds no bend, `off_line` alone tells a line that misses
    its points."""
    ragged = "ragged" if off_line > max(RAGGED, TIMES_NOISE * (noise.s if noise else 0.0)) else None
    if replicates is None or replicates.log_loss is None or noise is None or steps is None:
        why = "N_opt is not identified, so the envelope's steps cannot be told from a bend" if noise else NO_SEEDS
        return Curvature(False, ragged, why)
    used = settled(envelope)[0] & steps.inside
    found = find_curvature(
        envelope.log_c[used], envelope.log_loss[0, used], steps.excess[used], replicates.log_loss[:, used]
    )
    if found is None:
        return Curvature(False, None, "fewer than four points")
    shape = found.shape or ragged
    return replace(found, shape=shape, reason=CURVED if shape else "")


def _envelope_laws(
    curves: Sequence[SizeCurve], envelope: Envelope, replicates: Replicates | None, settings: FitSettings
) -> tuple[Law, Law]:
    """N_opt and D_opt through the uncensored points of the envelope."""
    free, owner = envelope.code[0] == 0, envelope.owner[0]
    c = np.exp(envelope.log_c)
    reason = _why_not(curves, envelope)
    sizes = np.array([float(curve.n_params) for curve in curves])[owner]
    tokens = c / np.array([curve.flops_per_token for curve in curves])[owner]
    lines = (replicates.n_opt, replicates.d_opt) if replicates else (None, None)
    n_opt, d_opt = (
        replace(_law(name, c[free], y[free], line, settings.level, reason), method=ENVELOPE, estimand=ENVELOPE_ESTIMAND)
        for name, y, line in ((N_OPT, sizes, lines[0]), (D_OPT, tokens, lines[1]))
    )
    return n_opt, d_opt


def _hull_laws(
    curves: Sequence[SizeCurve],
    stretch: tuple[float, float],
    noise: SeedNoise | None,
    settings: FitSettings,
    seed: Sequence[int],
) -> tuple[Law, Law]:
    """N_opt and D_opt through the runs on the convex hull, those of near sizes each by itself."""
    drawn = np.zeros((0, len(curves))) if noise is None else draw_shifts(curves, noise, settings.n_replicates, seed)[0]
    x, rank, is_vertex = hulls(curves, stretch, np.concatenate([np.zeros((1, len(curves))), drawn]))
    log_n, log_cost = (
        np.log([getattr(curve, name) for curve in curves])[rank] for name in ("n_params", "flops_per_token")
    )
    vertices, n_sizes = is_vertex[0], len(set(rank[is_vertex[0]].tolist()))
    few = f"{counted(n_sizes, 'size lies', 'sizes lie')} on the hull, {MIN_SIZES} are needed"
    n_opt, d_opt = (
        replace(
            _law(
                name,
                np.exp(x[vertices]),
                np.exp(y[vertices]),
                None if noise is None else fit_lines(x, np.broadcast_to(y, is_vertex.shape)[1:], is_vertex[1:]),
                settings.level,
                few if n_sizes < MIN_SIZES else "",
            ),
            method=HULL,
            estimand=HULL_ESTIMAND,
        )
        for name, y in ((N_OPT, log_n), (D_OPT, x - log_cost))
    )
    return n_opt, d_opt


def _why_not(curves: Sequence[SizeCurve], envelope: Envelope) -> str:
    """Why the envelope's points give no N_opt and D_opt; "" if they do."""
    code = envelope.code[0]
    sizes = [curve.size for curve, owns in zip(curves, owns_stretch(envelope, len(curves))[0], strict=True) if owns]
    if len(sizes) >= MIN_SIZES:
        return ""
    count = counted(len(sizes), "interior size owns", "interior sizes own")
    named = f" ({', '.join(sizes)})" if sizes else ""
    lost = {REASONS[k]: int((code == k).sum()) for k in range(1, len(REASONS)) if (code == k).any()}
    detail = "; ".join(f"{counted_of(n, len(code), 'point')} {why}" for why, n in lost.items())
    return f"{count} an uncensored stretch{named}, {MIN_SIZES} are needed" + (f": {detail}" if detail else "")


def _law(quantity: str, x: np.ndarray, y: np.ndarray, lines: Lines | None, level: float, reason: str) -> Law:
    """By least squares, with percentile intervals of coefficient, exponent and the law (`band`)."""
    empty = Law(quantity, reason=reason, n_points=len(x))
    if reason:
        return empty
    found = fit_power_law(x, y)
    law = replace(
        empty,
        exponent=Estimate(found.exponent),
        coefficient=Estimate(found.coef),
        r2=found.r2 if math.isfinite(found.r2) else None,
        n_points=found.n_points,
        centre=(found.centre_x, found.centre_y),
        range=(float(x.min()), float(x.max())),
    )
    if lines is None:
        return law
    slope, intercept, centre = lines
    law = replace(law, replicates=len(slope), replicates_lost=int((~np.isfinite(slope)).sum()))
    exponent = percentiles(slope, level)
    if exponent is None:
        return law
    with np.errstate(over="ignore"):
        coef = percentiles(np.exp(intercept - slope * centre), level)
    at = np.linspace(math.log(x.min()), math.log(x.max()), 25)
    drawn = np.exp(intercept + slope * (at[:, None] - centre))  # [25, r]
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return replace(
        law,
        exponent=Estimate.of(found.exponent, exponent),
        coefficient=Estimate.of(found.coef, coef),
        band=Band(tuple(np.exp(at).tolist()), tuple(low.tolist()), tuple(high.tolist())),
    )
