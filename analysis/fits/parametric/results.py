"""The parametric approach as every approach returns it: parameters, optima and predictions with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.fit import (
    D_OPT,
    L_OPT,
    N_OPT,
    NOTHING,
    PARAMETRIC,
    QUANTITIES,
    Estimate,
    Fit,
    Intervals,
    Law,
    NoiseOf,
    Objective,
    Optimum,
    ParametricPart,
    Prediction,
    WithoutSizes,
)
from analysis.fits.forms import (
    BOTH,
    BOUNDS,
    FORMS,
    OVER_TRAINING,
    R_STAR,
    REPEATED,
    over_training,
    parameters,
    stars_of,
)
from analysis.fits.parametric.curves import check_design
from analysis.fits.parametric.draws import LEAST_TRUNKS
from analysis.fits.parametric.fit import ParametricFit, refit
from analysis.fits.solver import OBJECTIVES
from analysis.fits.surface import PARAMS
from arch.amounts import counted, counted_of
from arch.errors import InputError

ESTIMAND = (
    "the surface that this fit would find on many such runs; re-drawn: {over}; text, learning rates and the form of "
    "the surface fixed"
)
TERM = {"alpha": "N", "beta": "D"}
MANY = 4  # readings of a text; up to there they are nearly as good as new text (Muennighoff et al. 2023)
FAR_OFF, LEAST_OFF = 10.0, 0.1  # standard deviations of the others, and a share of the loss: beyond, a likely mistake
ASSUMED = "assumed: alpha = beta"  # of a and b under the over-training form
READ_ONCE = "N_opt, D_opt and L_opt are of text that is read once: D counts new tokens"
WITH_EXCESS = (
    "; they are the minimum of this very form: under C = 6 N D N_opt is U_N, where N counts in full; where the cost "
    "of a token grows more slowly than N, N_opt is above U_N and counts as N'"
)
UNSEEN = {"R_star": "no point has repeated tokens", "R_N_star": "no point has more parameters than its tokens need"}


def parametric_result(
    found: ParametricFit,
    *,
    at: Sequence[float] = (),
    curve: Sequence[float] = (),
    predict: Sequence[tuple[float, float]] = (),
    level: float = 0.95,
    seed: int = 0,
) -> Fit:
    """A fitted surface as every approach returns it. at, curve: C [FLOP] of its optima; predict: (N, D) of its
    predictions; seed: of its replicates."""
    points, solution, drawn = found.points, found.solution, found.draws
    low, high = float(points.flops.min()), float(points.flops.max())
    middle = math.sqrt(low * high)
    missing = not_identified(found, level)
    why = next((reason for name, reason in missing.items() if reason != ASSUMED), "")
    parameters = _parameters(found, missing, level)
    optimum = _optimum(found, middle, level, next((missing[name] for name in TERM if name in missing), ""))
    exponents = _exponents(found, missing, level)
    floors = {L_OPT: parameters["E"]}
    return Fit(
        approach=PARAMETRIC,
        group=points.group,
        n_points=len(points),
        n_runs=points.n_runs,
        input_hash=points.input_hash,
        range=(low, high),
        conventions={"C": found.cost.convention, "L": points.loss_unit},
        objective=Objective(
            OBJECTIVES[found.objective],
            float(solution.objective[0]),
            float(solution.starts.max()),
            len(solution.starts),
            int((~solution.starts_ended_well).sum()),
        ),
        intervals=Intervals(found.why_no_draws)
        if drawn is None
        else Intervals(
            drawn.method, level, ESTIMAND.format(over=drawn.over), len(drawn.surface), seed=seed, over=drawn.over
        ),
        laws=tuple(_law(name, optimum, exponents, floors, (low, high)) for name in QUANTITIES),
        middle=optimum,
        optima=tuple(_optimum(found, c, level, why) for c in at),
        curve=tuple(_optimum(found, c, level, why) for c in curve),
        predictions=tuple(_prediction(found, n, d, level) for n, d in predict),
        parametric=ParametricPart(
            form=FORMS[found.form],
            parameters=parameters,
            without_sizes=without_sizes(found, middle),
            noise=_noise(found),
            seeds=found.replicates,
            over_training=_over_training(found, level),
            p_tied=found.p_tied,
            assumes=READ_ONCE + (WITH_EXCESS if found.form == BOTH else "") if found.form in REPEATED else "",
        ),
        left_out=tuple(f"{count} {what}" for what, count in found.prepared.left_out.items()),
        notes=tuple(_notes(found)),
    )


def _law(
    quantity: str,
    middle: Optimum,
    exponents: dict[str, Estimate],
    floors: dict[str, Estimate],
    span: tuple[float, float],
) -> Law:
    """Through the optimum in the middle of the range."""
    value = middle.of(quantity).value
    return Law(
        quantity,
        exponent=exponents.get(quantity, NOTHING),
        floor=floors.get(quantity, NOTHING),
        centre=None if value is None else (middle.flops, value),
        range=span,
    )


def not_identified(fit: ParametricFit, level: float = 0.95) -> dict[str, str]:
    """Parameters that the points do not identify, with the reason: the search, or more than 1 - `level` of the
    replicates, ended at the end of an exponent's range, which then sets the interval and not the points; or the form
    assumes them."""
    found = {}
    for name, edge in zip(TERM, fit.solution.at_bound[0], strict=False):
        if edge:
            value = getattr(fit.surface, name)
            found[name] = (
                f"ended at {value:.4g}, the end of its range ({BOUNDS[0]:g} to {BOUNDS[1]:g})"
                if not BOUNDS[0] < value < BOUNDS[1]
                else f"the best fit has no term of {TERM[name]}"
            )
    if fit.draws is not None:
        for name, share in zip(TERM, fit.draws.at_bound, strict=False):
            if share > 1 - level:
                found.setdefault(
                    name,
                    f"{100 * share:.3g}% of the replicates end at the end of its range ({BOUNDS[0]:g} to {BOUNDS[1]:g})"
                    f" or have no term of {TERM[name]}",
                )
    found |= _stars_not_identified(fit, level)
    if fit.form == OVER_TRAINING:
        found |= {"a": ASSUMED, "b": ASSUMED}
    return found


def _stars_not_identified(fit: ParametricFit, level: float) -> dict[str, str]:
    ends = f"({R_STAR[0]:g} to {R_STAR[1]:g})"
    found = {}
    for i, (name, value) in enumerate(stars_of(fit.surface).items(), len(TERM)):
        if not np.isfinite(value):
            found[name] = UNSEEN[name]
        elif fit.solution.at_bound[0, i]:
            found[name] = f"ended at {value:.4g}, the end of its range {ends}"
        elif fit.draws is not None:
            share = fit.draws.at_bound[i]
            if share > 1 - level:
                found[name] = f"{100 * share:.3g}% of the replicates end at the end of its range {ends}"
    return found


def _parameters(fit: ParametricFit, missing: dict[str, str], level: float) -> dict[str, Estimate]:
    """Of the surface, by name; without an interval, a reason beside it, those that are not identified."""
    drawn = None if fit.draws is None else parameters(fit.draws.surface)
    exponent_of = {"A": "alpha", "B": "beta"}
    found = {}
    for name, value in parameters(fit.surface).items():
        known = not missing.keys() & {name, exponent_of.get(name, name)}
        ends = _ends(fit.draws.interval(drawn[name], level)) if fit.draws and drawn and known else None
        found[name] = Estimate.of(float(value), ends, missing.get(name, ""))
    return found


def _exponents(fit: ParametricFit, missing: dict[str, str], level: float) -> dict[str, Estimate]:
    """a and b, by the quantity; they need both exponents of the surface."""
    drawn = None if fit.draws is None else fit.exponents(fit.draws.surface)
    needed = next((missing[name] for name in TERM if name in missing), "")
    found = {}
    for quantity, (name, value) in zip((N_OPT, D_OPT), fit.exponents(fit.surface).items(), strict=True):
        why = missing.get(name, "") or needed
        ends = _ends(fit.draws.interval(drawn[name], level)) if fit.draws and drawn and not why else None
        found[quantity] = Estimate.of(float(value), ends, why)
    return found


def _known(value: float) -> float | None:
    """None for an optimum that there is not: without a term of N (of D) the best N is 0 (infinite), or nan."""
    return value if math.isfinite(value) and value > 0 else None


def _ends(interval: np.ndarray) -> tuple[float, float]:
    return float(interval[0]), float(interval[1])


def _optimum(fit: ParametricFit, c: float, level: float, why: str) -> Optimum:
    """At C [FLOP]; why: an exponent is not identified, so N and D have no interval."""
    found = fit.optimum(c, level)
    told = []
    for name, reason in (("n_opt", why), ("d_opt", why), ("l_opt", "")):
        value = _known(float(found[name][0]))
        known = value is not None and f"{name}_interval" in found and not reason
        told.append(Estimate.of(value, _ends(found[f"{name}_interval"][:, 0]) if known else None, reason))
    return Optimum(c, *told)


def _prediction(fit: ParametricFit, n_params: float, n_tokens: float, level: float) -> Prediction:
    ends = None if fit.draws is None else _ends(fit.loss_interval(n_params, n_tokens, level=level)[:, 0])
    return Prediction(n_params, n_tokens, Estimate.of(float(fit.surface.loss(n_params, n_tokens)), ends))


def _over_training(fit: ParametricFit, level: float) -> dict[str, Estimate] | None:
    if fit.form != OVER_TRAINING:
        return None
    drawn = fit.draws
    many = {} if drawn is None else over_training(drawn.surface)
    return {
        name: Estimate.of(float(value), None if drawn is None else _ends(drawn.interval(many[name], level)))
        for name, value in over_training(fit.surface).items()
    }


def _notes(fit: ParametricFit) -> list[str]:
    """What a reader should know first: that a form without repeats was fitted to text that was read again and again,
    and points that are likely mistakes."""
    points = fit.points
    found = _far_off(fit)
    many = int((points.n_tokens > MANY * points.unique_tokens * (1 + 1e-9)).sum())
    if fit.form in REPEATED or not many:
        return found
    law = "an over-training law" if fit.form == OVER_TRAINING else f"a {fit.form} law"
    return [
        f"{counted_of(many, len(points), 'point')} read their text more than {MANY} times: {law} takes repeated "
        "text for new; --form data-constrained tells them apart",
        *found,
    ]


def _far_off(fit: ParametricFit) -> list[str]:
    """A line on points further off the surface than any noise of the others explains."""
    points = fit.points
    off = np.log(points.loss / fit.surface.loss(points.n_params, points.n_tokens, points.unique_tokens))
    spread = 1.4826 * float(np.median(np.abs(off)))  # of normal noise: its standard deviation
    far = np.flatnonzero(np.abs(off) > max(FAR_OFF * spread, math.log1p(LEAST_OFF)))
    if not len(far):
        return []
    worst = far[np.abs(off[far]).argmax()]
    loss, away, half = points.loss[worst], math.expm1(off[worst]), math.expm1(spread / 1.4826)
    return [
        f"far off the surface: {counted(len(far), 'point')}, as {points.run[worst]} of loss {loss:.4g}, {away:+.0%}; "
        f"half of all points lie within {half:.1%}: a mistake?"
    ]


def _noise(fit: ParametricFit) -> tuple[NoiseOf, ...]:
    """What the residuals say of the noise."""
    kinds = () if fit.effects is None else zip(fit.effects.kinds, fit.effects.s, fit.effects.df, strict=True)
    return tuple(NoiseOf(kind.name, float(s), float(df)) for kind, s, df in kinds)


def without_sizes(fit: ParametricFit, middle: float) -> WithoutSizes:
    """The range of parameters, and of N_opt at C = `middle`, over fits that leave one size out."""
    points, weights = fit.points, fit.prepared.weights
    sizes = points.size.astype(str)
    names = list(dict.fromkeys(sizes.tolist()))
    done, rows, impossible = [], [], {}
    if len(names) > LEAST_TRUNKS:  # a bootstrap's business
        impossible, names = {"all": f"{len(names)} sizes: not done beyond {LEAST_TRUNKS}"}, []
    for name in names:
        keep = sizes != name
        try:
            check_design(np.log(points.n_params[keep]), np.log(points.n_tokens[keep]))
        except InputError as error:
            impossible[name] = str(error)
            continue
        done.append(name)
        rows.append(weights * keep)
    ranges: dict[str, tuple[float, float]] = {}
    if rows:
        surfaces = refit(fit, points.loss, np.stack(rows)).surface
        values: dict[str, Any] = {name: getattr(surfaces, name) for name in PARAMS}
        if fit.form != OVER_TRAINING:  # which assumes a
            values |= fit.exponents(surfaces)
        values["N_opt"] = surfaces.n_opt(middle, fit.cost)
        known = {name: value[~np.isnan(value)] for name, value in values.items()}
        ranges = {name: (float(value.min()), float(value.max())) for name, value in known.items() if len(value)}
    return WithoutSizes(ranges, tuple(done), impossible)
