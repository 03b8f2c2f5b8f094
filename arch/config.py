"""ModelConfig: the shape of a model, for every architecture. Imports no torch, so that sizing tools start at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .architectures import register_all
from .errors import InputError, nearest
from .options import COMMON, check_choice, check_float, check_size, kind_of
from .registry import ARCHITECTURES, architecture, archs_with, has_option
from .registry import NORMS as NORMS

ARCHS = register_all()  # the names of the architectures of this package
RESIDUAL_DTYPES = ("auto", "fp32")
LARGEST_FLOAT = {"norm_eps": 1.0, "init_std": 100.0}


def reads(arch: str, field: str) -> bool:
    """Whether an architecture has this field of ModelConfig: a common field, or one of its options."""
    return field in COMMON or has_option(arch, field)


def means(arch: str, field: str) -> bool:
    """Whether models of an architecture that differ only in this field are different models: False for fields that it
    does not have, and for common fields that it ignores."""
    return reads(arch, field) and field not in architecture(arch).options.ignored


def field_names() -> tuple[str, ...]:
    """The common fields, then the options of all architectures, each once."""
    options = [name for arch in ARCHITECTURES.values() for name in arch.options.names()]
    return (*COMMON, *dict.fromkeys(options))


def field_types() -> dict[str, str]:
    """{name: type as written} of `field_names`: int, int | None, float, bool, str, str | None. An option that several
    architectures have admits null if it does in one of them."""
    types = {field.name: kind_of(field) for field in dataclasses.fields(ModelConfig) if field.name in COMMON}
    for field in _all_options():
        types[field.name] = max(types.get(field.name, ""), kind_of(field), key=len)
    return types


def field_choices() -> dict[str, tuple[str, ...]]:
    """{name: valid words} of the fields that are one of a few words, of all architectures together."""
    choices = {"norm": NORMS, "residual_dtype": RESIDUAL_DTYPES}
    for field in _all_options():
        if field.metadata["choices"]:
            choices[field.name] = tuple(dict.fromkeys((*choices.get(field.name, ()), *field.metadata["choices"])))
    return choices


def _all_options() -> list[dataclasses.Field[Any]]:
    return [field for arch in ARCHITECTURES.values() for field in dataclasses.fields(arch.options)]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that determines a model's parameters and its function: the fields that all architectures share, and
    `options`, those of its architecture (arch/architectures/<name>). Files have all of them in one flat mapping
    (`to_dict`, `from_dict`).

    `norm` and `options` may be None: construction fills in the architecture's, and options that follow from other
    fields, so that no field stays unresolved. Mamba has no gated MLP and ignores `d_ffn`. Raises InputError for sizes
    that cannot work, and for fields that contradict each other.
    """

    arch: str
    d_model: int
    """Width of the residual stream."""
    n_layers: int
    """Layers."""
    n_heads: int
    """Heads of the sequence operation; HGRN1 and Mamba1 have none."""
    d_ffn: int
    """Width of the MLP; Mamba has none."""
    vocab_size: int = 100_280
    """Tokens of the vocabulary."""
    context_length: int = 8192
    """Tokens of a training sequence."""
    tie_embeddings: bool = True
    """The head is the embedding; false: a matrix of its own."""
    norm: str | None = None
    """srms (without weights), rms (with a weight vector) or layer (with weight and bias); null: the architecture's."""
    norm_eps: float = 1e-6
    """The term that a norm adds to the mean square."""
    init_std: float = 0.02
    """Standard deviation of matrices at initialisation."""
    chunk_size: int = 64
    """Rows of a chunk in the linear mixers; LLaMA and Mamba1 ignore it."""
    residual_dtype: str = "auto"
    """Precision of the residual stream under autocast: the compute dtype (auto) or fp32."""
    options: Any = None
    """The architecture's options, an instance of its subclass of Options."""

    def __post_init__(self) -> None:
        own = architecture(self.arch)
        if not isinstance(self.tie_embeddings, bool):
            raise InputError(f"model.tie_embeddings must be true or false, not {self.tie_embeddings!r}")
        for name in ("d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "chunk_size"):
            check_size(name, getattr(self, name))
        if self.d_model % self.n_heads:
            raise InputError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}: "
                f"choose a head count that divides it"
            )
        if self.chunk_size & (self.chunk_size - 1):
            raise InputError(f"model.chunk_size must be a power of two, not {self.chunk_size}")
        check_choice("residual_dtype", self.residual_dtype, RESIDUAL_DTYPES)
        for name, largest in LARGEST_FLOAT.items():
            check_float(name, getattr(self, name), largest)
        fill = object.__setattr__  # frozen: only here
        if self.norm is None:
            fill(self, "norm", own.norm)
        check_choice("norm", self.norm, NORMS)
        options = own.options() if self.options is None else self.options
        if type(options) is not own.options:
            raise InputError(f"model.options of {self.arch} must be {own.options.__name__}, not {options!r}")
        options.check(self)
        missing = {name: value for name, value in options.derived(self).items() if getattr(options, name) is None}
        fill(self, "options", dataclasses.replace(options, **missing))
        for name, value in dataclasses.asdict(self.options).items():
            if value is None:
                raise InputError(f"model.{name}: {own.options.__name__}.derived must give its value")

    @property
    def head_dim(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the common fields, then the architecture's options."""
        return {name: getattr(self, name) for name in COMMON} | dataclasses.asdict(self.options)

    def identity(self) -> dict[str, Any]:
        """The fields and options that differ from their defaults, which a run's hash is made of: a new option changes
        no hash."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        defaults |= {"norm": architecture(self.arch).norm} | self.options.defaults() | self.options.derived(self)
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with `changes` of common fields and options. Options that follow from other fields are derived again
        unless they are given."""
        check_fields(changes.get("arch", self.arch), changes)
        derived = self.options.derived(self)
        fields = self.to_dict()
        underived = {name: None for name, value in derived.items() if fields[name] == value}
        return ModelConfig.from_dict(fields | underived | changes)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """From plain data. Raises InputError for a missing key, and as `check_fields` does."""
        missing = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
        if missing := [name for name in missing if name not in fields]:
            raise InputError(f"model: missing {', '.join(missing)}")
        own = architecture(fields["arch"])
        check_fields(own.name, fields)
        options = own.options(**{name: fields[name] for name in own.options.names() if name in fields})
        return cls(**{name: fields[name] for name in COMMON if name in fields}, options=options)


def check_fields(arch: str, fields: Mapping[str, Any]) -> None:
    """Raise InputError for a field that does not exist, with the nearest valid name, and for an option of other
    architectures whose value is not its default there."""
    for name in [name for name in fields if not reads(arch, name)]:
        others = archs_with(name)
        if name == "options":
            raise InputError("model.options: give an architecture's options flat, beside the other fields")
        if not others:
            raise InputError(f"unknown model key {name!r}{nearest(name, list(field_names()))}")
        if any(fields[name] != ARCHITECTURES[other].options.defaults()[name] for other in others):
            raise InputError(f"model.{name} means nothing to {arch}, only to {', '.join(others)}: leave it out")


def model_fields_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file that are fields of ModelConfig, with their values."""
    names = field_names()
    return {name: value for name, value in content.items() if name in names}


assert tuple(field.name for field in dataclasses.fields(ModelConfig)[:-1]) == COMMON
