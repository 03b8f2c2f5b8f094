"""The section `architectures` of a study file: patterns, whose layers are of several kinds. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from arch.config import OF_ALL, reads
from arch.errors import InputError, nearest, shown
from arch.presets import ALL_SIZES
from arch.registry import KNOWN, architecture, in_family, meant, register_pattern, resolved

from .jobs_schema import KINDS
from .model_section import model_changes
from .types import Section, refuse_at, section_at

HOW = "write {hgrn2-3to1: {layers: [hgrn2, hgrn2, hgrn2, softmax], softmax: {window: 1024}}}"


class Keys(Section):
    """Of a pattern, beside those of its kinds."""

    layers: Annotated[list[str], Field(min_length=1)]
    label: str | None = None
    color: str | None = None


class Patterns(dict[str, dict[str, Any]]):
    """By name the arguments of `register_pattern`."""

    def register(self) -> None:
        """Let the names mean these patterns in this process, which may have read another study's."""
        for name, pattern in self.items():
            register_pattern(name, **pattern)


def _read(raw: Any) -> Patterns:
    if isinstance(raw, Patterns):
        return raw
    if not isinstance(raw, dict):
        raise ValueError(f"must be keys and values, not {shown(raw)}: {HOW}")
    patterns, labels = Patterns(), dict[str, str]()
    for name, given in raw.items():
        if not isinstance(name, str) or not isinstance(given, dict):
            refuse_at(f"must be keys and values below a name, not {shown(given)}: {HOW}", str(name))
        if name in ALL_SIZES or name in KINDS:
            refuse_at(f"{name!r} is the name of a size or a kind of job: give another", name)
        own = {kind: _own(name, kind, fields) for kind, fields in given.items() if kind not in Keys.model_fields}
        keys = section_at(Keys, {key: given[key] for key in given if key in Keys.model_fields}, name)
        label = keys.label or name
        if (first := labels.setdefault(label.lower(), name)) != name:
            refuse_at(f"{label!r} is also {first}'s: give another", name, "label")
        patterns[name] = keys.model_dump() | {"own": own}
        try:
            register_pattern(name, **patterns[name])
        except InputError as error:
            refuse_at(str(error), name)
    return patterns


def _own(name: str, kind: str, fields: Any) -> dict[str, Any]:
    """The fields of a kind of layers."""
    arch = resolved(kind)
    options: dict[str, Any] = {}
    if in_family(arch) and isinstance(fields, dict):
        try:
            names = architecture(arch).options.names()
        except InputError as error:
            refuse_at(str(error), name, kind)
        options = {field: fields[field] for field in fields if field in names}
        fields = {field: fields[field] for field in fields if field not in names}
    elif arch not in KNOWN:
        refuse_at(f"unknown key {kind!r}{meant(str(kind), [*Keys.model_fields, *KNOWN])}", name)
    section = model_changes()
    for field in fields if isinstance(fields, dict) else ():
        if field not in section.model_fields:
            refuse_at(
                f"is unknown{nearest(str(field), [f for f in section.model_fields if reads(arch, f)])}",
                name,
                kind,
                field,
            )
    own = section_at(section, fields, name, kind).model_dump(exclude_unset=True)
    for field in own:
        if field in (*OF_ALL, "n_layers") or not reads(arch, field):
            what = "is of the whole model: give it in model" if reads(arch, field) else f"means nothing to {arch}"
            refuse_at(what, name, kind, field)
    return own | options


def _plain(patterns: Patterns) -> dict[str, Any]:
    """As a file has them."""
    return {
        name: {key: value for key, value in pattern.items() if key != "own" and value is not None} | pattern["own"]
        for name, pattern in patterns.items()
    }


PatternsOfStudy = Annotated[
    Patterns, PlainValidator(_read), PlainSerializer(_plain), WithJsonSchema({"type": "object"})
]
