"""The axes of a study's grid: fields of a run that are varied, crossed with sizes and seeds; and which of them are a
nuisance, resolved before anything is fitted. Imports no torch.

A point is one value of every axis, by field: (("training.lr", 0.001), ("model.context_length", 2048)); of an axis of
named points by the axis's name: (("ablation", "no_bound"),).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, ValidationError

from arch.config import means
from arch.errors import nearest, shown

from .model_section import model_changes
from .training import Training
from .types import refuse_at

Point = tuple[tuple[str, Any], ...]
Axes = dict[str, list[Any]]  # values by field, or points (Named) by the name of an axis
By = Literal["best"]
LENGTHS = ("training.n_tokens",)  # how far a run goes: the D of the laws, no group of its own
NEVER = {  # fields that are no axis, and why
    **dict.fromkeys(
        ("training.log_every", "training.keep_states", "training.state_every_tokens"), "it decides no number of a run"
    ),
    **dict.fromkeys(
        ("training.n_checkpoints", "training.checkpoint_tokens", "training.checkpoint_dtype"),
        "it decides what a run leaves behind, not what it learns",
    ),
    **dict.fromkeys(
        ("training.threads", "training.micro_batch_tokens", "training.zero_stage"),
        "it decides how a run is carried out; of its numbers only the rounding",
    ),
    "training.max_steps": "it ends a trial early: vary training.n_tokens",
    "training.max_tokens": "it caps what other fields ask for: vary training.n_tokens",
    "training.branches": "it makes runs of several lengths itself",
    "model.arch": "the architectures are grid.archs",
    "model.vocab_size": "it follows from corpus.tokenizer",
}
SECTIONS = ("training", "model")
HOW = "write training.FIELD: [..] or model.FIELD: [..], or a name with points as {deep: {model.n_layers: 24}, ..}"
POINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")  # it is part of the names of runs


class Named(str):
    """The name of a point, and its values by field."""

    fields: dict[str, Any]

    def __new__(cls, name: str, fields: Mapping[str, Any] | None = None) -> Named:
        point_value = super().__new__(cls, name)
        point_value.fields = dict(fields or {})
        return point_value


def short(field: str) -> str:
    """A field's name without its section, as runs and tables have it: the sections share no name. An axis of named
    points keeps its own."""
    return field.partition(".")[2] or field


def label_of(point: Mapping[str, Any]) -> str:
    """`lr=0.001, context_length=2048`: a point for people, and a key of tables; "" of a grid without axes."""
    return ", ".join(f"{short(field)}={value_text(value)}" for field, value in point.items())


def value_text(value: Any) -> str:
    """A value in a label, between characters that it cannot hold."""
    text = "/".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace(", ", "/").replace("=", ":")


def points_of(axes: Axes, arch: str, fixed: Mapping[str, Any]) -> Iterator[Point]:
    """The points of an architecture, each once, without the fields that mean nothing to it. fixed: values by field that
    --set gave, which win."""
    steps = [
        [(axis, fixed.get(axis, value)) for value in values]
        for axis, values in axes.items()
        if _means_something(axis, arch)
    ]
    points: list[Point] = []
    for point in itertools.product(*steps):
        if point not in points:  # values may be lists
            points.append(point)
            yield point


def unread(axes: Axes, archs: Iterable[str]) -> dict[str, list[str]]:
    """{field of the axes: the architectures to which it means nothing}, where there are any."""
    without = {axis: [arch for arch in archs if not _means_something(axis, arch)] for axis in axes}
    return {axis: others for axis, others in without.items() if others}


def _means_something(axis: str, arch: str) -> bool:
    return not axis.startswith("model.") or means(arch, short(axis))


def section_of(point: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The values of a point that belong to a section, by field, those of a named point among them."""
    whole = dict(point)
    for value in point.values():
        whole |= value.fields if isinstance(value, Named) else {}
    return {short(field): value for field, value in whole.items() if field.startswith(f"{section}.")}


