"""Architectures at one budget of compute, which is how they are chosen: losses, the odds of each, what the others would
need, and the reasons not to believe it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.fits.comparison.compare import (
    MIN_FINE,
    Compared,
    compare_architectures,
    interval,
    log_gain,
    share_where,
)
from analysis.fits.comparison.pairs import e_at_bound
from analysis.fits.cost import SECONDS
from analysis.fits.points import Points
from arch.amounts import count, flop
from arch.errors import InputError

FEW = 5  # degrees of freedom of the noise: at 4 the quantile of Student's t is 1.4 times the normal's
FAR = 10.0  # times beyond the range: there the form of the surface decides, which no interval covers


def compare_views(
    views: Mapping[str, Sequence[Points] | str], n_replicates: int = 999, level: float = 0.95, seed_noise: float = 0.0
) -> tuple[dict[str, Compared], dict[str, str]]:
    """The architectures compared under every way of counting (`analysis.fits.compared.views_of`), and by name
    why there is no comparison under the others."""
    compared, reasons = {}, {}
    for name, groups in views.items():
        try:
            if isinstance(groups, str):
                raise InputError(groups)
            compared[name] = compare_architectures(groups, None, n_replicates, level, seed_noise=seed_noise)
        except InputError as error:
            reasons[name] = str(error)
    return compared, reasons


def at_budget(found: Compared, c: float) -> list[dict[str, Any]]:
    """A row an architecture at C = `c`, the one of the lowest loss first: `loss`, `n_opt` and `d_opt` at its own
    optimum, each with its interval; `p_best`, the share of the draws in which its loss is the lowest of all;
    `compute`, how many times `c` it needs for the loss of the first, with its interval (null: never reached). No
    interval and no share where too few draws ended well.

    Draws are paired: what runs of one cell share is in none of the differences, and so neither in `p_best` nor in
    `compute`, while the intervals of the losses hold all noise.
    """
    with np.errstate(all="ignore"):  # of draws that did not end well, which are left out below
        return _rows(found, c)


def _rows(found: Compared, c: float) -> list[dict[str, Any]]:
    names = sorted(found.points.names, key=lambda name: float(found.l_opt(name, c)[0]))
    losses = {name: found.l_opt(name, c) for name in names}
    lowest = np.min([losses[name] for name in names], axis=0)
    rows = []
    for name in names:
        surface, cost = found.surfaces[name], found.costs[name]
        row: dict[str, Any] = {"arch": name}
        for key, drawn in (
            ("loss", losses[name]),
            ("n_opt", np.asarray(surface.n_opt(c, cost))),
            ("d_opt", np.asarray(surface.d_opt(c, cost))),
        ):
            row |= {key: float(drawn[0]), f"{key}_interval": interval(drawn, found)}
        row["p_best"] = share_where(losses[name] <= lowest, found) if enough_draws(found) else None
        times = np.exp(-log_gain(found, names[0], name, float(losses[names[0]][0])))
        row["compute"] = float(times[0]) if math.isfinite(times[0]) else None
        row["compute_interval"] = None if name == names[0] else interval(times, found)
        rows.append(row)
    return rows


def enough_draws(found: Compared) -> bool:
    return bool(found.fine[0]) and float(found.fine[1:].mean()) >= MIN_FINE


def doubts(found: Compared, c: float) -> list[str]:
    """Reasons not to believe what is said of C = `c`, none where there are none."""
    told = []
    low, high = found.common
    convention = next(iter(found.costs.values())).convention
    unit = convention if convention == SECONDS else f"FLOP {convention}"
    if c > high * (1 + 1e-9) or c < low * (1 - 1e-9):
        side, times = ("above", c / high) if c > high else ("below", low / c)
        far = (
            "the form of the surface decides there, and no interval covers that" if times > FAR else "no run checks it"
        )
        told.append(
            f"C lies {times:.3g} times {side} what all runs reached ({flop(low)} to {flop(high)} {unit}): {far}"
        )
    if e_at_bound(found):
        told.append("the fit wants no irreducible loss (E = 0), so nothing is known of losses beyond the range")
    if not found.fitted.shared:
        told.append(
            f"the architectures do not share one E (p = {found.p_one_e:.2g}), though they read the same text: the form "
            "or a learning rate is off, and beyond the range E decides"
        )
    if not found.fine[0]:
        told.append("an exponent of a fitted surface ended at the end of its range: nothing is identified")
    elif lost := int((~found.fine[1:]).sum()):
        gone = "they are left out" if enough_draws(found) else "there are no intervals and no odds"
        told.append(f"in {lost} of {len(found.fine) - 1} draws an exponent is not identified: {gone}")
    if found.fitted.df < FEW:
        told.append(f"the noise is known from {found.fitted.df} degrees of freedom alone")
    for g, name in enumerate(found.points.names):
        sizes = np.exp(found.points.data.x[0, found.points.arch == g] + found.points.centre[g, 0])
        n_opt = float(np.asarray(found.surfaces[name].n_opt(c, found.costs[name]))[0])
        if not sizes.min() <= n_opt <= sizes.max():
            side = f"above the largest size that was trained, {count(sizes.max())}"
            side = side if n_opt > sizes.max() else f"below the smallest size that was trained, {count(sizes.min())}"
            told.append(f"{name}: N_opt = {count(n_opt)} lies {side}")
    return told
