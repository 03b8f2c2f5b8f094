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

from arch.config import means, reads
from arch.errors import nearest, shown

from .model_section import model_changes
from .training import Training
from .types import refuse_at

Point = tuple[tuple[str, Any], ...]
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
HOW = "write training.FIELD: [..] or model.FIELD: [..], or a name with fields that vary together"
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


def points_of(axes: Mapping[str, Mapping[str, list[Any]]], arch: str, fixed: Mapping[str, Any]) -> Iterator[Point]:
    """The points of an architecture, each once: fields that mean nothing to it are left out. fixed: values by field
    that --set gave, which win."""
    steps = [
        [tuple(zip(axis, values, strict=True)) for values in zip(*axis.values(), strict=True)]
        for axis in axes.values()
        if not _changes_nothing(axis, arch)
    ]
    seen = []
    for chosen in itertools.product(*steps):
        point = tuple(
            (field, fixed.get(field, value))
            for field, value in itertools.chain.from_iterable(chosen)
            if not field.startswith("model.") or reads(arch, short(field))
        )
        if point not in seen:  # values may be lists
            seen.append(point)
            yield point


def unread(axes: Mapping[str, Mapping[str, list[Any]]], archs: Iterable[str]) -> dict[str, list[str]]:
    """{field of the axes: the architectures to which it means nothing}, where there are any."""
    fields = {field: axis for axis in axes.values() for field in axis if field.startswith("model.")}
    archs_without = {
        field: [arch for arch in archs if not reads(arch, short(field)) or _changes_nothing(axis, arch)]
        for field, axis in fields.items()
    }
    return {field: without for field, without in archs_without.items() if without}


def _changes_nothing(axis: Iterable[str], arch: str) -> bool:
    """Whether all fields of an axis mean nothing to an architecture. Beside others, a common field that it ignores (the
    MLP's width, of Mamba) stays a part of the point: it may have to fit the others, as heads have to fit a width."""
    return all(field.startswith("model.") and not means(arch, short(field)) for field in axis)


def section_of(point: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The values of a point that belong to a section, by field, those of a named point among them."""
    whole = dict(point)
    for value in point.values():
        whole |= value.fields if isinstance(value, Named) else {}
    return {short(field): value for field, value in whole.items() if field.startswith(f"{section}.")}


def fields_of(axes: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """{field: its values} of all axes, those of named points among them."""
    values_of: dict[str, list[Any]] = {}
    for axis in axes.values():
        for field, values in axis.items():
            named = [value for value in values if isinstance(value, Named)]
            for key, value in [(field, value) for value in values] if not named else []:
                values_of.setdefault(key, []).append(value)
            for key, value in (item for point in named for item in point.fields.items()):
                values_of.setdefault(key, []).append(value)
    return values_of


def _axes(raw: Any) -> dict[str, dict[str, list[Any]]]:
    """{name of the axis: {field: values}}; a field of its own is an axis by its own name."""
    if not isinstance(raw, dict):
        raise ValueError(f"must be keys and values, not {shown(raw)}: {HOW}")
    axes: dict[str, dict[str, list[Any]]] = {}
    owner: dict[str, str] = {}
    for name, given in raw.items():
        if "." in name:
            fields = {name: given}
        elif isinstance(given, dict) and given and all(isinstance(point, dict) for point in given.values()):
            axes[name] = {name: _named(name, given, owner)}
            continue
        elif isinstance(given, dict) and given:
            fields = given
        else:
            refuse_at(f"{shown(name)} is no field of a section, and holds no fields: {HOW}", name)
        axis = {}
        for field, values in fields.items():
            place = (field,) if "." in name else (name, field)
            if field in owner:
                refuse_at(f"is an axis twice, here and in {owner[field]}: leave one of them out", *place)
            owner[field] = "grid.axes" if "." in name else f"grid.axes.{name}"
            axis[field] = _values(field, values, place)
        lengths = {field: len(values) for field, values in axis.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{field} has {length}" for field, length in lengths.items())
            refuse_at(f"its fields vary together and must have as many values each ({counts})", name)
        together = list(zip(*axis.values(), strict=True))
        if len({repr(point) for point in together}) < len(together):
            twice = next(point for i, point in enumerate(together) if point in together[:i])
            refuse_at(f"names {shown(twice[0] if len(twice) == 1 else list(twice))} twice", *place[:1])
        axes[name] = axis
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


def check_nuisance(axes: Mapping[str, Mapping[str, list[Any]]], nuisance: Mapping[str, str]) -> None:
    """Raises ValidationError for a nuisance that is no axis, or that cannot be resolved."""
    for name in nuisance:
        if name not in axes:
            inside = next((axis for axis, fields in axes.items() if name in fields), None)
            reason = (
                f"varies with others as {inside!r}: name that"
                if inside
                else f"is no axis of this grid{nearest(name, list(axes))}"
            )
            refuse_at(reason, "nuisance", name)
        for field in fields_of({name: axes[name]}):
            if field in LENGTHS:
                refuse_at("the length of a run is the D of the laws, no nuisance", "nuisance", name)
            if field == "training.reset_at_documents":
                refuse_at("losses with and without it have other text before a token: no nuisance", "nuisance", name)


Axes = Annotated[dict[str, dict[str, list[Any]]], PlainValidator(_axes)]
