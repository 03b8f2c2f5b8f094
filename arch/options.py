"""Options: what one architecture has beside the fields that all share. Imports no torch.

An architecture declares its options as a frozen dataclass of this base, each field made by `option`; study files and
config.json hold them flat beside the common fields of ModelConfig (config.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import InputError, nearest

if TYPE_CHECKING:
    from .config import ModelConfig

# The fields of ModelConfig that all architectures share: no option may have one of these names.
COMMON = (
    *("arch", "d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "tie_embeddings"),
    *("norm", "norm_eps", "init_std", "chunk_size", "residual_dtype"),
)
LARGEST = 10**10  # of any size: what is larger is a slip of the pen
TYPES = ("int", "int | None", "float", "bool", "str")  # that an option may have, as written in the class


def option(default: Any, *, choices: tuple[str, ...] = (), ablation: bool = False, largest: float = 1e12) -> Any:
    """A field of an Options class.

    default: None for an integer that follows from the rest of the configuration (Options.derived); choices: what a
    string may be, the default first; ablation: whether another value than the default is a change to the model of the
    paper, whose costs the paper's formulas then need not give; largest: of a float.
    """
    return field(default=default, metadata={"choices": choices, "ablation": ablation, "largest": largest})


@dataclass(frozen=True)
class Options:
    """The options of one architecture; this base has none.

    Types are those of TYPES. Raises InputError for values that cannot be, in a line that begins with `model.<name>`.
    """

    ignored = tuple[str, ...]()  # of COMMON: what has a value but changes nothing of the model

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            check_value(one, getattr(self, one.name))

    def derived(self, config: ModelConfig) -> dict[str, int]:
        """The values of the fields that may be left None, from the other fields of `config`."""
        return {}

    def check(self, config: ModelConfig) -> None:
        """Raise InputError where options contradict each other or `config`."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options, in the order of their declaration."""
        return tuple(one.name for one in dataclasses.fields(cls))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """{name: default} of the options, None for those that follow from other fields."""
        return {one.name: one.default for one in dataclasses.fields(cls)}

    @classmethod
    def ablations(cls) -> dict[str, Any]:
        """{name: default} of the options that are ablations."""
        return {one.name: one.default for one in dataclasses.fields(cls) if one.metadata["ablation"]}


def kind_of(one: dataclasses.Field[Any]) -> str:
    """A field's type as one writes it, whether the module has its annotations as text or not: "int | None"."""
    return one.type.__name__ if isinstance(one.type, type) else str(one.type)


def check_value(one: dataclasses.Field[Any], value: Any) -> None:
    """Raise InputError unless `value` can be that field's."""
    kind = kind_of(one)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(f"model.{one.name} must be true or false, not {value!r}")
    elif kind == "str":
        check_choice(one.name, value, one.metadata["choices"])
    elif kind == "float":
        check_float(one.name, value, one.metadata["largest"])
    elif value is not None or kind == "int":
        check_size(one.name, value)


def check_size(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a positive integer up to LARGEST."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InputError(f"model.{name} must be a positive integer, not {value!r}")
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
