"""The sizes of a study, `grid.sizes`: names of presets, shapes, and ladders. Imports no torch.

What a size is belongs to the study, whose other keys (overrides, extra_seeds, resources, --only) say its name alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from arch.config import ModelConfig, field_names, reads
from arch.errors import nearest, shown
from arch.presets import ALL_SIZES, preset
from arch.registry import KNOWN, meant
from flops import count_params
from flops.ladder import Ladder, limit_at, rung
from flops.quantity import MOST_PARAMS, quantity
from flops.shapes import of_shape

from .jobs_schema import KINDS
from .model_section import model_changes
from .types import Count, Positive, Section, distinct, section_at, word_of_size

SHAPE = ("n_layers", "d_model", "n_heads", "d_ffn")
FORMS = (
    "write a preset's name, a shape as {12m: {n_layers: 8, d_model: 384, n_heads: 6, d_ffn: 1024}}, or a ladder as "
    "{from: 1M, to: 60M, count: 6}"
)


def _amount(value: Any) -> Any:
    """1M, 2.5e6, or a number."""
    return quantity(value, "parameters", MOST_PARAMS) if isinstance(value, str) else value


Amount = Annotated[Positive, BeforeValidator(_amount)]


class Common(Section):
    """What the architectures share in a shape."""

    n_layers: Count | None = None
    d_model: Count | None = None
    n_heads: Count | None = None
    d_ffn: Count | None = None


@dataclass(frozen=True)
class Shape:
    """A size that the study file describes: fields that the architectures share, then changes by architecture."""

    common: Mapping[str, int]
    own: Mapping[str, Mapping[str, Any]]

    def config(self, arch: str, name: str, file: Mapping[str, Any], changes: Mapping[str, Any]) -> ModelConfig:
        """The model of a shape, made as a preset: the common fields, as the architecture's own rule changes them; then
        its changes; then those of the `file` and `changes`. Raises InputError where they do not go together."""
        return of_shape(arch, name, self.common, self.own.get(arch, {}), {**file, **changes})


class LadderKeys(Section):
    start: Amount = Field(alias="from")
    end: Amount = Field(alias="to")
    count: Count
    match: Literal["params", "flops"] = "params"
    aspect: Positive | None = None
    head_dim: Count | None = None
    layers: Count | None = None


@dataclass(frozen=True)
class Rung:
    """A size of a ladder."""

    ladder: Ladder
    target: float
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a rung has nothing by architecture

    def config(self, arch: str, name: str, file: Mapping[str, Any], changes: Mapping[str, Any]) -> ModelConfig:
        """Matched with all that the `file` gives the model but its shape; a shape that it gives, and `changes`, change
        what was matched. Raises InputError where there is no size close to the target, naming the nearest."""
        # all of the file again: an option that it gives the value that would follow from others is not to follow these
        return self._matched(arch, file).replace(**{**file, **changes})

    def _matched(self, arch: str, file: Mapping[str, Any]) -> ModelConfig:
        """Matched to the target, with what the `file` gives beside a shape."""
        return rung(arch, self.ladder, self.target, {key: file[key] for key in file if key not in SHAPE}).cfg

    def off_target(self, arch: str, file: Mapping[str, Any], n_params: int) -> list[str]:
        """A line where a model of so many non-embedding parameters is no longer close to the rung's."""
        planned = self.target
        if self.ladder.match == "flops":
            planned = count_params(self._matched(arch, file)).non_embedding
        if abs(off := n_params / planned - 1) <= limit_at(arch, self.target):
            return []
        return [
            f"{n_params:,} non-embedding parameters are {off:+.0%} off the ladder's: what changes its shape undoes it"
        ]


Size = Shape | Rung | None  # None: a preset


@dataclass(frozen=True)
class Sizes(Sequence[str]):
    """The names, in the file's order; `shapes`: what each is, None for a preset."""

    shapes: Mapping[str, Size]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: Any) -> Any:
        return list(self.shapes)[index]

    def config(self, arch: str, size: str, file: Mapping[str, Any], changes: Mapping[str, Any]) -> ModelConfig:
        """The model of `arch` at a size of these, with the fields that the study `file` gives it (its sections model
        and overrides) and then `changes`. Raises InputError where these do not go together."""
        shape = self.shapes[size]
        if shape is None:
            return preset(arch, size, **{**file, **changes})
        return shape.config(arch, size, file, changes)

    def own(self, arch: str, size: str) -> Mapping[str, Any]:
        """What a size says of the architecture's model alone."""
        shape = self.shapes[size]
        return shape.own.get(arch, {}) if shape else {}

    def off_target(self, arch: str, size: str, file: Mapping[str, Any], n_params: Callable[[], int]) -> list[str]:
        """A line where what changes the model of a ladder takes it off its target."""
        shape = self.shapes[size]
        return shape.off_target(arch, file, n_params()) if isinstance(shape, Rung) else []

    def unknown_names(self, archs: Sequence[str]) -> Iterator[list[str]]:
        """(name of the size, architecture) of what shapes say of architectures that are none of `archs`."""
        for name, shape in self.shapes.items():
            yield from ([name, arch] for arch in (shape.own if shape else ()) if arch not in archs)


