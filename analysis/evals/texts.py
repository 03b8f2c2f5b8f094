"""Texts that losses are read on: plain files as they are, or the rows of a JSONL file one after the other."""

from __future__ import annotations

import json
from pathlib import Path

from arch.errors import InputError


def read_text(path: Path, task: str, text_key: str | None = None) -> str:
    """The text at `path`; of a .jsonl file, where there is a `text_key`, the texts of its rows, nothing between them.

    Raises InputError, one line: no file, no UTF-8, no text, a row that is no record or has no such text.
    """
    try:
        text = path.read_bytes().decode("utf-8")  # as a corpus is read: line ends stay, and count as bytes
    except UnicodeDecodeError as error:
        raise InputError(f"{task}: {path} is not UTF-8 text ({error.reason}); give another file") from None
    except OSError as error:
        raise InputError(f"{task}: {path} cannot be read ({error.strerror}); give a text file") from None
    if text_key is not None and path.suffix == ".jsonl":
        text = "".join(_rows(text, path, task, text_key))
    if not text.strip():
        raise InputError(f"{task}: {path} holds no text; give another file")
    return text


def _rows(text: str, path: Path, task: str, key: str) -> list[str]:
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{task}: {path}: line {number} is not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            has = f"; it has {', '.join(row)}" if isinstance(row, dict) and row else ""
            raise InputError(
                f"{task}: {path}: line {number} has no text {key!r}{has}: name the column in "
                f"evaluation.settings.{task}.text_key"
            )
        found.append(row[key])
    return found
