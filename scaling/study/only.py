"""--only: the runs of a study that are chosen, by architecture, size, seed, branch and the fields of its axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from arch.errors import InputError, nearest

from .axes import short
from .run import RunSpec
from .schema import Cell
from .types import as_integer

CELL = ("arch", "size", "seed")
ONLY = (*CELL, "branch")  # what --only chooses by, beside axes


def chosen(cells: Sequence[Cell], only: str, where: str) -> tuple[list[Cell], list[str] | None]:
    """The cells that `only` keeps, and the branches that it names. Raises InputError where there is no such cell."""
    names_of = parse_only(only, cells)
    branches = names_of.pop("branch", None)
    kept = [cell for cell in cells if all(_of(cell, key) in names for key, names in names_of.items())]
    if not kept:
        raise InputError(f"--only {only}: no run of {where} has all of these")
    return kept, branches


def parse_only(text: str, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """{"arch": ["hgrn2", "tnl"], ...} of "arch=hgrn2|tnl,...". Raises InputError naming what exists."""
    fields = list(dict.fromkeys(field for cell in cells for field, _ in cell.point))
    axes = {short(field): field for field in fields} | {field: field for field in fields}
    names_of: dict[str, list[str]] = {}
    for part in _parts(text):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"--only {text}: write it as key=value, of arch, size and seed: arch=hgrn2|tnl,size=98k")
        if key not in (*ONLY, *axes):
            valid = [*ONLY, *(short(field) for field in fields)]
            raise InputError(f"--only {text}: unknown key {key!r}{nearest(key, valid)}")
        written, key = key, axes.get(key, key)
        if key in names_of:
            raise InputError(f"--only {text}: names {written} twice; write {written}=one|another")
        names = [name.strip() for name in value.split("|")]
        names_of[key] = names if key in ONLY else [_text(name) for name in names]
        if key == "branch":  # checked against the runs themselves, later
            continue
        existing = [name for name in dict.fromkeys(_of(cell, key) for cell in cells) if name is not None]
        for name, given in zip(names_of[key], names, strict=True):
            if name not in existing:
                raise InputError(f"--only {text}: no run with {written}={given} (this study has {', '.join(existing)})")
    return names_of


def _parts(text: str) -> list[str]:
    """The parts between commas, except the commas of a list, as betas=[0.9,0.95]."""
    return re.split(r",(?![^\[\]]*\])", text)


def _of(cell: Cell, key: str) -> str | None:
    """What a cell has of a key; None of an axis that means nothing to its architecture."""
    if key in CELL:
        return str(getattr(cell, key))
    point = dict(cell.point)
    return _text(point[key]) if key in point else None


def _text(value: Any) -> str:
    """The same for a number however it was written."""
    return str(as_integer(value)).replace(" ", "").lower()


def of_branches(runs: list[RunSpec], names: list[str], where: str) -> list[RunSpec]:
    """Trunks (`trunk`) and branches by the endings of their ids. Raises InputError naming what exists."""
    existing = list(dict.fromkeys(run.branch for run in runs if run.branch))
    for name in names:
        if name not in existing:
            raise InputError(f"{where}: no run with branch={name} (this study has {', '.join(existing) or 'none'})")
    return [run for run in runs if run.branch in names]


def without_branch(only: str | None) -> str | None:
    """The parts of --only other than `branch`."""
    kept = [part for part in _parts(only or "") if part.partition("=")[0].strip() != "branch"]
    return ",".join(kept) or None
