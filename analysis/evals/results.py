"""Stored results of evaluations: which of them are current, and their tables.

<run>/evals/<step>/<task>.json is one result. It is current where its `key` is the one that would be computed now
(`result_key`): weights, task, version, settings, data, precision. Only current results are shown and averaged; the
others are counted. Where a task's data are missing, as on another machine, its results are checked by everything else,
and a line says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from analysis.labels import OF_SOURCE
from analysis.table_files import table_bytes
from arch.amounts import counted
from arch.errors import InputError
from data.files import read_object, write_bytes
from scaling.rundir.saved import WEIGHTS, read_saved
from scaling.study.run import RunSpec

from .task import MissingData, Task

if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S", bound="Scores")
SCHEMA = 2
SHOWN = 3  # checkpoints that a line names
COLUMNS = ("run_id", "step", "n_tokens", "task", "metric", "value")
NOT_SCORES = ("window", "stride", "max_length", "max_new_tokens", "context_length")  # sizes of what was read
STDERR = "_stderr"  # behind a metric's name: the name of its standard error


class Score(NamedTuple):
    """One metric of a task on a checkpoint. error: its standard error over the task's documents, None where the task
    gives none."""

    metric: str
    value: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.value:.5g}" + (f" ± {self.error:.2g}" if self.error is not None else "")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The values of one task on one checkpoint. merged: of the mean of the run's last weights."""

    run_id: str
    step: int
    n_tokens: int
    task: str
    values: Mapping[str, Any]
    merged: bool = False

    @property
    def numbers(self) -> dict[str, float | int | None]:
        """The numbers at the top level of the values, null where a number is missing."""
        return {
            name: value
            for name, value in self.values.items()
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        }

    @property
    def scores(self) -> dict[str, Score]:
        """By metric, those that have a number."""
        numbers = self.numbers
        return {
            name: Score(name, value, numbers.get(name + STDERR))
            for name, value in numbers.items()
            if value is not None and not (name.startswith("n_") or name in NOT_SCORES or name.endswith(STDERR))
        }

    @property
    def plain(self) -> dict[str, Any]:
        """With the numbers alone, for JSON."""
        place = {"run_id": self.run_id, "step": self.step, "n_tokens": self.n_tokens, "task": self.task}
        return place | {"values": self.numbers, "merged": self.merged}


@dataclass(frozen=True, kw_only=True)
class Result(Scores):
    """Scores as they are stored, with everything that decided them. merged_steps: the steps whose weights were
    averaged; seconds: of the evaluation; setup_seconds: before it, for model and data; forward_tokens: that passed
    through the model."""

    version: int
    key: str
    settings: Mapping[str, Any]
    weights_sha256: str
    data_hash: str
    merged_steps: Sequence[int] | None = None
    device: str = ""
    seconds: float = 0.0
    setup_seconds: float = 0.0
    forward_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The content of the result's file."""
        content = {"schema": SCHEMA} | asdict(self)
        del content["merged"]
        if self.merged_steps is None:
            del content["merged_steps"]
        return content


def read_result(path: Path) -> Result:
    """The result at `path`. Raises OSError, or ValueError for a file that is damaged or of another version."""
    content = read_object(path)
    if content.get("schema") != SCHEMA:
        raise ValueError("it was written by another version of this program")
    known = {name: content[name] for name in (item.name for item in fields(Result)) if name in content}
    try:
        return Result(**known | {"merged": "merged_steps" in content})
    except TypeError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True)
class Failure:
    """Why an evaluation failed, in which attempt, and the key that its result would have had."""

    attempt: str
    key: str
    reason: str


def read_failure(path: Path) -> Failure | None:
    """The failure recorded at `path`; None where there is none, or it cannot be read."""
    try:
        content = read_object(path)
        return Failure(str(content["attempt"]), str(content["key"]), str(content["reason"]))
    except (OSError, ValueError, KeyError):
        return None


def result_key(weights: str, task: Task, data_hash: str, autocast: bool) -> str:
    """16 hex digits over everything that decides a result. weights: their SHA-256; autocast: they are read under bf16
    autocast, as their run trained."""
    parts = {
        "schema": SCHEMA,
        "weights": weights,
        "task": task.name,
        "version": task.version,
        "settings": task.settings(),
        "data": data_hash,
        "autocast": autocast,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class CurrentResults:
    """results: the current ones, by run, step and task; left_out: {(task, why): [RUN/STEP]} of the others; unverified:
    {task: why its data could not be checked}."""

    results: list[Result] = field(default_factory=list)
    left_out: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unverified: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """A line for each task and reason; none where nothing is left out."""
        lines = []
        for (task, why), names in self.left_out.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(
                f"left out: {task} of {counted(len(names), 'checkpoint')}, {why}: {', '.join(names[:SHOWN])}{more}"
            )
        return lines + [f"not verified: {task}: {why}" for task, why in self.unverified.items()]

    def to_dict(self) -> dict[str, Any]:
        """What is left out or not verified, as plain data."""
        left_out = [{"task": task, "why": why, "checkpoints": names} for (task, why), names in self.left_out.items()]
        return {"left_out": left_out, "unverified": self.unverified}


def read_current(runs_dir: Path, runs: Sequence[RunSpec], tasks: Iterable[Task]) -> CurrentResults:
    """The current results among everything stored of the runs. Results of tasks that are not in `tasks` are left
    out."""
    current, known = CurrentResults(), {task.name: task for task in tasks}
    hashes: dict[str, str | InputError | None] = {}
    for run in runs:
        for folder in sorted((runs_dir / run.run_id / "evals").glob("[0-9]*")):
            manifest = read_saved(runs_dir / run.run_id / "checkpoints" / folder.name, verify=False, partial=True)
            weights = manifest["files"].get(WEIGHTS, {}).get("sha256") if manifest else None
            for name in sorted({path.stem for pattern in ("*.json", "*.failed") for path in folder.glob(pattern)}):
                if (task := known.get(name)) is None:
                    why = "it is no task of the study"
                elif weights is None:
                    why = "its checkpoint is gone"
                else:
                    if name not in hashes:
                        hashes[name] = _data_hash(task, current)
                    autocast = run.training.precision == "bf16"
                    why = _take(current, folder / f"{name}.json", task, weights, autocast, hashes[name])
                if why:
                    current.left_out.setdefault((name, why), []).append(f"{run.run_id}/{folder.name}")
    return current


def _data_hash(task: Task, current: CurrentResults) -> str | InputError | None:
    """The hash of the task's data as they are now, None where the data are missing, or why there is no hash."""
    try:
        return task.data_hash()
    except MissingData as error:
        current.unverified[task.name] = str(error).removeprefix(f"{task.name}: ")
        return None
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"{error.filename}: {error.strerror}")


