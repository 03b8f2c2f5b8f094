"""A link as it is stored and reported, and whether to believe it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fits.downstream.forms import EXPONENTIAL, LOGISTIC, Form
from analysis.fits.downstream.link import LEAST_RUNS, LEVEL, Link, fit_link
from analysis.fits.downstream.scores import LOSS
from analysis.fits.fit import Estimate, Intervals, Objective, Stored, Verdict, believed_to
from arch.amounts import counted

BENT = 0.01  # p-value of a bend, below which the form does not hold
BEYOND = 0.25  # of the range of z, that the forms are compared at beyond the best checkpoint
ESTIMAND = "the expected score of a run at this {against}, on the task's own questions"
METHOD = "random run effect or jackknife over runs, the wider; Student's t with runs - 2 degrees of freedom"


@dataclass(frozen=True)
class FittedLink(Stored):
    """The scores of a task against loss or compute (`against`), by one form (forms.py), whose parameters are shares.

    group: the architecture; n_points, n_runs: with scores, n_missing: without; range: of C [FLOP]; loss_range: of the
    losses; per_point: the objective for a degree of freedom; run_effect_ratio: of the scatter between runs to the
    scores' own errors; p_bend: of a bend that the form does not have; other_form: its objective; forms_apart: both a
    quarter of the range beyond the best checkpoint.
    """

    form: str
    group: str
    task: str
    against: str
    n_points: int
    n_runs: int
    n_missing: int
    parameters: dict[str, Estimate]
    objective: Objective
    intervals: Intervals
    range: tuple[float, float]
    loss_range: tuple[float, float]
    conventions: dict[str, str]
    scale: dict[str, Any]
    per_point: float
    run_effect_ratio: float
    p_bend: float | None
    other_form: Objective | None
    forms_apart: dict[str, float] | None
    input_hash: str
    verdict: Verdict


def to_result(link: Link, loss_name: str = "L", level: float = LEVEL) -> FittedLink:
    """With the other form beside it."""
    scores, other = link.scores, _other(link)
    steep = next(name for name in ("gamma", "exponent", "k") if name in link.params())
    apart = _apart(link, other)
    bend = link.curvature()
    none = f"none: {counted(scores.n_runs, 'run')}, {LEAST_RUNS} are needed"
    return FittedLink(
        form=link.form.name,
        group=scores.group,
        task=scores.task,
        against=link.against,
        n_points=len(scores),
        n_runs=scores.n_runs,
        n_missing=scores.n_missing,
        parameters={
            name: Estimate.of(value, link.steepness(level) if name == steep else None)
            for name, value in link.params().items()
        },
        objective=Objective(
            "sum of squares in units of the scores' standard errors", link.objective, max(link.ends), len(link.ends)
        ),
        intervals=Intervals(METHOD, level, ESTIMAND.format(against=link.against), over="runs")
        if link.has_interval
        else Intervals(none),
        range=(float(scores.flops.min()), float(scores.flops.max())),
        loss_range=(float(scores.loss.min()), float(scores.loss.max())),
        conventions={"C": scores.convention, "L": loss_name},
        scale=scores.scale.to_dict(),
        per_point=link.objective / max(len(scores) - 2, 1),
        run_effect_ratio=link.effect.ratio,
        p_bend=bend,
        other_form=None if other is None else Objective(other.form.name, other.objective),
        forms_apart=apart,
        input_hash=scores.input_hash,
        verdict=_verdict(link, bend, apart),
    )


def _other(link: Link) -> Link | None:
    """The other form of accuracies."""
    names = {LOGISTIC: EXPONENTIAL, EXPONENTIAL: LOGISTIC}
    name = names.get(link.form.name)
    return None if name is None or link.form.free else fit_link(link.scores, Form(name), link.against)


def _beyond(link: Link) -> float:
    """A loss, or compute, that is better than the best checkpoint's by a quarter of their range."""
    if link.against == LOSS:
        loss = link.scores.loss
        return float(max(loss.min() - BEYOND * np.ptp(loss), loss.min() / 10))
    log_c = np.log(link.scores.flops)
    return float(np.exp(log_c.max() + BEYOND * np.ptp(log_c)))


def _apart(link: Link, other: Link | None) -> dict[str, float] | None:
    """The two forms at `_beyond`, in the task's units; None where there is one alone."""
    if other is None:
        return None
    at = _beyond(link)
    return {"at": at, link.form.name: float(link.predict(at)[0]), other.form.name: float(other.predict(at)[0])}


def _verdict(link: Link, bend: float | None, apart: dict[str, float] | None) -> Verdict:
    reasons, inside = [], []
    if bend is not None and bend < BENT:
        reasons.append(f"the scores bend otherwise than the {link.form.name} form (p = {bend:.2g})")
    if not link.has_interval:
        inside.append(f"no interval: {counted(link.scores.n_runs, 'run')}, {LEAST_RUNS} are needed")
    elif apart is not None:
        low, high = (float(one[0]) for one in link.interval(apart["at"]) or ())
        mine, theirs = list(apart.values())[1:]
        if not low <= theirs <= high:
            inside.append(
                f"at {link.against} {apart['at']:.4g}, a quarter of the range beyond, the forms say {mine:.3g} and "
                f"{theirs:.3g}, further apart than the interval"
            )
    return believed_to(0.0 if reasons else 1.0 if inside else math.inf, (*reasons, *inside))
