"""JSON of the right syntax and the wrong form: one value of a file changed for another, of any type, or left out."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from data.files import SEAL, json_bytes

ZOO: tuple[Any, ...] = (None, [], {}, "x", "", 3, -1, 10**18, True, 1.5, [None], [["x"]], {"a": 1}, "../../x", "\ud800")
GONE = object()


def places(value: Any, path: tuple[Any, ...] = (), most: int = 20) -> Iterator[tuple[Any, ...]]:
    """Where a value and everything in it is; of a list or mapping at most the first `most` entries."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in [*inside][:most]:
        yield from places(inner, (*path, key), most)


def with_another(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    """`whole` with another value at a place, or without what is there."""
    if not path:
        return None if value is GONE else value
    changed = copy.deepcopy(whole)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def changes(whole: Any, most: int) -> Iterator[bytes]:
    """`most` files at the most, each with one value changed, drawn from all places and wrong values; of an object with
    the right digest."""
    if isinstance(whole, dict):
        whole = {key: value for key, value in whole.items() if key != SEAL}
    drawn = [(path, value) for path in places(whole) for value in (*ZOO, GONE)]
    random.Random(0).shuffle(drawn)
    for path, value in drawn[:most]:
        yield json_bytes(with_another(whole, path, value))
