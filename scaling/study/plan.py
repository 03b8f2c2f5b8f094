"""What a study will cost before anything runs: parameters, tokens, steps and FLOP of every run. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arch.amounts import counted
from arch.registry import warnings_of
from flops import cost_table

from .axes import unread
from .cost import MERGED_KEYS, merged_files
from .run import RunSpec
from .spec import StudySpec

PF_DAY = 8.64e19  # FLOP; the unit of the paper's laws
ADVISED_FLOPS = 0.4 * 989e12  # an H200's dense bf16 peak at 40 % utilisation, for the reader's sense of proportion


def plan(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """{"study", "directory", "sets", "runs": [row], "totals", "notes", "warnings": [line]}, forecasts (`role`) among
    the runs; FLOP keys name their convention. A row has none for a convention that does not cover its architecture, and
    then neither have the totals.

    `n_tokens` counts whole batches, so it may exceed the study file's number by less than one batch. Of a branch
    `n_tokens`, `n_steps` and `flops_*` are those of its point, from the trunk's first token on; `trained_tokens` and
    `spent_*` what it takes beside its trunk. Totals and `share` are of what is spent.
    """
    rows = [plan_row(run) for run in runs]
    totals: dict[str, Any] = {
        "n_tokens": sum(row["trained_tokens"] for row in rows),
        "n_steps": sum(run.trained_steps for run in runs),
        "n_checkpoints": sum(row["n_checkpoints"] for row in rows),
    }
    for convention in ("exact", "paper", "6nd"):
        key = f"spent_{convention}"
        if all(key in row for row in rows):
            totals[f"flops_{convention}"] = sum(row[key] for row in rows)
    for row in rows:
        row["share"] = row["spent_exact"] / totals["flops_exact"]
    totals |= {key: sum(row[key] for row in rows) for key in ("checkpoint_bytes", *MERGED_KEYS)}
    totals["pf_days_exact"] = totals["flops_exact"] / PF_DAY
    totals["h200_days_at_40_percent"] = totals["flops_exact"] / ADVISED_FLOPS / 86_400
    return {
        "study": study.name,
        "directory": str(study.directory),
        "sets": list(study.sets),
        "runs": rows,
        "totals": totals | {"n_runs": len(rows)},
        "notes": [*_fewer_points(study), *dict.fromkeys(note for run in runs for note in run.notes)],
        "warnings": [*confounded(runs), *_not_beyond(rows)],
    }


def _fewer_points(study: StudySpec) -> list[str]:
    """A line for each axis that means nothing to some of the architectures."""
    without = unread(study.grid.axes, study.grid.archs)
    return [f"axis {field} means nothing to {', '.join(archs)}: one run there" for field, archs in without.items()]


def _not_beyond(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a round about forecast runs that lie inside of what is fitted: the grid, and the rounds before."""
    most: dict[tuple[str, int], float] = {}  # by architecture and round, 0 of the grid
    for row in rows:
        place = row["arch"], row["round"] or 0
        most[place] = max(most.get(place, 0.0), row["flops_exact"])
    lines = []
    for number in sorted({row["round"] for row in rows} - {None}):
        before = {
            arch: max(most.get((arch, place), 0.0) for place in range(number)) for arch in {arch for arch, _ in most}
        }
        inside = [row for row in rows if row["round"] == number and row["flops_exact"] <= before[row["arch"]]]
        if inside:
            of_arch = "of their architecture"
            largest = (
                f"the grid's largest {of_arch}"
                if number == 1
                else f"the largest {of_arch} in the grid and rounds before"
            )
            lines.append(
                f"forecast: {counted(len(inside), 'run takes', 'runs take')} no more compute than {largest} "
                f"({inside[0]['run_id']}): a forecast is of a run beyond the fits"
            )
    return lines


def confounded(runs: Sequence[RunSpec]) -> list[str]:
    """A line for each reason why a law of these runs would be one of more than size and tokens."""
    return warnings_of((run.size, run.config) for run in runs)


def plan_row(run: RunSpec) -> dict[str, Any]:
    cost = cost_table(run.config)
    checkpoints = len(run.checkpoint_steps)
    row: dict[str, Any] = {"run_id": run.run_id, "arch": run.arch, "size": run.size, "seed": run.seed}
    row |= {"point": run.point, "role": run.role, "round": run.round + 1 if run.is_forecast else None}
    row |= {key: cost[key] for key in ("n_params", "n_params_non_embedding")}
    row |= {"n_tokens": run.n_tokens, "n_steps": run.n_steps, "batch_tokens": run.training.batch_tokens}
    row |= {"trunk": run.trunk, "trained_tokens": run.trained_tokens}
    row |= {
        "lr": None if run.is_pending else run.training.peak_lr,
        "n_checkpoints": checkpoints,
        "spec_hash": None if run.is_pending else run.spec_hash,
    }
    row["flops_per_token_train"] = cost["flops_per_token_train"]
    for convention, per_token in cost["flops_per_token_train"].items():
        row[f"flops_{convention}"] = float(per_token) * run.n_tokens
        row[f"spent_{convention}"] = float(per_token) * run.trained_tokens
    row["checkpoint_bytes"] = checkpoints * cost["n_params"] * (2 if run.training.checkpoint_dtype == "bf16" else 4)
    return row | merged_files(run)
