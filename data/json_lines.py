"""JSON lines of which every row counts, as those of evaluation sets. A corpus counts what it cannot read:
data/sources/jsonl.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from arch.errors import InputError
from data.files import parse_json
from data.sources.content import BOM


def json_rows(lines: Iterable[bytes], where: str, advice: str = "") -> Iterator[tuple[int, Any]]:
    """(number of the line, its value) of each that is not blank. Raises InputError, which begins with `where` and ends
    with `advice`, for a line that is no JSON (data.files.parse_json)."""
    for number, line in enumerate(lines, start=1):
        line = line.removeprefix(BOM) if number == 1 else line
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise InputError(f"{where}: line {number} is not JSON ({error}){advice}") from None
        yield number, row


def are_json_rows(content: bytes) -> bool:
    """Whether the first line of a text that is not blank is a JSON object."""
    first = content.removeprefix(BOM).lstrip().partition(b"\n")[0]
    try:
        return first[:1] == b"{" and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False
