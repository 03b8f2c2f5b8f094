"""ModelConfig: the shape of a model, for every architecture. Imports no torch, so that sizing tools start at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .architectures import register_all
from .encoder import EncoderConfig, reads_both
from .errors import InputError, nearest
from .options import COMMON, TYPES, Options, check_choice, check_float, check_size, kind_of
from .registry import ARCHITECTURES, architecture, archs_with, has_option, in_family, kinds_of
from .registry import NORMS as NORMS

ARCHS = register_all()  # the names of the architectures of this package
RESIDUAL_DTYPES = ("auto", "fp32")
OF_A_KIND = ("n_heads", "d_ffn", "norm", "norm_eps", "chunk_size")  # of COMMON: what layers of a pattern may differ in
ENCODER = "encoder"  # the field of encoders, of every architecture
OF_ALL = (*(field for field in COMMON if field not in ("arch", "n_layers", *OF_A_KIND)), ENCODER)
PATTERN = ("layers", "kinds")  # the keys of a pattern in files


def reads(arch: str, field: str) -> bool:
    """Whether an architecture has this field of ModelConfig: a common field, or one of its options."""
    return field in (*COMMON, ENCODER) or has_option(arch, field)


def means(arch: str, field: str) -> bool:
    """Whether models of an architecture that differ only in this field are different models: False for fields that it
    does not have, and for common fields that it ignores."""
    return any(reads(kind, field) and field not in architecture(kind).options.ignored for kind in kinds_of(arch))


def field_names() -> tuple[str, ...]:
    """The common fields, then the options of all architectures, each once."""
    options = [name for arch in ARCHITECTURES.values() for name in arch.options.names()]
    return (*COMMON, *dict.fromkeys(options))


def field_types() -> dict[str, str]:
    """{name: type as written} of `field_names`: int, int | None, float, bool, str, str | None; "int from 0" of an
    option that may be 0. An option that several architectures have admits null if it does in one of them."""
    types = {field.name: kind_of(field) for field in dataclasses.fields(ModelConfig) if field.name in COMMON}
    for field in _all_options():
        kind = kind_of(field) + " from 0" * (field.metadata["least"] == 0)
        types[field.name] = max(types.get(field.name, ""), kind, key=len)
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

    The layers of a pattern are of several kinds (`patterned` makes its configuration). `layers` names the architecture
    of each layer of a period, `parts` has the configuration of each kind: that of a model of its layers alone, whose
    n_layers is their number. What differs by kind (OF_A_KIND) is there; the model's own is that of its first layer.
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
    init_std: float | None = 0.02
    """Standard deviation of matrices at initialisation; null: 1 / sqrt(3 d_model), as PyTorch's linear layers of that
    width have."""
    chunk_size: int = 64
    """Rows of a chunk in the linear mixers; LLaMA and Mamba1 ignore it."""
    residual_dtype: str = "auto"
    """Precision of the residual stream under autocast: the compute dtype (auto) or fp32."""
    options: Any = None
    """The architecture's options, an instance of its subclass of Options."""
    encoder: EncoderConfig | None = None
    """Of an encoder, whose embeddings are never tied; null: a language model."""
    layers: tuple[str, ...] = ()
    """Of a pattern: the architecture of each layer of a period."""
    parts: tuple[ModelConfig, ...] = ()
    """Of a pattern: the configuration of each kind of layer."""

    def __post_init__(self) -> None:
        if self.layers:
            return  # `patterned` made it of configurations that were judged
        own = architecture(self.arch)
        if own.layers:
            raise InputError(f"model.layers: {self.arch} is a pattern: give its layers and kinds")
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
        check_float("norm_eps", self.norm_eps, largest=1.0)
        check_float("init_std", self.matrix_std, largest=100.0)
        fill = object.__setattr__  # frozen: only here
        if self.encoder is not None:
            fill(self, "tie_embeddings", False)
        if self.norm is None:
            fill(self, "norm", own.norm)
        check_choice("norm", self.norm, NORMS)
        options = own.options() if self.options is None else self.options
        if type(options) is not own.options:
            raise InputError(f"model.options of {self.arch} must be {own.options.__name__}, not {options!r}")
        options.check(self)
        missing = {name: value for name, value in options.derived(self).items() if getattr(options, name) is None}
        fill(self, "options", dataclasses.replace(options, **missing))
        for field in dataclasses.fields(self.options):
            if getattr(self.options, field.name) is None and kind_of(field) in TYPES:
                raise InputError(f"model.{field.name}: {own.options.__name__}.derived must give its value")
        if self.encoder is not None:
            self.encoder.check(self)

    @property
    def head_dim(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def matrix_std(self) -> float:
        """Standard deviation of matrices at initialisation, a number."""
        return 1 / math.sqrt(3 * self.d_model) if self.init_std is None else self.init_std

    @property
    def n_outputs(self) -> int:
        """Logits of the head: one for each token of the vocabulary, or for each class."""
        return self.vocab_size if self.encoder is None else self.encoder.n_classes

    @property
    def head_width(self) -> int:
        """Channels that the head reads."""
        return self.d_model if self.encoder is None else self.encoder.pooled * self.d_model

    @property
    def embedded(self) -> int:
        """Vectors of d_model channels in the embedding: one for each token, or for each number of a patch."""
        return self.vocab_size if self.encoder is None or self.encoder.patch is None else self.encoder.numbers

    def read_as(self, context_length: int) -> tuple[int, int, int]:
        """How a row of context_length ids is read: as how many sequences, of how many positions each, with how many
        outputs of the head in all."""
        if self.encoder is None:
            return 1, context_length, context_length
        return self.encoder.documents, self.encoder.n_positions(context_length), 1

    def positions(self, context_length: int) -> int:
        """Positions that layers read of a row of context_length ids, of all its documents."""
        documents, length, _ = self.read_as(context_length)
        return documents * length

    @property
    def kinds(self) -> tuple[ModelConfig, ...]:
        """The configuration of each kind of layer, in the order of their first layers: what n_layers of a kind cost
        together, and have in common, is what a model of them has. A model that is no pattern is of one kind."""
        return self.parts or (self,)

    @property
    def by_layer(self) -> list[tuple[ModelConfig, int]]:
        """Of each layer its kind, and its index among the layers of that kind."""
        kinds, count = {kind.arch: kind for kind in self.kinds}, dict.fromkeys((kind.arch for kind in self.kinds), 0)
        layers = []
        for index in range(self.n_layers):
            arch = self.layers[index % len(self.layers)] if self.layers else self.arch
            layers.append((kinds[arch], count[arch]))
            count[arch] += 1
        return layers

    def n_recomputed(self, share: float) -> int:
        """The layers, the first ones, whose activations are computed again where this share of them is asked for:
        rounded up."""
        return math.ceil(round(share * self.n_layers, 6))

    @property
    def constant_state(self) -> bool:
        """Whether the decode state has the same size after any number of tokens."""
        return all(architecture(kind.arch).constant_state for kind in self.kinds)

    def check_device(self, on_a_gpu: bool) -> None:
        """Raise InputError where some of its layers run on GPUs alone, and this is none."""
        alone = [kind.arch for kind in self.kinds if architecture(kind.arch).gpus_alone]
        if alone and not on_a_gpu:
            raise InputError(f"architecture {self.arch!r}: layers {alone[0]} run on GPUs alone, and there is none here")

    def check_split(self, processes: int) -> None:
        """Raise InputError where so many processes cannot read a part of each row (arch/model/sequence.py)."""
        if self.encoder is not None:
            raise InputError("an encoder reads whole rows, which do not split over processes")
        for kind in self.kinds:
            if in_family(kind.arch):
                raise InputError(f"layers {kind.arch} hand no state on: they read whole rows, in one process")
            if architecture(kind.arch).constant_state:
                continue
            for name, heads in {"n_heads": kind.n_heads, "n_kv_heads": getattr(kind.options, "n_kv_heads", 0)}.items():
                if heads % processes:
                    raise InputError(
                        f"{name}={heads} of {kind.arch} do not split over {processes} processes, which exchange heads: "
                        f"change one of them"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the common fields, then the architecture's options, or the layers of a pattern with the fields of
        each kind."""
        fields = {name: getattr(self, name) for name in COMMON}
        fields |= {} if self.encoder is None else {ENCODER: self.encoder.to_dict()}
        if not self.layers:
            return fields | dataclasses.asdict(self.options)
        own = {kind.arch: _without(kind.to_dict(), ("arch", "n_layers", *OF_ALL)) for kind in self.parts}
        return _without(fields, OF_A_KIND) | {"layers": list(self.layers), "kinds": own}

    def identity(self) -> dict[str, Any]:
        """The fields and options that differ from their defaults, which a run's hash is made of: a new option changes
        no hash."""
        if self.layers:
            kinds = {kind.arch: kind.identity() for kind in self.parts}
            return {"arch": self.arch, "layers": list(self.layers), "kinds": kinds}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        defaults |= {"norm": architecture(self.arch).norm} | self.options.defaults() | self.options.derived(self)
        fields = self.to_dict()
        if ENCODER in fields and not reads_both(self):
            fields[ENCODER].pop("scan", None)  # softmax layers ignore it
        return {name: value for name, value in fields.items() if value != defaults[name]}

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with `changes` of common fields and options. Options that follow from other fields are derived again
        unless they are given."""
        if self.layers:
            part_of = {kind.arch: kind for kind in self.parts}
            check_fields(part_of, changes)

            def layers_of(kind: str, n_layers: int) -> ModelConfig:
                return part_of[kind].replace(**read_by(kind, changes) | {"n_layers": n_layers})

            return patterned(self.arch, self.layers, changes.get("n_layers", self.n_layers), layers_of)
        check_fields([changes.get("arch", self.arch)], changes)
        derived = self.options.derived(self)
        fields = self.to_dict()
        underived = {name: None for name, value in derived.items() if fields[name] == value}
        return ModelConfig.from_dict(fields | underived | changes)

    def shortened(self, n_layers: int) -> ModelConfig:
        """The same model with at most `n_layers` layers; of a pattern one period at least."""
        if not self.layers:
            return dataclasses.replace(self, n_layers=min(n_layers, self.n_layers))
        return self.replace(n_layers=min(-(-n_layers // len(self.layers)) * len(self.layers), self.n_layers))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """From plain data. Raises InputError for a missing key, and as `check_fields` does."""
        if fields.get("layers"):
            return _pattern_from(fields)
        missing = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
        if missing := [name for name in missing if name not in fields]:
            raise InputError(f"model: missing {', '.join(missing)}")
        own = architecture(fields["arch"])
        check_fields([own.name], fields)
        options = own.options(**{name: fields[name] for name in own.options.names() if name in fields})
        given = {name: fields[name] for name in COMMON if name in fields}
        if fields.get(ENCODER) is not None:
            given[ENCODER] = EncoderConfig.from_dict(fields[ENCODER])
        return cls(**given, options=options)


def patterned(
    arch: str, layers: Sequence[str], n_layers: int, layers_of: Callable[[str, int], ModelConfig]
) -> ModelConfig:
    """The configuration of `n_layers` layers whose architectures follow the period `layers`. layers_of(kind, number):
    the configuration of so many layers of an architecture. Raises InputError where the depth is no whole number of
    periods."""
    check_size("n_layers", n_layers)
    if n_layers % len(layers):
        raise InputError(
            f"model.n_layers={n_layers}: {arch} repeats {len(layers)} layers ({', '.join(layers)}): give a multiple of "
            f"{len(layers)}, by a shape, a ladder or model.n_layers"
        )
    if alone := [kind for kind in layers if not architecture(kind).in_patterns and set(layers) != {kind}]:
        raise InputError(f"{arch}: {alone[0]} encodes positions before all layers: it cannot stand between others")
    counts = {kind: list(layers).count(kind) * n_layers // len(layers) for kind in dict.fromkeys(layers)}
    parts = tuple(layers_of(kind, count) for kind, count in counts.items())
    shared = {field: getattr(parts[0], field) for field in (*OF_ALL, *OF_A_KIND)}
    return ModelConfig(arch=arch, n_layers=n_layers, options=Options(), layers=tuple(layers), parts=parts, **shared)


def _without(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _pattern_from(fields: Mapping[str, Any]) -> ModelConfig:
    """A pattern's configuration from plain data."""
    layers, kinds = fields["layers"], fields.get("kinds")
    shared = {name: fields[name] for name in OF_ALL if name in fields}
    if (
        not (isinstance(layers, (list, tuple)) and isinstance(kinds, dict) and all(isinstance(k, str) for k in layers))
        or set(layers) != set(kinds)
        or any(not isinstance(own, dict) or set(own) & {*OF_ALL, "arch", "n_layers"} for own in kinds.values())
        or any(name not in (*COMMON, *PATTERN, ENCODER) for name in fields)
    ):
        raise InputError("model.layers: a pattern has layers, and the fields of each of its kinds in model.kinds")

    def layers_of(kind: str, n_layers: int) -> ModelConfig:
        return ModelConfig.from_dict({**shared, **kinds[kind], "arch": kind, "n_layers": n_layers})

    return patterned(str(fields.get("arch")), layers, fields.get("n_layers", 0), layers_of)


def read_by(arch: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields that an architecture reads, but for its name."""
    return {name: value for name, value in fields.items() if name != "arch" and reads(arch, name)}


def check_fields(archs: Iterable[str], fields: Mapping[str, Any]) -> None:
    """Raise InputError for a field that does not exist, with the nearest valid name, and for an option of other
    architectures than `archs` whose value is not its default there."""
    for name in [name for name in fields if not any(reads(arch, name) for arch in archs)]:
        others = archs_with(name)
        if name == "options":
            raise InputError("model.options: give an architecture's options flat, beside the other fields")
        if not others:
            raise InputError(f"unknown model key {name!r}{nearest(name, list(field_names()))}")
        if any(fields[name] != ARCHITECTURES[other].options.defaults()[name] for other in others):
            raise InputError(
                f"model.{name} means nothing to {', '.join(archs)}, only to {', '.join(others)}: leave it out"
            )


def archs_in(fields: Mapping[str, Any]) -> list[str]:
    """The architectures of the layers of a model's plain data."""
    layers = fields.get("layers")
    return list(map(str, layers)) if isinstance(layers, (list, tuple)) and layers else [str(fields.get("arch"))]


def model_fields_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file that are fields of ModelConfig, with their values."""
    names = (*field_names(), *PATTERN, ENCODER)
    return {name: value for name, value in content.items() if name in names}


assert tuple(field.name for field in dataclasses.fields(ModelConfig)[:-4]) == COMMON
