"""Stored results of evaluations, and their tables. <run>/evals/<step>/<task>.json is one result; matrix.py says which
are current."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.labels import OF_SOURCE
from analysis.table_files import table_bytes
from data.files import read_object, write_bytes

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
COLUMNS = ("run_id", "step", "n_tokens", "task", "metric", "value")
NOT_SCORES = ("window", "max_length", "max_new_tokens", "context_length")  # sizes of what was read
STDERR = "_stderr"  # behind a metric's name: the name of its standard error
Rows = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The values of one task on one checkpoint, with everything that decided them. seconds: of the evaluation;
    setup_seconds: before it, for model and data; forward_tokens: that passed through the model."""

    run_id: str
    step: int
    n_tokens: int
    task: str
    values: Mapping[str, Any]
    version: int
    key: str
    settings: Mapping[str, Any]
    weights_sha256: str
    data_hash: str
    device: str = ""
    seconds: float = 0.0
    setup_seconds: float = 0.0
    forward_tokens: int = 0

    @property
    def numbers(self) -> dict[str, float | int | None]:
        """The numbers at the top level of the values, null where a number is missing."""
        return {
            name: value
            for name, value in self.values.items()
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        }

    @property
    def plain(self) -> dict[str, Any]:
        """With the numbers alone, for JSON."""
        place = {"run_id": self.run_id, "step": self.step, "n_tokens": self.n_tokens, "task": self.task}
        return place | {"values": self.numbers}

    def to_dict(self) -> dict[str, Any]:
        """The content of the result's file."""
        return {"schema": SCHEMA} | asdict(self)


def read_result(path: Path) -> Result:
    """The result at `path`. Raises OSError, or ValueError for a file that is damaged or of another version."""
    content = read_object(path)
    if content.get("schema") != SCHEMA:
        raise ValueError("it was written by another version of this program")
    try:
        return Result(**{item.name: content[item.name] for item in fields(Result) if item.name in content})
    except TypeError as error:
        raise ValueError(str(error)) from None


def newest_of_each_run(results: Sequence[Result]) -> list[Result]:
    """Among a task's results those of each run's last checkpoint, in the order of the runs."""
    newest: dict[str, Result] = {}
    for result in results:
        if result.run_id not in newest or result.step > newest[result.run_id].step:
            newest[result.run_id] = result
    return list(newest.values())


def tidy(results: Sequence[Result]) -> pd.DataFrame:
    """A row for each number: run_id, step, n_tokens, task, metric, value (NaN for null). The held-out loss of a mixture
    also has loss:SOURCE, in nats a token of that source."""
    import pandas as pd

    rows = []
    for result in results:
        sources = result.values.get("by_source") or {}
        numbers = result.numbers | {OF_SOURCE + name: values["loss"] for name, values in sources.items()}
        place = (result.run_id, result.step, result.n_tokens, result.task)
        rows += [(*place, name, float("nan") if value is None else value) for name, value in numbers.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"step": "int64", "n_tokens": "int64", "value": "float64"})


def write_tables(folder: Path, results: Sequence[Result], of_forecast: Collection[str]) -> bool:
    """Write evals.parquet of a study's runs, which fits read, and forecast-evals.parquet of its forecast runs, which
    they do not read, as hf-evals.parquet of other models. Returns whether the first was written. of_forecast: the ids
    of the forecast runs."""
    kinds: dict[str, list[Result]] = {"": [], "forecast-": [], "hf-": []}
    for result in results:
        kinds["hf-" if result.run_id.startswith("hf:") else "forecast-" * (result.run_id in of_forecast)].append(result)
    for kind in ("forecast-", "hf-"):
        if kinds[kind]:
            write_table(folder / f"{kind}evals.parquet", tidy(kinds[kind]))
    return write_table(folder / "evals.parquet", tidy(kinds[""]))


def write_table(path: Path, frame: pd.DataFrame) -> bool:
    """Write the table to `path` unless the same is there already. Returns whether it was written."""
    content = table_bytes(frame)
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content, kind="results")
    return True


def score_tables(results: Sequence[Result]) -> dict[str, Rows]:
    """By task a row for each run's newest checkpoint, a column for each score (± its standard error over the task's
    documents, where the task gives one)."""
    tables = {}
    for task in dict.fromkeys(result.task for result in results):
        newest = newest_of_each_run([result for result in results if result.task == task])
        cells = [_scores(result.numbers) for result in newest]
        metrics = list(dict.fromkeys(name for scores in cells for name in scores))
        tables[task] = [
            {"run": result.run_id, "step": f"{result.step:,}"} | {name: scores.get(name, "-") for name in metrics}
            for result, scores in zip(newest, cells, strict=True)
        ]
    return tables


def _scores(numbers: Mapping[str, float | int | None]) -> dict[str, str]:
    shown = {}
    for name, value in numbers.items():
        if value is not None and not (name.startswith("n_") or name in NOT_SCORES or name.endswith(STDERR)):
            error = numbers.get(name + STDERR)
            shown[name] = f"{value:.5g}" + (f" ± {error:.2g}" if error is not None else "")
    return shown
