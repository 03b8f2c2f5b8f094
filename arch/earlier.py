"""Fields of ModelConfig as earlier versions had them: stored files may say them, nobody else may.

A run's hash is made of the earlier names and fields, so that runs keep theirs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InputError

# earlier name: (the name of today, {earlier value: the value of today})
RENAMED: dict[str, tuple[str, dict[Any, str]]] = {
    "hgrn1_complex": ("hgrn1_state", {True: "complex", False: "narrow"}),
}


# Options of single architectures that were fields of all: in every stored configuration, and in every hash, with these
# values or (HEAD_DIM) the head dimension.
EVERYWHERE: dict[str, Any] = {"rope_base": 10_000.0, "tpe_residual": True}
HEAD_DIM = ("gate_rank", "tpe_dim")
INERT = frozenset((*EVERYWHERE, *HEAD_DIM))  # stored files may say them of any architecture
# Options that are part of the hash whatever their value; later ones are left out at their default.
ALWAYS = INERT | {"hgrn1_state", "expand", "conv_width", "ssm_state", "dt_rank"}
UNSET = object()


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


def as_hashed(fields: dict[str, Any], defaults: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """What a run's hash is made of: `fields` without the options that have the value in `defaults`, but with what
    earlier versions put into every hash, all by the earlier names where these can say the value."""
    said = {key: value for key, value in fields.items() if key in ALWAYS or defaults.get(key, UNSET) != value}
    fields = dict.fromkeys(HEAD_DIM, head_dim) | EVERYWHERE | said
    for old, (name, values) in RENAMED.items():
        for before, now in values.items():
            if fields.get(name) == now:
                fields = {key: value for key, value in fields.items() if key != name} | {old: before}
    return fields


def is_earlier(key: str) -> bool:
    """Whether a stored file may say it of any architecture."""
    return key in RENAMED or key in INERT


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
