"""How far the runs of a study are, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .lock import is_locked
from .plan import short, text_table
from .rundir import RunDir
from .spec import RunSpec, StudySpec


def status_rows(study: StudySpec, runs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """One row a run: how far it came and why it stopped.

    A run that says it is running while no process trains it was interrupted; it resumes when it is run again.
    """
    rows = []
    for run in runs:
        rundir = RunDir(study.run_directory(run))
        status, last = rundir.status(), rundir.last_row() or {}
        rows.append(
            {
                "run_id": run.run_id,
                "state": "interrupted"
                if status["state"] == "running" and not is_locked(rundir.path)
                else status["state"],
                "step": last.get("step", 0),
                "n_steps": run.n_steps,
                "n_tokens": last.get("n_tokens", 0),
                "loss": last.get("loss"),
                "tokens_per_s": last.get("tokens_per_s"),
                "checkpoints": len(rundir.checkpoints(verify=False)),
                "evaluated": len(list((rundir.path / "evals").glob("*/validation.json"))),
                "reason": status.get("reason"),
            }
        )
    return rows


def show_status(rows: Sequence[dict[str, Any]]) -> str:
    """The status rows as a table for reading."""
    heads = ("run", "state", "steps", "tokens", "loss", "tokens/s", "checkpoints", "evaluated", "reason")
    lines = []
    for row in rows:
        loss, speed = row["loss"], row["tokens_per_s"]
        lines.append(
            (
                row["run_id"],
                row["state"],
                f"{row['step']:,}/{row['n_steps']:,}",
                short(row["n_tokens"]),
                f"{loss:.3f}" if loss is not None else "-",
                short(speed) if speed else "-",
                str(row["checkpoints"]),
                str(row["evaluated"]),
                row["reason"] or "",
            )
        )
    return text_table(heads, lines)
