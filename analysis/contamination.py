"""What the training text holds of evaluation sets: read from their files, found once, and kept in the study's results.

A set is a file or a folder: of JSON lines every row is a document, all its strings together; of a folder every .txt
file; of another file every paragraph (blank lines lie between them).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.contamination import WORDS, overlaps
from data.corpus import Corpus
from data.files import read_json, reading, sha256, write_json
from data.json_lines import are_json_rows, json_rows
from data.sources.content import BOM, readable

VERSION = 1  # of the method
Reader = Callable[[], Iterable[tuple[str, list[str]]]]
FILE = "contamination.json"  # below the study's results


def ensure(
    corpus: Corpus,
    path: Path,
    sets: Mapping[str, Path],
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The record at `path` with all these sets (name: file or folder); what it lacks, or has of other data, is found
    and added. Sets that it has beside these stay.

    Raises InputError, one line, for a set that cannot be read or holds no text."""
    hashes = {name: data_hash(name, place) for name, place in sets.items()}
    record = stored(path, corpus.fingerprint) or {
        "version": VERSION, "corpus_fingerprint": corpus.fingerprint, "words": WORDS, "sets": {},
    }  # fmt: skip
    known = {name: overlap["data_hash"] for name, overlap in record["sets"].items()}
    todo = {name: place for name, place in sets.items() if force or known.get(name) != hashes[name]}
    if not todo:
        return record
    for name, place in todo.items():
        if not any(texts for _, texts in documents(name, place)):
            raise InputError(f"{name}: {place} holds no text; give another file")
    readers: dict[str, Reader] = {name: partial(documents, name, place) for name, place in todo.items()}
    for name, overlap in overlaps(corpus, readers, progress).items():
        record["sets"][name] = {"data": str(sets[name]), "data_hash": hashes[name]} | overlap
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record, kind="results")
    return record


def stored(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """The record at `path`; None where there is none, or it is of other text or of an earlier method."""
    try:
        record = dict(read_json(path))
        for overlap in record["sets"].values():
            str(overlap["data_hash"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    same = record.get("version") == VERSION and record.get("corpus_fingerprint") == fingerprint
    return record if same else None


def data_hash(name: str, place: Path) -> str:
    """Of a set's files. Raises InputError where they cannot be read."""
    try:
        digests = [f"{readable(file.name)} {sha256(file)}" for file in _files(name, place)]
    except OSError as error:
        raise InputError(f"{name}: {error.filename or place} cannot be read ({error.strerror})") from None
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def documents(name: str, place: Path) -> Iterator[tuple[str, list[str]]]:
    """(what it is called, its texts) of each document of a set. Raises InputError as `ensure`."""
    for file in _files(name, place):
        with reading(f"{name}: {file}", "give another file"):
            content = file.read_bytes()
        if file.suffix == ".jsonl" or are_json_rows(content):
            for number, row in json_rows(content.split(b"\n"), f"{name}: {file}"):
                yield f"{readable(file.name)} line {number}", list(_strings(row))
            continue
        try:
            text = content.removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}: {file} is not UTF-8 text ({error.reason}); give another file") from None
        if place.is_dir():
            yield readable(file.name), [text]
        else:
            for i, paragraph in enumerate(re.split(r"\n\s*\n", text.strip()), start=1):
                yield f"{readable(file.name)} paragraph {i}", [paragraph]


def _files(name: str, place: Path) -> list[Path]:
    if not place.is_dir():
        if not place.exists():
            raise InputError(f"{name}: {place} does not exist; mend the path")
        return [place]
    if not (files := sorted(place.glob("*.txt"))):
        raise InputError(f"{name}: {place} holds no .txt file; give a folder with text")
    return files


def _strings(value: Any) -> Iterator[str]:
    """All strings of a row, however deep, but for its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
