"""`corpus.source` of a study file: texts that are one stream, or the weighted sources of a mixture."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError, WithJsonSchema

from arch.errors import shown
from data.settings import Weighted

from .types import Positive, Section, Sources

TEXTS = TypeAdapter(Sources)
FORMS = "write texts, or {source: ..., weight: ...} for each source of a mixture"


class WeightedSource(Section):
    """A source of a mixture."""

    source: Sources
    """The text: as `corpus.source` without weights."""
    weight: Positive
    """The share of this source in the training tokens, relative to the weights of the others."""
    text_key: str | None = None
    """The key of its records; null takes the corpus' `text_key`."""
    name: str = ""
    """A short name for tables and files, of letters, digits and `-`; by default it is made of the path."""

    def settings(self) -> Weighted:
        source = self.source[0] if len(self.source) == 1 else tuple(self.source)
        return Weighted(source, self.weight, self.text_key, self.name)


def _read(value: Any) -> list[str] | list[WeightedSource]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("must name at least one")
    if not any(isinstance(item, (dict, WeightedSource)) for item in items):
        return TEXTS.validate_python(items)
    for item in items:
        if not isinstance(item, (dict, WeightedSource)):
            raise ValueError(f"{shown(item)} has no weight and other sources have one: {FORMS}")
    return [_weighted(i, item) for i, item in enumerate(items)]


def _weighted(index: int, item: Any) -> WeightedSource:
    try:
        return WeightedSource.model_validate(item)
    except ValidationError as error:
        lines: Any = [line | {"loc": (index, *line["loc"])} for line in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(error.title, lines) from None


def _plain(sources: list[str] | list[WeightedSource]) -> list[Any]:
    return [source if isinstance(source, str) else source.model_dump() for source in sources]


CorpusSources = Annotated[
    list[str] | list[WeightedSource],
    PlainValidator(_read),
    PlainSerializer(_plain),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
]
