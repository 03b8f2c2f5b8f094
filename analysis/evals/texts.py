"""Texts that losses are read on: plain files as they are, or the rows of JSON lines one after the other."""

from __future__ import annotations

from pathlib import Path

from arch.errors import InputError
from data.files import reading, regular
from data.json_lines import are_json_rows, json_rows
from data.sources.content import BOM


def read_text(path: Path, task: str, text_key: str | None = None) -> str:
    """The text at `path`; of JSON lines, where there is a `text_key`, the texts of the rows, nothing between them.

    Raises InputError, one line: no file, no UTF-8, no text, a row that is no record or has no such text; JSON lines
    where there is no `text_key`.
    """
    with reading(f"{task}: {path}", "give a text file"):
        content = regular(path).read_bytes()
    if path.suffix == ".jsonl" or are_json_rows(content):
        if text_key is None:
            raise InputError(f"{task}: {path} holds JSON lines, which this task does not read; give plain text")
        text = "".join(_rows(content, path, task, text_key))
    else:
        try:
            text = content.removeprefix(BOM).decode("utf-8")  # as a corpus is read: line ends stay, and count as bytes
        except UnicodeDecodeError as error:
            raise InputError(f"{task}: {path} is not UTF-8 text ({error.reason}); give another file") from None
    if not text.strip():
        raise InputError(f"{task}: {path} holds no text; give another file")
    return text


def _rows(content: bytes, path: Path, task: str, key: str) -> list[str]:
    found = []
    for number, row in json_rows(content.split(b"\n"), f"{task}: {path}"):
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            has = f"; it has {', '.join(row)}" if isinstance(row, dict) and row else ""
            raise InputError(
                f"{task}: {path}: line {number} has no text {key!r}{has}: name the column in "
                f"evaluation.settings.{task}.text_key"
            )
        found.append(row[key])
    return found
