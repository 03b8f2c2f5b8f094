"""A study's results (standing.py) as one tidy table: results/evals.parquet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.runs import OF_SOURCE
from analysis.table_files import table_bytes
from data.files import write_bytes

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run_id", "step", "n_tokens", "task", "metric", "value")


def newest_of_each_run(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one task's results the last checkpoint's of each run, in the order the runs came."""
    newest: dict[str, dict[str, Any]] = {}
    for result in results:
        if result["run_id"] not in newest or result["step"] > newest[result["run_id"]]["step"]:
            newest[result["run_id"]] = result
    return list(newest.values())


def tidy(results: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row a number: run_id, step, n_tokens, task, metric, value (NaN for null). Of a mixture's held-out loss
    also loss:SOURCE, in nats a token of that source."""
    import pandas as pd

    rows = [
        (*(result[name] for name in COLUMNS[:4]), metric, float("nan") if value is None else float(value))
        for result in results
        for metric, value in (numbers(result) | _by_source(result)).items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"step": "int64", "n_tokens": "int64", "value": "float64"})


def write_tables(folder: Path, results: Sequence[dict[str, Any]], of_forecast: Collection[str]) -> bool:
    """Write evals.parquet of a study's runs, which fits read, and forecast-evals.parquet of its forecast runs, which
    they do not; whether the first was written. of_forecast: the ids of the latter."""
    rest = [one for one in results if one["run_id"] in of_forecast]
    if rest:
        write_table(folder / "forecast-evals.parquet", tidy(rest))
    return write_table(folder / "evals.parquet", tidy([one for one in results if one["run_id"] not in of_forecast]))


def write_table(path: Path, frame: pd.DataFrame) -> bool:
    """Write the table to `path` where it is not there already; whether it was written."""
    content = table_bytes(frame)
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content, kind="results")
    return True


SIZES = ("window", "stride", "max_length", "max_new_tokens", "context_length")  # of what was read: no scores


def numbers(result: Mapping[str, Any]) -> dict[str, float | int | None]:
    """The numbers at the top level of a result's values, null where there is none."""
    values = result["values"].items()
    return {
        name: value
        for name, value in values
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    }


def _by_source(result: Mapping[str, Any]) -> dict[str, float | None]:
    found = result["values"].get("by_source") or {}
    return {OF_SOURCE + source: values["loss"] for source, values in found.items()}


def scores(result: Mapping[str, Any]) -> dict[str, str]:
    """The scores among a result's numbers for people, with their standard errors where the task gives them."""
    found = numbers(result)
    cells = {}
    for name, value in found.items():
        if value is None or name.startswith("n_") or name in SIZES or name.removesuffix("_stderr") != name:
            continue
        error = found.get(f"{name}_stderr")
        cells[name] = f"{value:.5g}" + (f" ± {error:.2g}" if error is not None else "")
    return cells


def score_tables(results: Sequence[dict[str, Any]]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """(title, heads, rows) of each task: the scores of each run's newest checkpoint among `results`."""
    tables = []
    for task in dict.fromkeys(result["task"] for result in results):
        newest = newest_of_each_run([result for result in results if result["task"] == task])
        cells = [scores(result) for result in newest]
        names = list(dict.fromkeys(name for row in cells for name in row))
        rows = [
            (result["run_id"], f"{result['step']:,}", *(row.get(name, "-") for name in names))
            for result, row in zip(newest, cells, strict=True)
        ]
        title = f"{task}, each run's newest checkpoint" + (
            " (± standard error)" if any("±" in cell for row in cells for cell in row.values()) else ""
        )
        tables.append((title, ("run", "step", *names), rows))
    return tables
