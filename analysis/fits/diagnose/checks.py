"""All diagnostics of one group of points: approaches beside each other, what each rests on, backtest and verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from analysis.fits.cost import Cost, cost_of
from analysis.fits.diagnose.backtest import Row, backtest, summarise, to_rows
from analysis.fits.diagnose.believe import verdict_on
from analysis.fits.diagnose.evidence import Evidence
from analysis.fits.diagnose.influence import Reread, leave_out, sensitivity
from analysis.fits.diagnose.side_by_side import compare_approaches, identities, outside
from analysis.fits.fit import PARAMETRIC, Fit
from analysis.fits.forms import FORMS, OVER_TRAINING, PLAIN
from analysis.fits.noise import SeedNoise
from analysis.fits.points import Points
from analysis.fits.solver import HUBER
from arch.errors import InputError

LEFT_OUT = ("by_size", "sensitivity")


def check_laws(
    points: Points | Mapping[str, Points],
    results: Sequence[Fit],
    *,
    cost: Cost | None = None,
    noise: SeedNoise | Mapping[str, SeedNoise | None] | None = None,
    others: Mapping[str, Reread] | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    objective: str = HUBER,
    form: str = PLAIN,
    said: Callable[[float], None] = lambda share: None,
) -> tuple[list[Fit], dict[str, Any]]:
    """`results` (one an approach) with their verdicts, and everything that these rest on as plain data: `compare`, and
    by approach `identities`, `outside`, `by_size`, `sensitivity`, `backtest` with its `summary`. What cannot
    be computed is in `not_done`, with its reason. points: what was fitted, by approach where they differ (ends and
    curves of the same runs). noise: between seeds, by approach where they were fitted with others; others: other
    readings of the same runs by name; objective and form: of the parametric approach; said: called with the share that
    is done.

    Raises InputError where a parametric result is of another form than `form`: its checks would be of another law."""
    beside = compare_approaches(results)
    told: dict[str, Any] = {"compare": beside, "approaches": {}}
    judged = []
    for place, result in enumerate(results):
        name = result.approach
        of_form = FORMS[form] if result.parametric is None else result.parametric.form
        if of_form != FORMS[form]:
            raise InputError(f"{name}: fitted as {of_form}, to be checked as {FORMS[form]}")
        fitted = points if isinstance(points, Points) else points[name]
        share = partial(_part, said, place, len(results))
        found, skipped, law = _rests_on(result, fitted, cost, others, objective, form, share)
        rows: list[Row] = []
        if law is not None:
            options: dict[str, Any] = {"n_replicates": n_replicates, "seed": seed, "objective": objective, "form": form}
            try:
                seeds = noise[name] if isinstance(noise, Mapping) else noise
                rows = backtest(fitted, name, cost=law, noise=seeds, **options)
            except InputError as error:
                skipped["backtest"] = str(error)
        evidence = Evidence(
            found["by_size"],
            beside["pairs"],
            found["identities"],
            found["outside"],
            found["sensitivity"],
            rows,
            skipped,
        )
        told["approaches"][name] = found | {
            "backtest": to_rows(rows),
            "summary": summarise(rows),
            "not_done": skipped,
        }
        judged.append(replace(result, verdict=verdict_on(result, evidence)))
    return judged, told


def _part(said: Callable[[float], None], place: int, n: int, share: float) -> None:
    said((place + share) / n)


def _rests_on(
    result: Fit,
    points: Points,
    cost: Cost | None,
    others: Mapping[str, Reread] | None,
    objective: str,
    form: str,
    said: Callable[[float], None],
) -> tuple[dict[str, Any], dict[str, str], Cost | None]:
    """What one law rests on, what could not be told of it with the reason, and the cost of a token, where it is known.
    said: called with the share that is done, of which the backtest is the last quarter."""
    found: dict[str, Any] = {"identities": None, "outside": outside(result, points), "backtest": []}
    found |= {key: [] for key in LEFT_OUT}
    skipped: dict[str, str] = {}
    name = result.approach
    if name == PARAMETRIC and form == OVER_TRAINING:
        skipped["a"] = "alpha = beta is assumed, so nothing moves a: the checks are of N_opt and the losses"
    try:
        law = cost or cost_of(points)
    except InputError as error:
        return found, skipped | dict.fromkeys(("identities", *LEFT_OUT, "backtest"), str(error)), None
    found["identities"] = identities(result, law)
    for place, key in enumerate(LEFT_OUT):
        step = partial(_part, said, place, len(LEFT_OUT) + 1)
        step(0.0)
        if result.a.value is None or result.middle is None:
            skipped[key] = "N_opt is not identified"
            continue
        try:
            if key == "sensitivity":
                found[key] = sensitivity(points, name, result.middle.flops, law, others, objective, form)
            else:
                found[key] = leave_out(
                    points, name, result.middle.flops, law, key.removeprefix("by_"), objective, form, step
                )
        except InputError as error:
            skipped[key] = str(error)
    said(1 - 1 / (len(LEFT_OUT) + 1))
    return found, skipped, law
