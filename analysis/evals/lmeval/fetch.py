"""`scaling eval fetch`: the data sets as JSONL, once, on a machine with a network; nothing else ever downloads.

Each file is written whole or not at all; fetched.json names every file's source, revision, rows and SHA-256, so that a
later start takes what is there and intact and another machine can verify its copy.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest
from data.files import read_json, sha256, write_bytes, write_json

from ..niah.settings import VARIANTS
from .sets import DATA, PRESETS, TASKS, DataSet

RECORD = "fetched.json"
NAMED = "lm_eval:"  # before the names of tasks that are not in TASKS
Download = Callable[[DataSet], tuple[list[dict[str, Any]], str]]  # rows and revision


@dataclass(frozen=True)
class Fetched:
    """The outcome for a data set. state: "there", "fetched" or "failed"; reason: of a failure."""

    name: str
    file: str
    state: str
    rows: int | None = None
    reason: str | None = None


def data_sets(words: Iterable[str] | None) -> list[str]:
    """Keys of DATA that the named tasks, presets and data sets need (all where `words` is None), then what is named
    `lm_eval:NAME`. Raises InputError for an unknown name."""
    if words is None:
        return list(DATA)
    wanted, named = set[str](), []
    for word in words:
        if word.startswith(NAMED):
            from .named import check_name

            check_name(word.removeprefix(NAMED))
            named.append(word)
            continue
        if word == "niah" or word in VARIANTS:
            raise InputError(
                f"eval fetch: the text of {word} is yours: leave it out, and put .txt files into FOLDER/needle"
            )
        if word not in TASKS and word not in PRESETS and word not in DATA:
            raise InputError(f"eval fetch: {word!r} is unknown{nearest(word, [*PRESETS, *TASKS, *DATA])}")
        wanted |= {TASKS[task].data if task in TASKS else task for task in PRESETS.get(word, (word,))}
    return [name for name in DATA if name in wanted] + named


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """The data sets that are missing or not intact, and tasks by name that lack rows."""
    return [
        name
        for name in names
        if (_lacking(folder, name) if name.startswith(NAMED) else _stored(folder, DATA[name]) is None)
    ]


def _lacking(folder: Path, name: str) -> DataSet | None:
    """The first rows that lm-eval's task asks for and `folder` does not have. Raises InputError where it cannot be made
    of those that are there."""
    from .named import MissingRows, Rows, make

    try:
        make(name.removeprefix(NAMED), Rows(folder), {})
    except MissingRows as error:
        return error.data
    return None


def from_hub(data: DataSet) -> tuple[list[dict[str, Any]], str]:
    """From the Hugging Face hub."""
    from huggingface_hub import HfApi, hf_hub_download

    revision = str(HfApi().dataset_info(data.hub, timeout=20).sha)
    if data.archive is None:
        from datasets import load_dataset

        table = load_dataset(data.hub, data.config, split=data.split, revision=revision)
        return [dict(row) for row in table], revision
    archive, _, member = data.archive.partition(":")
    path = hf_hub_download(data.hub, archive, repo_type="dataset", revision=revision)
    return rows_of_archive(Path(path), member), revision


def rows_of_archive(path: Path, member: str) -> list[dict[str, Any]]:
    """The records of a JSONL file inside a zip."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as handle:
        return [json.loads(line) for line in io.TextIOWrapper(handle, encoding="utf-8") if line.strip()]


def fetch(
    folder: Path, names: Iterable[str], say: Callable[[str], None], download: Download = from_hub
) -> list[Fetched]:
    """Fetch the data sets `names` into `folder`; a failure is reported, and the others are fetched all the same. Raises
    InputError where the folder cannot be written or its record is damaged."""
    results = []
    for name in names:
        if name.startswith(NAMED):
            result = _fetch_named(folder, name, download)
        else:
            result = _fetch(folder, name, DATA[name], download)
        say(f"{name}: {result.state}{f' ({result.reason})' if result.reason else ''}")
        results.append(result)
    return results


def _fetch_named(folder: Path, name: str, download: Download) -> Fetched:
    """What lm-eval's task asks for, file after file, until it can be made."""
    result = Fetched(name, "", "there")
    try:
        while result.state != "failed" and (data := _lacking(folder, name)) is not None:
            result = _fetch(folder, name, data, download)
    except InputError as error:
        result = replace(result, state="failed", reason=str(error))
    return result


def _fetch(folder: Path, name: str, data: DataSet, download: Download) -> Fetched:
    path = folder / data.file
    if (n_rows := _stored(folder, data)) is not None:
        return Fetched(name, data.file, "there", n_rows)
    try:
        rows, revision = download(data)
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    except Exception as error:  # whatever a network, a hub or an archive can come up with
        text = " ".join(str(error).split())
        return Fetched(name, data.file, "failed", reason=f"{type(error).__name__}: {text[:200]}")
    if not rows:
        return Fetched(name, data.file, "failed", reason=f"the split {data.split} of {data.hub} is empty at the hub")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content, kind="data")
        entry = {"source": asdict(data), "revision": revision, "rows": len(rows), "sha256": sha256(path)}
        write_json(folder / RECORD, _record(folder) | {data.file: entry}, kind="data")
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror}; give another folder") from None
    return Fetched(name, data.file, "fetched", len(rows))


def _stored(folder: Path, data: DataSet) -> int | None:
    """How many rows an intact file has; None where it is missing or differs from what was fetched."""
    entry, path = _record(folder).get(data.file), folder / data.file
    return int(entry["rows"]) if entry and path.exists() and sha256(path) == entry["sha256"] else None


def _record(folder: Path) -> dict[str, Any]:
    try:
        return dict(read_json(folder / RECORD))
    except FileNotFoundError:
        return {}
    except NotADirectoryError:
        raise InputError(f"{folder}: is a file; give a folder") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / RECORD}: cannot be read ({error}); remove it to fetch everything again") from None