def names_in(raw: Any) -> list[str]:
    """The names of a file's sizes, as far as they can be read."""
    names: list[str] = []
    for item in raw if isinstance(raw, list) else [raw]:
        with contextlib.suppress(ValueError, TypeError):
            names += [name for name, _ in _entries(item)]
    return names


def chosen(value: Any, of_file: Any) -> Any:
    """`value`, what --set makes of a file's sizes, in which names may also be those that the file gives its own."""
    if not isinstance(value, list):
        return value
    try:
        shapes = _read(of_file).shapes
    except (ValueError, TypeError):  # an error where the file is checked
        return value
    return [Sizes({name: shapes[name]}) if isinstance(name, str) and shapes.get(name) else name for name in value]


def _read(value: Any) -> Sizes:
    if isinstance(value, Sizes):
        return value
    if not isinstance(value, (list, dict)):
        raise ValueError(f"must be a list, not {shown(value)}: {FORMS}")
    entries = [entry for item in (value if isinstance(value, list) else [value]) for entry in _entries(item)]
    distinct([name for name, _ in entries])
    return Sizes(dict(entries))


def _entries(item: Any) -> list[tuple[str, Size]]:
    """(name, size) of every size of one item of a file's list."""
    if isinstance(item, Sizes):
        return list(item.shapes.items())
    if isinstance(item, str):
        if item not in ALL_SIZES:
            raise ValueError(f"unknown size {shown(item)}{nearest(item, list(ALL_SIZES))}: {FORMS}")
        return [(item, None)]
    if not isinstance(item, dict) or not item:
        raise ValueError(f"{shown(item)} is no size: {FORMS}")
    keys = [field.alias or name for name, field in LadderKeys.model_fields.items()]
    if not any(key in keys for key in item):
        return [(_name(name), _shape(name, fields)) for name, fields in item.items()]
    for key in item:
        if key not in keys:
            raise ValueError(f"unknown key {shown(key)} of a ladder{nearest(str(key), keys)}")
    given = _given(LadderKeys, item)
    ladder = Ladder(**given)
    return [(name, Rung(ladder, target)) for name, target in zip(ladder.names, ladder.targets, strict=True)]


def _name(name: str) -> str:
    """The name of a shape, which is nothing else's."""
    for kind, names in (("a preset", ALL_SIZES), ("an architecture", KNOWN), ("a kind of job", KINDS)):
        if name in names:
            raise ValueError(f"{name!r} is the name of {kind}: give the shape another name")
    return word_of_size(name)


def _shape(name: str, fields: Any) -> Shape:
    if not isinstance(fields, dict):
        raise ValueError(f"{name}: a shape has keys and values: {FORMS}")
    for key in fields:
        if key in SHAPE or key in KNOWN:
            continue
        if key in field_names():
            raise ValueError(
                f"{name}.{key}: a shape has {', '.join(SHAPE)}, and changes by architecture: write {key} below an "
                f"architecture's name, in model, or in overrides.by_size.{name}.model"
            )
        raise ValueError(f"unknown key {f'{name}.{key}'!r}{meant(str(key), [*SHAPE, *KNOWN])}")
    common = _given(Common, {key: value for key, value in fields.items() if key in SHAPE}, name)
    changes_of = {}
    for arch in [key for key in fields if key in KNOWN]:
        section, changes = model_changes(), fields[arch]
        for key in changes if isinstance(changes, dict) else ():
            if key not in section.model_fields:
                fitting = [field for field in section.model_fields if reads(arch, field)]
                raise ValueError(f"{name}.{arch}.{key} is unknown{nearest(str(key), fitting)}")
        changes_of[arch] = _given(section, changes, name, arch)
    return Shape(common, changes_of)


def _given(schema: type[Section], raw: Any, *where: str) -> dict[str, Any]:
    """The fields of a section that `raw` gives."""
    return section_at(schema, raw, *where).model_dump(exclude_unset=True)


SizesOfStudy = Annotated[
    Sizes,
    PlainValidator(_read),
    PlainSerializer(list),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
