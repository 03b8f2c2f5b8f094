"""Options: the fields of a model that only its architecture has. Imports no torch.

An architecture declares its options as a frozen dataclass of this base, each field made by `option`; study files and
config.json hold them flat beside the common fields of ModelConfig (config.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InputError, nearest

if TYPE_CHECKING:
    from .config import ModelConfig

# The fields of ModelConfig that all architectures share: no option may have one of these names.
COMMON = (
    *("arch", "d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "tie_embeddings"),
    *("norm", "norm_eps", "init_std", "chunk_size", "residual_dtype"),
)
LARGEST = 10**10  # of any size: a larger number is a typing error
TYPES = ("int", "int | None", "float", "bool", "str")  # that an option may have, as written in the class


def option(
    default: Any, *, choices: tuple[str, ...] = (), ablation: bool = False, largest: float = 1e12, least: int = 1
) -> Any:
    """A field of an Options class.

    default: None for an integer that follows from the rest of the configuration (Options.derived); choices: the values
    of a string, the default first; ablation: whether a value other than the default changes the paper's model, so that
    the paper's cost formulas need not hold; largest: the largest float; least: the smallest integer.
    """
    metadata = {"choices": choices, "ablation": ablation, "largest": largest, "least": least}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """The options of one architecture; this base has none.

    The types are those of TYPES. Raises InputError for impossible values, in a line that begins with `model.<name>`.
    """

    ignored = tuple[str, ...]()  # the fields of COMMON that change nothing of the model

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))

    def derived(self, config: ModelConfig) -> dict[str, int]:
        """The values of the fields that may be left None, from the other fields of `config`."""
        return {}

    def check(self, config: ModelConfig) -> None:
        """Raise InputError where options contradict each other or `config`."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options, in the order of their declaration."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """{name: default} of the options, None for those that follow from other fields."""
        return {field.name: field.default for field in dataclasses.fields(cls)}

    @classmethod
    def ablations(cls) -> dict[str, Any]:
        """{name: default} of the options that are ablations."""
        return {field.name: field.default for field in dataclasses.fields(cls) if field.metadata["ablation"]}


def kind_of(field: dataclasses.Field[Any]) -> str:
    """A field's type as it is written, "int | None", whether or not the module's annotations are text."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Raise InputError unless the field can have this value."""
    kind = kind_of(field)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(f"model.{field.name} must be true or false, not {value!r}")
    elif kind == "str":
        check_choice(field.name, value, field.metadata["choices"])
    elif kind == "float":
        check_float(field.name, value, field.metadata["largest"])
    elif value is not None or kind == "int":
        check_size(field.name, value, field.metadata["least"])


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Raise InputError unless `value` is an integer from `least` up to LARGEST."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        what = "a positive integer" if least == 1 else f"an integer, {least} or more"
        raise InputError(f"model.{name} must be {what}, not {value!r}")
    if value > LARGEST:
        raise InputError(f"model.{name} is absurdly large: at most {LARGEST:,}")


def check_float(name: str, value: Any, largest: float) -> None:
    """Raise InputError unless `value` is a finite positive number up to `largest`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise InputError(f"model.{name} must be a positive number, not {value!r}")
    if value > largest:
        raise InputError(f"model.{name}={value:g} is absurdly large: at most {largest:g}")


def check_choice(name: str, value: Any, valid: Iterable[str]) -> None:
    """Raise InputError unless `value` is one of `valid`."""
    if value not in valid:
        hint = nearest(value, list(valid)) if isinstance(value, str) else ""
        hint = hint if "did you mean" in hint else ""  # all are listed already
        raise InputError(f"model.{name} must be one of {', '.join(valid)}, not {value!r}{hint}")
