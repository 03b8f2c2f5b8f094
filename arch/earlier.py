"""Fields of ModelConfig that earlier versions called otherwise: stored files may say them, nobody else may.

A run's hash is made of the earlier names, so that runs keep theirs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InputError

# earlier name: (the name of today, {earlier value: the value of today})
RENAMED: dict[str, tuple[str, dict[Any, str]]] = {
    "hgrn1_complex": ("hgrn1_state", {True: "complex", False: "narrow"}),
}


def of_today(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` by the names of today. Raises InputError where an earlier name has no valid value, or another than the
    field of today beside it."""
    for old, (name, values) in RENAMED.items():
        if old not in fields:
            continue
        given = fields[old]
        if not isinstance(given, bool):
            raise InputError(f"model.{old} must be true or false, not {given!r}")
        if fields.get(name, values[given]) != values[given]:
            raise InputError(
                f"model.{old}={given} and model.{name}={fields[name]} contradict each other: leave {old} out"
            )
        fields = {key: value for key, value in fields.items() if key != old} | {name: values[given]}
    return fields


def as_hashed(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` by the earlier names, where these can say the value."""
    for old, (name, values) in RENAMED.items():
        for before, now in values.items():
            if fields.get(name) == now:
                fields = {key: value for key, value in fields.items() if key != name} | {old: before}
    return fields


def instead_of(key: str) -> str | None:
    """What to write for an earlier name, to follow it in a sentence; None for any other."""
    if key not in RENAMED:
        return None
    name, values = RENAMED[key]
    return f"is now {name}: " + ", ".join(f"{now} for {str(before).lower()}" for before, now in values.items())


def refuse_earlier(changes: Iterable[str]) -> None:
    """Raise InputError for an earlier name among changes that somebody asks for."""
    for key in changes:
        if told := instead_of(key):
            raise InputError(f"model.{key} {told}")