def fields_of(axes: Axes) -> dict[str, list[Any]]:
    """{field: its values} of all axes, those of named points among them."""
    values_of: dict[str, list[Any]] = {}
    for axis, values in axes.items():
        for value in values:
            for field, item in (value.fields if isinstance(value, Named) else {axis: value}).items():
                values_of.setdefault(field, []).append(item)
    return values_of


def _axes(raw: Any) -> Axes:
    if not isinstance(raw, dict):
        raise ValueError(f"must be keys and values, not {shown(raw)}: {HOW}")
    axes: Axes = {}
    owner: dict[str, str] = {}  # the axis of each field
    for name, given in raw.items():
        if "." in name:
            if owner.setdefault(name, "grid.axes") != "grid.axes":
                refuse_at(f"is an axis twice, here and in {owner[name]}: leave one of them out", name)
            axes[name] = values = _values(name, given, (name,))
            if twice := [value for i, value in enumerate(values) if value in values[:i]]:
                refuse_at(f"names {shown(twice[0])} twice", name)
        elif isinstance(given, dict) and given and all(isinstance(point, dict) for point in given.values()):
            axes[name] = _named(name, given, owner)
        else:
            refuse_at(f"{shown(name)} is no field of a section, and holds no points with names: {HOW}", name)
    return axes


def _named(axis: str, given: dict[str, dict[str, Any]], owner: dict[str, str]) -> list[Named]:
    """The points of an axis that names each of them."""
    points: list[Named] = []
    for name, fields in given.items():
        if not POINT_NAME.fullmatch(name):
            refuse_at(f"{shown(name)} is no name of a point: letters, digits, _, . and +", axis)
        for field in fields:
            if owner.setdefault(field, f"grid.axes.{axis}") != f"grid.axes.{axis}":
                refuse_at(f"is an axis twice, here and in {owner[field]}: leave one of them out", axis, name, field)
        points.append(
            Named(name, {field: _values(field, [value], (axis, name, field))[0] for field, value in fields.items()})
        )
        same = next((point for point in points[:-1] if point.fields == points[-1].fields), None)
        if same is not None:
            refuse_at(f"{name} and {same} are the same point", axis)
    return points


def _values(field: str, values: Any, place: tuple[str, ...]) -> list[Any]:
    """The values of an axis as its field's own type reads them."""
    section, _, name = field.partition(".")
    if section == "corpus":
        refuse_at(
            "a study has one corpus: write a study file for each, and fit them together: `scaling fit runs ONE TWO`",
            *place,
        )
    if section not in SECTIONS or not name:
        refuse_at(f"{shown(field)} is no field of {' or '.join(SECTIONS)}: {HOW}", *place)
    if field in NEVER:
        refuse_at(f"is no axis: {NEVER[field]}", *place)
    schema = Training if section == "training" else model_changes()
    if name not in schema.model_fields:
        refuse_at(f"unknown field {shown(name)} of {section}{nearest(name, list(schema.model_fields))}", *place)
    if not isinstance(values, list) or not values:
        refuse_at(f"must be a list of at least one value, not {shown(values)}", *place)
    read = []
    for value in values:
        try:
            read.append(getattr(schema.model_validate({name: value}), name))
        except ValidationError as error:
            lines: Any = [line | {"loc": (*place, *line["loc"][1:])} for line in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, lines) from None
        if value is None:
            refuse_at("null leaves the field out: give values", *place)
    return read


def check_nuisance(axes: Axes, nuisance: Mapping[str, str]) -> None:
    """Raises ValidationError for a nuisance that is no axis, or that cannot be resolved."""
    for name in nuisance:
        if name not in axes:
            refuse_at(f"is no axis of this grid{nearest(name, list(axes))}", "nuisance", name)
        for field in fields_of({name: axes[name]}):
            if field in LENGTHS:
                refuse_at("the length of a run is the D of the laws, no nuisance", "nuisance", name)
            if field == "training.reset_at_documents":
                refuse_at("losses with and without it have other text before a token: no nuisance", "nuisance", name)


AxesOfGrid = Annotated[Axes, PlainValidator(_axes)]
