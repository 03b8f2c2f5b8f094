"""JSON lines: one JSON object a line, the text under one of its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from arch.errors import InputError, nearest

from .content import BOM
from .documents import Document, ReadOptions, usable
from .text import not_utf8

LONGEST_LINE = 256 << 20  # bytes; a longer one is no record, and would fill the memory


def read_jsonl(handle: IO[bytes], name: str, how: ReadOptions, refuses: bool = False) -> Iterator[Document]:
    """The text of every record. Raises InputError where the first one lacks the key, for a line of more than 256 MiB
    and, where it `refuses`, for a line that is no UTF-8; other records without text, or with its key twice, are
    counted."""
    read_any, counts, text_key = False, how.counts, how.text_key

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if sum(key == text_key for key, _ in pairs) > 1:
            raise ValueError("two texts")
        return dict(pairs)

    for number, line in enumerate(iter(lambda: handle.readline(LONGEST_LINE), b""), start=1):
        if how.is_enough:
            return
        counts.read_bytes += len(line)
        if len(line) >= LONGEST_LINE:
            raise InputError(f"corpus.source: {name} line {number} is longer than {LONGEST_LINE >> 20} MiB; split it")
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"), object_pairs_hook=once)
        except UnicodeDecodeError:
            if refuses:
                raise InputError(f"corpus.source: {not_utf8(f'{name} line {number}', line)}") from None
            counts.invalid_utf8 += 1
            continue
        except (ValueError, RecursionError):
            counts.invalid_records += 1
            continue
        if isinstance(record, dict) and text_key not in record and not read_any:
            raise InputError(
                f"corpus.text_key: {name} line {number} has no key {text_key!r}{nearest(text_key, sorted(record))}"
            )
        text = record.get(text_key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            counts.invalid_records += 1
            continue
        read_any = True
        if usable(text, counts):
            yield Document(f"{name}:{number}", text)
