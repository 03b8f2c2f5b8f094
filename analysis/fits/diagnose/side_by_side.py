"""The approaches beside each other: what each says of N_opt and its exponent, and where they contradict one another or
the cost of the models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from analysis.fits.cost import Cost
from analysis.fits.fit import Estimate, Fit
from analysis.fits.points import Points

FACTOR = 1.5  # of N_opt between two approaches, from which on they disagree
ERRORS = 3.0  # joint standard errors of a, from which on they disagree
IDENTITY = 0.05  # that a times the growth of cost, plus b, may be off one
LEAST_CHORD = 1e-6  # of log N: a shorter one has no slope


def standard_error(estimate: Estimate, level: float | None) -> float | None:
    """From the width of an interval of this level; None without one."""
    ends = estimate.ends
    if ends is None or not level:
        return None
    return (ends[1] - ends[0]) / (2 * float(stats.norm.ppf((1 + level) / 2)))


def compare_approaches(results: Sequence[Fit]) -> dict[str, Any]:
    """a and N_opt of each approach, and every pair: the difference of a, the same in joint standard errors (as if the
    two were independent; they share the runs, so this is cautious), the standard errors of both, the
    factor between their N_opt at each C that both give (`Fit.optima`), and whether they disagree."""
    claims: dict[str, dict[str, Any]] = {
        one.approach: {
            "a": one.a.value,
            "error": standard_error(one.a, one.intervals.level),
            "interval": one.a.interval,
            "n_opt": {f"{at.flops:.6g}": at.n_params.value for at in one.optima},
        }
        for one in results
    }
    pairs = []
    for first, second in combinations(claims, 2):
        one, other = claims[first], claims[second]
        if one["a"] is None or other["a"] is None:
            continue
        errors = [claim["error"] for claim in (one, other)]
        joint = math.hypot(*errors) if None not in errors else None
        factors = [
            max(one["n_opt"][c] / other["n_opt"][c], other["n_opt"][c] / one["n_opt"][c])
            for c in one["n_opt"].keys() & other["n_opt"].keys()
            if one["n_opt"][c] and other["n_opt"][c]
        ]
        difference, factor = one["a"] - other["a"], max(factors, default=None)
        in_errors = abs(difference) / joint if joint else None
        disagree = (factor is not None and factor > FACTOR) or (in_errors is not None and in_errors > ERRORS)
        pairs.append(
            {"approaches": [first, second], "difference": difference, "in_errors": in_errors, "errors": errors}
            | {"factor": factor, "disagree": disagree}
        )
    return {"claims": claims, "pairs": pairs, "disagree": any(one["disagree"] for one in pairs)}


def identities(result: Fit, cost: Cost) -> dict[str, Any]:
    """Whether N_opt and D_opt, fitted separately, spend C. `exponents`: a times the growth of a token's cost with N
    (between the law's N_opt at the ends of its range; at N_opt where it has none), plus b, less 1; `compute`:
    cost(N_opt) D_opt / C, and `six_nd` 6 N_opt D_opt / C, at each C asked for, in and beyond the range; off:
    whether either misses by more than IDENTITY, inside the range, where the cost is known. The exponents decide for
    laws fitted separately alone: D_opt of a surface is what N_opt leaves of C."""
    found: dict[str, Any] = {"exponents": None, "compute": [], "off": False}
    a, b, n_opt = result.a.value, result.b.value, result.n_opt.value
    if a is not None and b is not None and n_opt is not None:
        found["exponents"] = a * _growth(result, cost, a, n_opt) + b - 1
    for at in result.optima:
        n, d = at.n_params.value, at.n_tokens.value
        if n and d:
            ratio = float(cost.per_token(n)) * d / at.flops
            found["compute"].append({"C": at.flops, "ratio": ratio, "six_nd": 6 * n * d / at.flops})
    last = result.range[1] * (1 + 1e-9)
    inside = [math.log(one["ratio"]) for one in found["compute"] if one["C"] <= last]
    separate = result.approach != "parametric"
    off = [(found["exponents"] or 0.0) if separate else 0.0, *inside]
    return found | {"off": max(abs(one) for one in off) > IDENTITY}


def _growth(result: Fit, cost: Cost, a: float, n_opt: float) -> float:
    """d log(C / D) / d log N, as the law meets it: the chord between its N_opt at the ends of its range, as a cost of
    knots grows by another power at each N."""
    log_n = math.log(n_opt)
    assert result.middle is not None  # where n_opt is
    ends = np.array([log_n + a * math.log(c / result.middle.flops) for c in result.range])
    if abs(ends[1] - ends[0]) < LEAST_CHORD:
        return float(cost.growth(np.array(log_n)))
    low, high = cost.log_per_token(ends)
    return float((high - low) / (ends[1] - ends[0]))


def outside(result: Fit, points: Points) -> list[dict[str, Any]]:
    """Optima that no run was near: each C asked for at which N_opt or D_opt lies outside of what was trained, by which
    factor."""
    ends = {"N": points.n_params, "D": points.n_tokens}
    found = []
    for at in result.optima:
        for name, value in (("N", at.n_params.value), ("D", at.n_tokens.value)):
            if value:
                factor = max(float(ends[name].min()) / value, value / float(ends[name].max()))
                if factor > 1:
                    found.append({"C": at.flops, "what": name, "value": value, "factor": factor})
    return found
