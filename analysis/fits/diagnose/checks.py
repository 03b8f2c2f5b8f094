"""All diagnostics of one group of points: approaches beside each other, what each rests on, backtest and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.fits.cost import Cost, cost_of
from analysis.fits.diagnose.backtest import Row, backtest, summarise, to_rows
from analysis.fits.diagnose.believe import verdict_on
from analysis.fits.diagnose.evidence import Evidence
from analysis.fits.diagnose.influence import Reread, leave_out, sensitivity
from analysis.fits.diagnose.side_by_side import compare_approaches, identities, outside
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.forms import FORMS, OVER_TRAINING, PLAIN
from analysis.fits.parametric.many import HUBER
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError

PARAMETRIC = "parametric"


def check_laws(
    points: Points | Mapping[str, Points],
    results: Sequence[FitResult],
    *,
    cost: Cost | None = None,
    noise: SeedNoise | Mapping[str, SeedNoise | None] | None = None,
    others: Mapping[str, Reread] | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    objective: str = HUBER,
    form: str = PLAIN,
) -> tuple[list[FitResult], dict[str, Any]]:
    """`results` (one an approach) with their verdicts, and everything that these rest on as plain data: `compare`, and
    by approach `identities`, `outside`, `by_run`, `by_size`, `sensitivity`, `backtest` with its `summary`. What cannot
    be computed is in `not_done`, with its reason. points: what was fitted, by approach where they differ (ends and
    curves of the same runs). noise: between seeds, by approach where they were fitted with others; others: other
    readings of the same runs by name; objective and form: of the parametric approach.

    Raises InputError where a parametric result is of another form than `form`: its checks would be of another law."""
    beside = compare_approaches(results)
    told: dict[str, Any] = {"compare": beside, "approaches": {}}
    judged = []
    for result in results:
        name = result.approach
        of_form = result.diagnostics.get("form", FORMS[form])
        if of_form != FORMS[form]:
            raise InputError(f"{name}: fitted as {of_form}, to be checked as {FORMS[form]}")
        fitted = points if isinstance(points, Points) else points[name]
        found: dict[str, Any] = {"identities": None, "outside": outside(result, fitted), "backtest": []}
        found |= {key: [] for key in ("by_run", "by_size", "sensitivity")}
        skipped: dict[str, str] = {}
        if name == PARAMETRIC and form == OVER_TRAINING:
            skipped["a"] = "alpha = beta is assumed, so nothing moves a: the checks are of N_opt and the losses"
        seeds = noise[name] if isinstance(noise, Mapping) else noise
        rows: list[Row] = []
        try:
            law = cost or cost_of(fitted)
        except InputError as error:
            skipped |= dict.fromkeys(("identities", "by_run", "by_size", "sensitivity", "backtest"), str(error))
        else:
            found["identities"] = identities(result, law)
            middle = result.diagnostics.get("middle")
            for key in ("by_run", "by_size", "sensitivity"):
                if result.params.get("a") is None or middle is None:
                    skipped[key] = "N_opt is not identified"
                    continue
                try:
                    if key == "sensitivity":
                        found[key] = sensitivity(fitted, name, middle, law, others, objective, form)
                    else:
                        found[key] = leave_out(fitted, name, middle, law, key.removeprefix("by_"), objective, form)
                except InputError as error:
                    skipped[key] = str(error)
            options: dict[str, Any] = {"n_replicates": n_replicates, "seed": seed, "objective": objective, "form": form}
            try:
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
