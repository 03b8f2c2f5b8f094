"""The parametric approach as every approach returns it: parameters, optima and predictions with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.fits.forms import (
    BOTH,
    BOUNDS,
    FORMS,
    OVER_TRAINING,
    PLAIN,
    R_STAR,
    REPEATED,
    over_training,
    parameters,
    stars_of,
)
from analysis.fits.parametric.curves import check_design
from analysis.fits.parametric.draws import LEAST_TRUNKS
from analysis.fits.parametric.fit import ParametricFit, refit
from analysis.fits.result import FitResult
from analysis.fits.solver import OBJECTIVES
from analysis.fits.surface import PARAMS
from arch.amounts import counted, counted_of
from arch.errors import InputError

ESTIMAND = (
    "the surface that this fit would find on many such runs; re-drawn: {over}; text, learning rates and the form of "
    "the surface fixed"
)
TERM = {"alpha": "N", "beta": "D"}
OF_OPTIMA = ("a", "b", "N_opt", "D_opt")  # need both exponents
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
    fit: ParametricFit,
    *,
    at: Sequence[float] = (),
    predict: Sequence[tuple[float, float]] = (),
    level: float = 0.95,
) -> FitResult:
    """A fit as a result. at: C [FLOP] of `diagnostics["optimum"]`; predict: (N, D) of `diagnostics["predictions"]`."""
    points, solution = fit.points, fit.solution
    low, high = float(points.flops.min()), float(points.flops.max())
    middle = math.sqrt(low * high)
    missing = not_identified(fit, level)
    params, intervals = _parameters(fit, middle, level)
    for name in missing:
        for gone in (name, {"alpha": "A", "beta": "B"}.get(name, name), *(OF_OPTIMA if name in TERM else ())):
            intervals[gone] = None
    drawn = fit.draws
    return FitResult(
        approach="parametric",
        n_points=len(points),
        params=params,
        intervals=intervals,
        objective={
            "name": OBJECTIVES[fit.objective],
            "value": float(solution.objective[0]),
            "worst": float(solution.starts.max()),
            "starts": len(solution.starts),
            "abnormal": int((~solution.starts_ended_well).sum()),
        },
        diagnostics={
            "form": FORMS[fit.form],
            "middle": middle,
            "optimum": [_optimum(fit, c, level, any(why != ASSUMED for why in missing.values())) for c in at],
            "predictions": [_prediction(fit, n, d, level) for n, d in predict],
            "not_identified": missing,
            "left_out": [f"{count} {what}" for what, count in fit.prepared.left_out.items()],
            "leave_one_size_out": leave_one_size_out(fit, middle),
            "notes": _notes(fit),
            **_noise(fit),
            **_of_form(fit, level),
        },
        input_hash=points.input_hash,
        group=points.group,
        n_runs=points.n_runs,
        range=(low, high),
        conventions={"C": fit.cost.convention, "L": points.loss_unit},
        interval={"method": fit.why_no_draws, "level": None, "replicates": 0}
        if drawn is None
        else {
            "method": drawn.method,
            "estimand": ESTIMAND.format(over=drawn.over),
            "level": level,
            "replicates": len(drawn.surface),
            "over": drawn.over,
        },
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


def _parameters(
    fit: ParametricFit, middle: float, level: float
) -> tuple[dict[str, float], dict[str, tuple[float, float] | None]]:
    params = {name: float(value) for name, value in (parameters(fit.surface) | fit.exponents(fit.surface)).items()}
    optimum = fit.optimum(middle, level)
    params |= {
        name.upper()[0] + name[1:]: value
        for name in ("n_opt", "d_opt", "l_opt")
        if (value := _known(float(optimum[name][0]))) is not None
    }
    intervals: dict[str, tuple[float, float] | None] = dict.fromkeys(params)
    drawn = fit.draws
    if drawn is not None:
        values = parameters(drawn.surface) | fit.exponents(drawn.surface)
        intervals |= {name: _ends(drawn.interval(one, level)) for name, one in values.items()}
        for name in ("n_opt", "d_opt", "l_opt"):
            if (named := name.upper()[0] + name[1:]) in params:
                intervals[named] = _ends(optimum[f"{name}_interval"][:, 0])
    return params, intervals


def _known(value: float) -> float | None:
    """None for an optimum that there is not: without a term of N (of D) the best N is 0 (infinite), or nan."""
    return value if math.isfinite(value) and value > 0 else None


def _ends(interval: np.ndarray) -> tuple[float, float]:
    return float(interval[0]), float(interval[1])


def _optimum(fit: ParametricFit, c: float, level: float, missing: bool) -> dict[str, Any]:
    """{"C", "N", "D", "L", "intervals"}; without intervals of N and D where an exponent is not identified."""
    found = fit.optimum(c, level)
    one: dict[str, Any] = {"C": c, "intervals": {}}
    for name, letter in (("n_opt", "N"), ("d_opt", "D"), ("l_opt", "L")):
        one[letter] = _known(float(found[name][0]))
        known = one[letter] is not None and f"{name}_interval" in found and not (missing and letter != "L")
        one["intervals"][letter] = _ends(found[f"{name}_interval"][:, 0]) if known else None
    return one


def _prediction(fit: ParametricFit, n_params: float, n_tokens: float, level: float) -> dict[str, Any]:
    interval = None if fit.draws is None else _ends(fit.loss_interval(n_params, n_tokens, level=level)[:, 0])
    return {"N": n_params, "D": n_tokens, "L": float(fit.surface.loss(n_params, n_tokens)), "interval": interval}


def _of_form(fit: ParametricFit, level: float) -> dict[str, Any]:
    """What a form other than the plain one tells or takes for granted."""
    if fit.form == OVER_TRAINING:
        told: dict[str, Any] = dict(over_training(fit.surface))
        drawn = fit.draws
        ends = {} if drawn is None else over_training(drawn.surface)
        told["intervals"] = {
            name: _ends(drawn.interval(ends[name], level)) if drawn is not None else None for name in tuple(told)
        }
        return {"over_training": told, "p_tied": fit.p_tied}
    if fit.form not in REPEATED:
        return {}
    return {"assumes": READ_ONCE + (WITH_EXCESS if fit.form == BOTH else "")}


def _notes(fit: ParametricFit) -> list[str]:
    """What a reader should know first: that a form without repeats was fitted to text that was read again and again,
    and points that are likely mistakes."""
    points = fit.points
    found = _far_off(fit)
    many = int((points.n_tokens > MANY * points.unique_tokens * (1 + 1e-9)).sum())
    if fit.form in REPEATED or not many:
        return found
    law = {PLAIN: "a plain law", OVER_TRAINING: "an over-training law"}[fit.form]
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


def _noise(fit: ParametricFit) -> dict[str, Any]:
    """What the residuals say of the noise, and what runs that differ by their seeds alone say of the surface."""
    found: dict[str, Any] = {}
    if fit.effects is not None:
        found["noise"] = [
            {"of": kind.name, "s": float(s), "df": float(df)}
            for kind, s, df in zip(fit.effects.kinds, fit.effects.s, fit.effects.df, strict=True)
        ]
    same = fit.replicates
    if same is not None:
        found["seeds"] = {"s": same.s, "df": same.df, "p_surface_fits": same.p_fits}
    return found


def leave_one_size_out(fit: ParametricFit, middle: float) -> dict[str, Any]:
    """The range of parameters, and of N_opt at C = `middle`, over fits that leave one size out: what one size decides.
    `left_out`: sizes without which the fit was done; `impossible`: without which it cannot be, with the reason."""
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
    return {"ranges": ranges, "left_out": done, "impossible": impossible}