def _take(
    current: CurrentResults, path: Path, task: Task, weights: str, autocast: bool, data: str | InputError | None
) -> str:
    """Add the result at `path` to the current ones. Returns why it was left out, "" where it was added."""
    if isinstance(data, InputError):
        return f"it cannot be evaluated ({data})"
    try:
        result: Result | None = read_result(path)
    except (OSError, ValueError):
        result = None
    data_hash = data if data is not None else result.data_hash if result else ""
    key = result_key(weights, task, data_hash, autocast)
    if result and result.key == key:
        current.results.append(result)
        return ""
    failure = read_failure(path.with_suffix(".failed"))
    if failure and (failure.key == key or not result):
        return f"it failed ({failure.reason})"
    return _difference(result, task, weights, data_hash)


def _difference(result: Result | None, task: Task, weights: str, data_hash: str) -> str:
    """Why a stored result is not current."""
    if result is None:
        return "it was written by another version of this program"
    if result.weights_sha256 != weights:
        return "the checkpoint was written anew"
    if result.version != task.version:
        return f"it is of version {result.version} of the task, now {task.version}"
    now, then = json.loads(json.dumps(task.settings())), result.settings
    if changed := [key for key in {**now, **then} if now.get(key) != then.get(key)]:
        return f"its settings changed ({', '.join(changed)})"
    return "its data changed" if result.data_hash != data_hash else "it was read in another precision"


def newest_of_each_run(results: Sequence[S]) -> list[S]:
    """Among a task's results those of each run's last checkpoint, in the order of the runs."""
    newest: dict[str, S] = {}
    for result in results:
        if result.run_id not in newest or result.step > newest[result.run_id].step:
            newest[result.run_id] = result
    return list(newest.values())


def tidy(results: Sequence[Scores]) -> pd.DataFrame:
    """A row for each number: run_id, step, n_tokens, task, metric, value (NaN for null). The held-out loss of a mixture
    also has loss:SOURCE, in nats a token of that source."""
    import pandas as pd

    rows = [
        (*(result.run_id, result.step, result.n_tokens, result.task, name), float("nan") if value is None else value)
        for result in results
        for name, value in (result.numbers | _by_source(result)).items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"step": "int64", "n_tokens": "int64", "value": "float64"})


def _by_source(result: Scores) -> dict[str, float | None]:
    losses = result.values.get("by_source") or {}
    return {OF_SOURCE + source: values["loss"] for source, values in losses.items()}


def write_tables(folder: Path, results: Sequence[Scores], of_forecast: Collection[str]) -> bool:
    """Write evals.parquet of a study's runs, which fits read, and forecast-evals.parquet of its forecast runs, which
    they do not read. Returns whether the first was written. of_forecast: the ids of the forecast runs."""
    forecast = [result for result in results if result.run_id in of_forecast]
    if forecast:
        write_table(folder / "forecast-evals.parquet", tidy(forecast))
    return write_table(folder / "evals.parquet", tidy([row for row in results if row.run_id not in of_forecast]))


def write_table(path: Path, frame: pd.DataFrame) -> bool:
    """Write the table to `path` unless the same is there already. Returns whether it was written."""
    content = table_bytes(frame)
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content, kind="results")
    return True


def score_rows(results: Sequence[Scores]) -> list[dict[str, str]]:
    """A row for each run's newest checkpoint among a task's results, a column for each score."""
    newest = newest_of_each_run(results)
    metrics = list(dict.fromkeys(name for result in newest for name in result.scores))
    return [
        {"run": result.run_id, "step": f"{result.step:,}"}
        | {name: str(result.scores[name]) if name in result.scores else "-" for name in metrics}
        for result in newest
    ]


def score_tables(results: Sequence[Scores]) -> dict[str, list[dict[str, str]]]:
    """The rows of each task, by their title."""
    tables = {}
    for task in dict.fromkeys(result.task for result in results):
        rows = score_rows([result for result in results if result.task == task])
        has_errors = any("±" in cell for row in rows for cell in row.values())
        title = f"{task}, each run's newest checkpoint" + (" (± standard error)" if has_errors else "")
        tables[title] = rows
    return tables
