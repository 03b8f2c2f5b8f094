"""`flops ladder`: the sizes of a ladder by architecture, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arch.amounts import counted
from arch.errors import InputError

from .ladder import MOST, MOST_SIZES, Ladder, rung
from .quantity import quantity, whole
from .sizing import SizedModel
from .tables import Column, Table
from .views import View, size_columns, sized_row

Rungs = dict[str, list[SizedModel]]  # by the size's name, a model for each architecture


def ladder_of(
    text: str, by: str = "params", aspect: str | None = None, head_dim: str | None = None, layers: int | None = None
) -> Ladder:
    """The ladder of "1M:60M:6" and the options beside it. Raises InputError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{text!r} is no ladder: write from, to and how many sizes, as 1M:60M:6")
    start, end = (quantity(part, "FROM:TO:COUNT", MOST) for part in parts[:2])
    count = whole(parts[2], "FROM:TO:COUNT", MOST_SIZES)
    if aspect is not None and ":" in aspect:
        raise InputError(f"--aspect: {aspect!r}: a ladder takes one width over layers, as 64")
    try:
        return Ladder(
            start,
            end,
            count,
            by,
            None if aspect is None else quantity(aspect, "--aspect", 1e5),
            None if head_dim is None else whole(head_dim, "--head-dim", 1e5),
            layers,
        )
    except InputError as error:
        names = {"match": "--by", "aspect": "--aspect", "head_dim": "--head-dim", "layers": "--layers"}
        option, _, reason = str(error).partition(": ")
        raise InputError(f"{names.get(option, f'FROM:TO:COUNT: {option}')}: {reason}") from None


def rungs_of(ladder: Ladder, archs: Sequence[str], changes: dict[str, Any]) -> Rungs:
    """Raises InputError where an architecture has no size that is close enough."""
    rungs: Rungs = {}
    for name, target in zip(ladder.names, ladder.targets, strict=True):
        rungs[name] = []
        for arch in archs:
            try:
                rungs[name].append(rung(arch, ladder, target, changes))
            except InputError as error:
                raise InputError(f"{arch}/{name}: {error}") from None
    return rungs


def ladder_table(ladder: Ladder, rungs: Rungs, convention: str) -> View:
    """A row for each size and architecture; `deviation` is of what is matched."""
    rows = [{"size": name} | sized_row(sized, convention) for name, models in rungs.items() for sized in models]
    what = "non-embedding parameters"
    if ladder.match == "flops":
        what = "training FLOP per token (exact)"
    columns = [Column("size", text=True), *size_columns(convention)]
    title = f"A ladder of {counted(ladder.count, 'size')}, matched in {what}; heads of {ladder.heads} channels"
    target = {
        "from": ladder.start,
        "to": ladder.end,
        "count": ladder.count,
        "match": ladder.match,
        "aspect": ladder.aspect,
        "head_dim": ladder.heads,
        "layers": ladder.layers,
        "n_params_non_embedding": dict(zip(ladder.names, ladder.targets, strict=True)),
    }
    return Table(title, columns, rows), {"target": target, "rows": rows, "warnings": []}
