"""What became of predictions: the measured losses beside them, held against their intervals and two baselines, the pure
power law and no change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.fits.losses import RunCurves
from analysis.fits.settings import FitSettings
from analysis.forecast.stored import digest
from analysis.run_table import RunTable
from analysis.source.base import NOT_TRAINED, WAITING

NOT_EVALUATED = "not evaluated at its end"
OTHERWISE = "trained without this prediction"
SAME = 1e-6  # of tokens


def outcome(stored: Mapping[str, Any], tables: RunTable | None) -> dict[str, Any]:
    """The stored predictions with, in each row of "runs" and "means", `measured` (None: `state` says why), `error`,
    `power_law_error` and `unchanged_error` (measured over predicted, over the power law's, and over the loss of the
    largest fitted runs, less 1), `held` (None without an interval), `unchanged_held`, whether the interval contains the
    loss of those runs too, and `of_drop`, the difference from the prediction as a share of the predicted drop; and
    "n": {"trained", "with_interval", "held"}.

    tables: of the forecast runs that have begun. A mean is of all its seeds, or is not there.
    """
    settings = FitSettings(**stored["settings"])
    found = {row["run_id"]: _measured(row, tables, settings, digest(stored, row)) for row in stored["runs"]}
    runs = [row | _held(row, *found[row["run_id"]]) for row in stored["runs"]]
    means = [row | _held(row, *_mean_of([found[run] for run in row["run_ids"]])) for row in stored["means"]]
    judged = [row["held"] for row in runs if row["held"] is not None]
    trained = sum(row["measured"] is not None for row in runs)
    counted = {"runs": len(runs), "trained": trained, "with_interval": len(judged), "held": sum(judged)}
    return dict(stored) | {"runs": runs, "means": means, "n": counted}


def _measured(
    row: Mapping[str, Any], tables: RunTable | None, settings: FitSettings, predicted: str
) -> tuple[float | None, str]:
    """The loss at the run's end, as fits read it, and the state that explains where there is none."""
    if tables is None or not len(mine := tables.runs[tables.runs["run_id"] == row["run_id"]]):
        return None, NOT_TRAINED
    state = str(mine["state"].iloc[0])
    if state != "done":
        return None, NOT_TRAINED if state == WAITING else state
    if "prediction" not in mine or mine["prediction"].iloc[0] != predicted:
        return None, OTHERWISE
    tokens, loss = RunCurves(tables, settings).of(str(row["run_id"]))
    if not len(tokens) or abs(tokens[-1] / row["read_at"] - 1) > SAME:
        return None, NOT_EVALUATED
    return float(loss[-1]), state


def _mean_of(found: Sequence[tuple[float | None, str]]) -> tuple[float | None, str]:
    known = [loss for loss, _ in found if loss is not None]
    if len(known) < len(found):
        return None, next(state for loss, state in found if loss is None)
    return float(np.mean(known)), found[0][1]


def _held(row: Mapping[str, Any], measured: float | None, state: str) -> dict[str, Any]:
    told: dict[str, Any] = {"measured": measured, "state": state}
    told |= dict.fromkeys(("error", "held", "of_drop", "power_law_error", "unchanged_error", "unchanged_held"))
    if measured is None or row["loss"] is None:
        return told
    largest = row["loss"] + row["drop"]  # the mean loss of the largest fitted runs
    told["unchanged_error"] = measured / largest - 1
    if (ends := row["interval"]) is not None:
        told["held"] = bool(ends[0] <= measured <= ends[1])
        told["unchanged_held"] = bool(ends[0] <= largest <= ends[1])
    if row["power_law"] is not None:
        told["power_law_error"] = measured / row["power_law"] - 1
    told["of_drop"] = (measured - row["loss"]) / row["drop"] if row["drop"] > 0 else None
    return told | {"error": measured / row["loss"] - 1}
