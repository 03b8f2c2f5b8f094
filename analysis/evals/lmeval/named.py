"""Any task or group of lm-eval by its name, `lm_eval:NAME`: its own YAML file or class, over rows of the data folder.

lm-eval asks `datasets.load_dataset` for its data. While a task is made, that reads lm_eval/DATASET/CONFIG/SPLIT.jsonl
below the data folder instead (without CONFIG where the data set has none), rows with the hub's columns. So whatever a
task reads is local or named as missing, and `scaling eval fetch` writes what is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
from jinja2 import Environment, meta
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from arch.errors import InputError, nearest
from data.files import reading
from data.json_lines import json_rows

from ..task import MissingData
from .harness import built_once
from .sets import DataSet

FOLDER = "lm_eval"
FEWSHOT_SEED = 1234  # as lm-eval's command line
TASKS_DIR = Path(lm_eval.tasks.__file__).parent
HEAD = re.compile(rb"""(?m)^["']?(task|group)["']?: *["']?([^\s"'#\[-][^\n"'#]*?)["']? *(?:#.*)?$""")


def folder_of(path: str, name: str | None, options: Mapping[str, Any]) -> str:
    """Where the splits of a data set lie below the data folder. options: what `load_dataset` is given beside it."""
    where = [FOLDER, path, *([str(name)] if name else [])]
    if files := options.get("data_files"):
        where.append(re.sub(r"[^\w.-]+", "_", str(files))[-80:])
    return "/".join(where)


class MissingRows(MissingData):
    """Rows of `data` are not in the data folder."""

    def __init__(self, folder: Path | None, data: DataSet) -> None:
        super().__init__(
            f"{folder / data.file if folder else f'{data.file} below the data folder'} is missing: {data.split} of "
            f"{data.hub}, a JSON object a line"
        )
        self.data = data


class Rows:
    """The splits of the data sets below `folder`, for lm-eval. files: those that were read."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.files: dict[Path, None] = {}

    def load(self, path: str, name: str | None, split: str | None, options: Mapping[str, Any]) -> Any:
        splits = Splits(self, path, name, folder_of(path, name, options))
        return splits[split] if split else splits

    def read(self, data: DataSet) -> datasets.Dataset:
        path = self.folder / data.file if self.folder else None
        if path is None or not path.exists():
            raise MissingRows(self.folder, data)
        with reading(path, "fetch it again"), open(path, "rb") as lines:
            rows = [row for _, row in json_rows(lines, str(path), "")]
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{path}: must have a JSON object on every line, at least one")
        self.files[path] = None
        return datasets.Dataset.from_list(rows)


class Splits(dict[str, Any]):
    """By split its rows, read when they are asked for."""

    def __init__(self, rows: Rows, hub: str, config: str | None, folder: str) -> None:
        super().__init__()
        self._rows, self._hub, self._config, self._folder = rows, hub, config, folder

    def __missing__(self, split: str) -> Any:
        self[split] = self._rows.read(DataSet(self._hub, self._config, split, f"{self._folder}/{split}.jsonl"))
        return self[split]


_rows: list[Rows] = []  # of the task that is being made
_load_dataset, _fewshot_docs = datasets.load_dataset, ConfigurableTask.fewshot_docs


def load_dataset(path: str, name: str | None = None, *args: Any, split: str | None = None, **options: Any) -> Any:
    if not _rows:
        return _load_dataset(path, name, *args, split=split, **options)
    return _rows[-1].load(path, name, split, options)


def fewshot_docs(task: Any) -> Any:
    """lm-eval reads the rows of examples for every task; here those that ask for none need no file of them."""
    return _fewshot_docs(task) if task.config.num_fewshot else None


datasets.load_dataset, ConfigurableTask.fewshot_docs = load_dataset, fewshot_docs


@contextmanager
def reading_from(rows: Rows) -> Iterator[None]:
    """What lm-eval asks of `datasets` comes from `rows`, and it prints nothing."""
    _rows.append(rows)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        _rows.pop()


@cache
def index() -> dict[str, Entry]:
    """By name where a task or group is defined. lm-eval's own index parses 14,000 files, this reads their heads."""
    entries: dict[str, Entry] = {}
    for path in sorted(TASKS_DIR.rglob("*.yaml"), key=Path.as_posix):
        heads = dict(HEAD.findall(path.read_bytes()))
        kind = Kind.GROUP if b"group" in heads else Kind.TASK
        if head := heads.get(b"group") or heads.get(b"task"):
            entries.setdefault(head.decode(), Entry(head.decode(), kind, path))
    return entries


def _members(name: str) -> list[str]:
    """The tasks and groups that a group names itself, none of a task."""
    entry = index()[name]
    named = load_yaml(entry.yaml_path, resolve_func=False).get("task") if entry.kind is Kind.GROUP else None
    return [item for item in named or [] if isinstance(item, str)]


def _is_whole(name: str) -> bool:
    return name in index() and all(map(_is_whole, _members(name)))


def check_name(name: str) -> None:
    """Raises InputError where lm-eval has no such task or group."""
    if name not in index():
        raise InputError(
            f"lm_eval:{name}: lm-eval has no task or group of that name{nearest(name, list(index()))}; "
            f"`lm-eval ls tasks` lists them"
        )


def show_layout(name: str) -> str:
    """What a task reads, as text: its files below the data folder, and the columns that its prompts name; of a group
    its members. Raises InputError as `check_name` does."""
    check_name(name)
    if members := _members(name):
        return f"a group, each of whose tasks has rows of its own: {', '.join(f'{FOLDER}:{task}' for task in members)}"
    task = load_yaml(index()[name].yaml_path, resolve_func=False)
    if not task.get("dataset_path"):
        return f"rows that its own code asks for ({task.get('class', index()[name].yaml_path)})"
    folder = folder_of(task["dataset_path"], task.get("dataset_name"), task.get("dataset_kwargs") or {})
    splits = [task.get("test_split") or task.get("validation_split")]
    splits += [task.get("fewshot_split") or task.get("training_split")] if task.get("num_fewshot") else []
    lines = [f"{folder}/{split}.jsonl below the data folder, a JSON object a line" for split in dict.fromkeys(splits)]
    prompts = [task.get(key) for key in ("doc_to_text", "doc_to_choice", "doc_to_target")]
    columns = dict.fromkeys(column for prompt in prompts if isinstance(prompt, str) for column in _columns(prompt))
    code = dict.fromkeys(
        value for value in [task.get("process_docs"), *prompts] if isinstance(value, str) and Path(value).is_absolute()
    )
    lines += [f"columns of its prompts: {', '.join(columns)}"] if columns else []
    lines += [f"columns that its own code reads, or makes of others: {place}" for place in code]
    return "\n".join([*lines, f"`scaling eval fetch FOLDER --tasks {FOLDER}:{name}` writes them"])


def _columns(prompt: str) -> list[str]:
    """Of a template of lm-eval, or the one column that it names; none of a function's place."""
    if Path(prompt).is_absolute():
        return []
    if "{{" not in prompt and "{%" not in prompt:
        return [prompt] if prompt.isidentifier() else []
    parsed = Environment().parse(prompt)
    return sorted(meta.find_undeclared_variables(parsed), key=prompt.index)


def make(
    name: str, rows: Rows, overrides: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """{tasks, groups, group_map} as lm-eval's evaluator takes them, of a task or group that `check_name` knows.
    metadata: for tasks that make their own prompts.

    Raises MissingRows, and InputError for a task that cannot be made of these rows, needs pictures or sound, or runs
    what the model writes.
    """
    _refuse(name, load_yaml(index()[name].yaml_path, resolve_func=False))  # before code of the task runs
    entries = dict(index()) if _is_whole(name) else TaskIndex.build([TASKS_DIR])  # this one knows tags, which are slow
    try:
        with reading_from(rows):
            built = TaskFactory(meta=dict(metadata or {})).build(
                entries[name], overrides=dict(overrides), registry=entries
            )
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"needs the package {error.name}, which is not installed: pip install it") from None
    except Exception as error:  # rows of another form, or code of the task that wants what is not there
        raise InputError(f"lm-eval cannot make it of its rows ({type(error).__name__}: {_line(error)})") from None
    groups = {} if isinstance(built, Task) else {group.name: group for group in [built, *built.get_all_groups()]}
    tasks = {task.task_name: task for task in ([built] if isinstance(built, Task) else built.get_all_tasks())}
    for task in tasks.values():
        _refuse(task.task_name, vars(task.config))
        task.set_fewshot_seed(FEWSHOT_SEED)
        built_once(task)
    return {"tasks": tasks, "groups": groups, "group_map": {g.name: g.child_names for g in groups.values()}}


def _refuse(task: str, config: Mapping[str, Any]) -> None:
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        raise InputError(f"{task} needs pictures or sound, which these models do not read")
    if config.get("unsafe_code"):
        raise InputError(f"{task} runs the programs that a model writes, which is not done here")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
