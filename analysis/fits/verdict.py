"""Which architecture has the lowest loss at the largest compute that all of them reached, and whether that is more than
seed noise.

Losses are read off the envelopes, not off the laws: they hold where a curve is no power law. The noise of a point is
that between seeds, s / sqrt(seeds) in log loss, of architectures that are not told apart in it (module noise). The
best is picked after looking, so differences to it have the intervals of Tukey and Kramer, which hold for all pairs of
architectures at once (Hochberg and Tamhane 1987, chapter 3); of two noises, those of Games and Howell (1976).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from scipy import stats

from analysis.fits.envelope import REASONS, extract
from analysis.fits.fit import L_OPT, N_OPT, NEAR, Estimate, Fit, Optimum
from analysis.fits.noise import NoisePart, SeedNoise, more_seeds
from analysis.fits.pairwise import LOSS, Comparison, compared
from analysis.fits.seeds import SizeCurve
from analysis.fits.study_fits import LossOf, LowestLoss
from arch.amounts import flop

WARMUP = "inside warm-up"


def judge_architectures(
    curves: Mapping[str, Sequence[SizeCurve]],
    fitted: Mapping[str, Fit],
    noise: Mapping[str, SeedNoise | None],
    level: float,
    at: str = "",
) -> LowestLoss:
    """The verdict on the architectures that were fitted. curves: of each of them, smallest size first; fitted: their
    envelopes; noise: between their seeds; at: what they share of the axes."""
    nothing = LowestLoss(level, at)
    if not curves:
        return replace(nothing, reason="no architecture has curves of loss over compute")
    spans = {arch: _reached(fitted[arch]) for arch in curves}
    if missing := [arch for arch, span in spans.items() if span is None]:
        return replace(nothing, reason=f"no curve of {', '.join(missing)} lies in its range of compute after warm-up")
    low, high = (max(s[0] for s in spans.values() if s), min(s[1] for s in spans.values() if s))
    if low > high:
        why = f"no compute was reached by all: some end at {flop(high)} FLOP, some begin at {flop(low)}"
        return replace(nothing, reason=why)
    losses = {arch: _loss_at(sizes, high, noise[arch], level) for arch, sizes in curves.items()}
    order = sorted(losses, key=lambda arch: losses[arch].loss.value or math.inf)
    best = order[0]
    for arch in order:
        against = None if arch == best else _against_best(arch, best, losses, noise, level, high)
        losses[arch] = replace(losses[arch], against_best=against, predictions=_losses_by_law(fitted[arch], high))
    return replace(nothing, c=high, best=best, archs={arch: losses[arch] for arch in order})


def _reached(fit: Fit) -> tuple[float, float] | None:
    """The first and last compute of an envelope's points that lie after warm-up."""
    assert fit.envelope is not None
    points = fit.envelope.points
    c = [at for at, why in zip(points.c, points.censored, strict=True) if why != WARMUP]
    return (min(c), max(c)) if c else None


def _loss_at(curves: Sequence[SizeCurve], c: float, noise: SeedNoise | None, level: float) -> LossOf:
    """The lowest loss at C and the size that has it."""
    log_c = np.array([math.log(c)])
    envelope = extract(curves, log_c)
    curve, log_loss = curves[int(envelope.owner[0, 0])], float(envelope.log_loss[0, 0])
    ends = None
    if noise is not None:
        half = float(stats.t.ppf((1 + level) / 2, noise.df)) * noise.s / math.sqrt(curve.n_seeds)
        ends = math.exp(log_loss - half), math.exp(log_loss + half)
    return LossOf(
        loss=Estimate.of(math.exp(log_loss), ends),
        size=curve.size,
        n_params=curve.n_params,
        n_tokens=c / curve.flops_per_token,
        n_seeds=curve.n_seeds,
        censored=REASONS[int(envelope.code[0, 0])],
        n_sizes=len(curves),
        n_rivals=sum(other is not curve and bool(np.isfinite(other.read(log_c)[0])) for other in curves),
    )


def _against_best(
    arch: str, best: str, losses: Mapping[str, LossOf], noise: Mapping[str, SeedNoise | None], level: float, c: float
) -> Comparison:
    """With an interval that holds for all pairs of the architectures."""
    own_loss, best_loss = losses[arch], losses[best]
    difference = math.log((own_loss.loss.value or math.nan) / (best_loss.loss.value or math.nan))
    own, of_best = noise[arch], noise[best]
    if own is None or of_best is None:
        return compared(arch, best, LOSS, c, difference, None, "no size has two seeds")
    half = _half((own, of_best), (own_loss.n_seeds, best_loss.n_seeds), level, len(losses))
    return compared(arch, best, LOSS, c, difference, (difference - half, difference + half))


def _half(
    noises: tuple[SeedNoise | NoisePart, SeedNoise | NoisePart],
    n_seeds: tuple[int, int],
    level: float,
    n_archs: int,
    more: int = 0,
) -> float:
    """Half of the interval of the log ratio of two losses. more: seeds of both that are not there yet; each tells of
    the noise of its side too."""
    own, best = noises
    v_own, v_best = (noise.s**2 / (n + more) for noise, n in zip(noises, n_seeds, strict=True))
    df = own.df + 2 * more
    if own != best and v_own + v_best:  # two noises, each known by itself: Welch's degrees of freedom
        df = (v_own + v_best) ** 2 / (v_own**2 / (own.df + more) + v_best**2 / (best.df + more))
    return _times(level, n_archs, df) * math.sqrt(v_own + v_best)


def seeds_that_halve(arch: str, lowest: LowestLoss, noise: SeedNoise) -> int:
    """How many more seeds of the two sizes make the interval of an architecture against the best half as wide."""
    noises = noise.of(arch), noise.of(lowest.best)
    n_seeds = lowest.archs[arch].n_seeds, lowest.archs[lowest.best].n_seeds
    return more_seeds(partial(_half, noises, n_seeds, lowest.level, len(lowest.archs)))


@cache
def _times(level: float, n_archs: int, df: float) -> float:
    """Standard errors to either side of a difference, so that all pairs' intervals hold at once."""
    return float(stats.studentized_range.ppf(level, n_archs, df)) / math.sqrt(2)


def _losses_by_law(fit: Fit, c: float) -> tuple[Optimum, ...]:
    """Of L(C) at C and, where that is another compute, at the end of the range of N_opt (of the loss where N_opt is not
    identified). A law that misses its own points by more than noise gives no value: it would pass for one."""
    n_opt, law = fit.law(N_OPT), fit.law(L_OPT)
    known, places = n_opt if n_opt.identified else law, [c]
    if known.range is not None and not 1 / NEAR < known.range[1] / c < NEAR:
        places.append(known.range[1])
    if law.curved and law.about_loss is not None:
        missed = Estimate(reason=f"the law misses its points by {math.expm1(law.about_loss.off_line or 0.0):.1%}")
        return tuple(Optimum(at, loss=missed) for at in places)
    return tuple(Optimum(at, loss=law.at(at)) for at in places)
