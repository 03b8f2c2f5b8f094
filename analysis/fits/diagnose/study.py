"""All diagnostics of one group of points: approaches beside each other, what each rests on, backtest and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.fits.cost import Cost, cost_of
from analysis.fits.diagnose.backtest import backtest, summarise, to_rows
from analysis.fits.diagnose.believe import Evidence, judge
from analysis.fits.diagnose.influence import leave_out, sensitivity
from analysis.fits.diagnose.side_by_side import compare, identities, outside
from analysis.fits.noise import SeedNoise
from analysis.fits.parametric.many import HUBER
from analysis.fits.points import Points
from analysis.fits.result import FitResult
from arch.errors import InputError


def diagnose(
    points: Points | Mapping[str, Points],
    results: Sequence[FitResult],
    *,
    cost: Cost | None = None,
    noise: SeedNoise | None = None,
    others: Mapping[str, Points] | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    objective: str = HUBER,
) -> tuple[list[FitResult], dict[str, Any]]:
    """`results` (one an approach) with their verdicts, and everything that these rest on as plain data: `compare`, and
    by approach `identities`, `outside`, `by_run`, `by_size`, `sensitivity`, `backtest` with its `summary`. What cannot
    be computed is in `not_done`, with its reason. points: what was fitted, by approach where they differ (ends and
    curves of the same runs). others: the same runs with C by other conventions;
    objective: of the parametric approach."""
    beside = compare(results)
    told: dict[str, Any] = {"compare": beside, "approaches": {}}
    judged = []
    for result in results:
        name, skipped = result.approach, {}
        fitted = points if isinstance(points, Points) else points[name]
        law = cost or cost_of(fitted)
        found: dict[str, Any] = {"identities": identities(result, law), "outside": outside(result, fitted)}
        middle = result.diagnostics.get("middle")
        for key in ("by_run", "by_size", "sensitivity"):
            found[key] = []
            if result.params.get("a") is None or middle is None:
                skipped[key] = "N_opt is not identified"
                continue
            try:
                if key == "sensitivity":
                    found[key] = sensitivity(fitted, name, middle, law, others, objective)
                else:
                    found[key] = leave_out(fitted, name, middle, law, key.removeprefix("by_"), objective)
            except InputError as error:
                skipped[key] = str(error)
        options: dict[str, Any] = {"n_replicates": n_replicates, "seed": seed, "objective": objective}
        rows = backtest(fitted, name, cost=law, noise=noise, **options)
        evidence = Evidence(
            found["by_size"], beside["pairs"], found["identities"], found["outside"], found["sensitivity"], rows
        )
        told["approaches"][name] = found | {
            "backtest": to_rows(rows),
            "summary": summarise(rows),
            "not_done": skipped,
        }
        judged.append(replace(result, verdict=judge(result, evidence)))
    return judged, told
