"""The section `model` of a study file: fields of ModelConfig and the options of all architectures."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import PlainValidator, SerializeAsAny, create_model

from arch.config import field_types

from .types import Count, Flag, Index, Positive, Section

_MODEL_TYPES: dict[str, Any] = {  # by the type as ModelConfig and Options write it
    "int": Count,
    "int from 0": Index,
    "float": Positive,
    "float | None": Positive | None,
    "bool": Flag,
    "str": str,
    "str | None": str | None,
    "int | None": Count | None,
}


class ModelSection(Section):
    """Changes of a model's fields; `model_changes` gives the class with the fields there are."""


def model_changes() -> type[ModelSection]:
    """The fields of ModelConfig, each optional, with the options of all architectures that are registered by now;
    ModelConfig itself judges their values."""
    return _model_changes(tuple(field_types().items()))


@lru_cache
def _model_changes(fields: tuple[tuple[str, str], ...]) -> type[ModelSection]:
    given: Any = {name: (_MODEL_TYPES[kind], None) for name, kind in fields if name != "arch"}
    return create_model("ModelChanges", __base__=ModelSection, **given)


def _as_changes(value: Any) -> ModelSection:
    return value if isinstance(value, ModelSection) else model_changes().model_validate(value)


# Judged when a file is read, after its plugins are imported, whose architectures may have options of their own.
ModelChanges = Annotated[SerializeAsAny[ModelSection], PlainValidator(_as_changes)]
