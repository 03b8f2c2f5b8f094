"""All stored results of a study as one tidy table: results/evals.parquet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.files import read_json, read_manifest, write_bytes
from scaling.checkpoint import WEIGHTS

from .matrix import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run_id", "step", "n_tokens", "task", "metric", "value")


def stored_results(runs_dir: Path, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Every result of the weights that lie there now, by run, step and task; others' are left out."""
    found = []
    for run_id in run_ids:
        for folder in sorted((runs_dir / run_id / "evals").glob("[0-9]*")):
            manifest = read_manifest(runs_dir / run_id / "checkpoints" / folder.name, verify=False)
            weights = manifest["files"].get(WEIGHTS, {}).get("sha256") if manifest else None
            for path in sorted(folder.glob("*.json")):
                try:
                    result = read_json(path)
                    if result["schema"] == SCHEMA and result["weights_sha256"] == weights:
                        found.append(result)
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # of another version, which the next evaluation replaces
    return found


def newest_of_each_run(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one task's results the last checkpoint's of each run, in the order the runs came."""
    newest: dict[str, dict[str, Any]] = {}
    for result in results:
        if result["run_id"] not in newest or result["step"] > newest[result["run_id"]]["step"]:
            newest[result["run_id"]] = result
    return list(newest.values())


def tidy(results: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row a number: run_id, step, n_tokens, task, metric, value (NaN for null)."""
    import pandas as pd

    rows = [
        (*(result[name] for name in COLUMNS[:4]), metric, float("nan") if value is None else float(value))
        for result in results
        for metric, value in result["values"].items()
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"step": "int64", "n_tokens": "int64", "value": "float64"})


def write_table(path: Path, frame: pd.DataFrame) -> bool:
    """Write the table to `path` where it is not there already; whether it was written."""
    import pandas as pd

    if path.exists() and pd.read_parquet(path).equals(frame):
        return False
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, buffer.getvalue(), kind="results")
    return True
