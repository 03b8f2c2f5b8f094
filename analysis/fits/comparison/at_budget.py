"""Architectures at one budget of compute, which is how they are chosen: losses, the odds of each, what the others would
need, and the reasons not to believe it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.fits.comparison.frontiers import MIN_FINE, Frontiers
from analysis.fits.cost import SECONDS
from analysis.fits.fit import NOTHING, Estimate
from arch.amounts import count, flop

FEW = 5  # degrees of freedom of the noise: at 4 the quantile of Student's t is 1.4 times the normal's
FAR = 10.0  # times beyond the range: there the form of the surface decides, which no interval covers


@dataclass(frozen=True)
class AtBudget:
    """An architecture at a budget. loss, n_opt, d_opt: at its own optimum; p_best: the share of the draws in which its
    loss is the lowest of all (None: too few draws ended well); compute: how many times the budget it needs for the
    lowest loss (no value: it never gets there).

    Draws are paired: what runs of one cell share is in none of the differences, and so neither in `p_best` nor in
    `compute`, while the intervals of the losses hold all noise."""

    arch: str
    loss: Estimate
    n_opt: Estimate
    d_opt: Estimate
    p_best: float | None
    compute: Estimate


def at_budget(frontiers: Frontiers, c: float) -> list[AtBudget]:
    """Each architecture at C = `c`, the one of the lowest loss first."""
    names = sorted(frontiers.points.names, key=lambda name: float(frontiers.l_opt(name, c)[0]))
    losses = {name: frontiers.l_opt(name, c) for name in names}
    lowest = np.min([losses[name] for name in names], axis=0)
    rows = []
    for name in names:
        surface, cost = frontiers.surfaces[name], frontiers.costs[name]
        with np.errstate(all="ignore"):  # of draws that did not end well
            sizes, tokens = np.asarray(surface.n_opt(c, cost)), np.asarray(surface.d_opt(c, cost))
            times = np.exp(-frontiers.log_gain(names[0], name, float(lowest[0])))
        loss, n_opt, d_opt = (
            Estimate.of(float(drawn[0]), frontiers.interval(drawn)) for drawn in (losses[name], sizes, tokens)
        )
        p_best = frontiers.share(losses[name] <= lowest) if _enough_draws(frontiers) else None
        compute = Estimate.of(float(times[0]), None if name == names[0] else frontiers.interval(times))
        rows.append(AtBudget(name, loss, n_opt, d_opt, p_best, compute if math.isfinite(times[0]) else NOTHING))
    return rows


def _enough_draws(frontiers: Frontiers) -> bool:
    return bool(frontiers.fine[0]) and float(frontiers.fine[1:].mean()) >= MIN_FINE


def doubts(frontiers: Frontiers, c: float) -> list[str]:
    """Reasons not to believe what is said of C = `c`, none where there are none."""
    lines = []
    low, high = frontiers.common
    unit = frontiers.convention if frontiers.convention == SECONDS else f"FLOP {frontiers.convention}"
    if c > high * (1 + 1e-9) or c < low * (1 - 1e-9):
        side, times = ("above", c / high) if c > high else ("below", low / c)
        why = (
            "the form of the surface decides there, and no interval covers that" if times > FAR else "no run checks it"
        )
        reached = f"what all runs reached ({flop(low)} to {flop(high)} {unit})"
        lines.append(f"C lies {times:.3g} times {side} {reached}: {why}")
    if frontiers.e_at_bound:
        lines.append("the fit wants no irreducible loss (E = 0), so nothing is known of losses beyond the range")
    if not frontiers.fitted.shared:
        lines.append(
            f"the architectures do not share one E (p = {frontiers.p_one_e:.2g}), though they read the same text: the "
            "form or a learning rate is off, and beyond the range E decides"
        )
    if not frontiers.fine[0]:
        lines.append("an exponent of a fitted surface ended at the end of its range: nothing is identified")
    elif lost := int((~frontiers.fine[1:]).sum()):
        what = "they are left out" if _enough_draws(frontiers) else "there are no intervals and no odds"
        lines.append(f"in {lost} of {len(frontiers.fine) - 1} draws an exponent is not identified: {what}")
    if frontiers.fitted.df < FEW:
        lines.append(f"the noise is known from {frontiers.fitted.df} degrees of freedom alone")
    for g, name in enumerate(frontiers.points.names):
        sizes = np.exp(frontiers.points.data.x[0, frontiers.points.arch == g] + frontiers.points.centre[g, 0])
        n_opt = float(np.asarray(frontiers.surfaces[name].n_opt(c, frontiers.costs[name]))[0])
        if n_opt > sizes.max():
            side = f"above the largest size that was trained, {count(sizes.max())}"
        elif n_opt < sizes.min():
            side = f"below the smallest size that was trained, {count(sizes.min())}"
        else:
            continue
        lines.append(f"{name}: N_opt = {count(n_opt)} lies {side}")
    return lines
