"""Fits made by hand, for what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.fits.fit import (
    D_OPT,
    L_OPT,
    N_OPT,
    NOTHING,
    EnvelopePart,
    EnvelopePoints,
    Estimate,
    Fit,
    Intervals,
    Law,
    Objective,
    Optimum,
    ParametricPart,
    believed_to,
)
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.fits.study_fits import Group, StudyFits
from analysis.run_table import RunTable
from flops.laws import FITS_SCHEMA

NO_POINTS = EnvelopePoints((), (), (), (), (), ())


def fit_of(
    approach: str = "parametric",
    reach: float | None = None,
    why: str = "a reason",
    group: str = "tnl",
    a: Estimate = NOTHING,
    b: Estimate = NOTHING,
    laws: Sequence[Law] | None = None,
    span: tuple[float, float] = (1e18, 1e20),
    **more: Any,
) -> Fit:
    """reach, why: its verdict; a, b: exponents of N_opt and D_opt; more: fields of `Fit`."""
    named = tuple(laws or (Law(N_OPT, exponent=a), Law(D_OPT, exponent=b), Law(L_OPT)))
    verdict = None if reach is None else believed_to(reach, (why,))
    made = Fit(
        approach,
        group,
        40,
        40,
        "0" * 64,
        span,
        {"C": "exact", "L": "nats/byte"},
        Objective("squares"),
        Intervals("percentiles", 0.95),
        named,
        verdict=verdict,
        parametric=ParametricPart("E + A / N^alpha + B / D^beta", {}) if approach == "parametric" else None,
        envelope=EnvelopePart(NO_POINTS, (), ()) if approach == "envelope" else None,
    )
    return replace(made, **more)


def optimum(c: float, n: Estimate = NOTHING, d: Estimate = NOTHING, loss: Estimate = NOTHING) -> Optimum:
    return Optimum(c, n, d, loss)


def group_of(name: str, **more: Any) -> Group:
    return replace(Group(name, name, "", 0, ()), **more)


def study_of(*fits: Fit, groups: Sequence[Group] = (), **more: Any) -> StudyFits:
    """more: fields of `StudyFits`."""
    named = {"C": "exact", "unit_C": "FLOP", "N": "parameters", "L": "loss", "unit_L": "nats/byte"}
    every = groups or [group_of(name) for name in dict.fromkeys(fit.group for fit in fits)]
    made = StudyFits(
        FITS_SCHEMA, "s", "", named, FitSettings(), tuple(every), fits, (), Intervals("none", 0.95), None, (), ()
    )
    return replace(made, **more)


def envelopes_of(
    table: RunTable, settings: FitSettings | None = None, inputs: dict[str, str] | None = None
) -> StudyFits:
    """The envelopes of a study alone, not judged."""
    return fit_study(table if settings is None else replace(table, settings=settings), inputs, approaches=())
