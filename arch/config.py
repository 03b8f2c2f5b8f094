"""ModelConfig: the shape of a model, for every architecture. Imports no torch, so that sizing tools start at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .earlier import RENAMED, as_hashed, of_today
from .errors import InputError, nearest

ARCHS = ("llama", "tnl", "hgrn2", "cosformer2", "hgrn1", "mamba2", "mamba1")  # those of this package

# The norm each architecture uses unless the configuration says otherwise. The paper's parameter counts fit TNL and
# HGRN2 with no norm weights at all (SRMSNorm); LLaMA has a weight vector (RMSNorm). For cosFormer2 the counts hint at
# affine LayerNorms; we default to SRMSNorm so that the linear models differ in their mixers alone (set norm="layer").
# Mamba has RMSNorm.
DEFAULT_NORM = {
    "llama": "rms",
    "tnl": "srms",
    "hgrn2": "srms",
    "cosformer2": "srms",
    "hgrn1": "srms",
    "mamba2": "rms",
    "mamba1": "rms",
}
KNOWN = DEFAULT_NORM.keys()  # every architecture there is, also those that plugins register (registry.py)
NORMS = ("srms", "rms", "layer")

# Fields that mean something to these architectures only; elsewhere they must keep their default, and `to_dict` leaves
# them out.
HGRN, MAMBA = ("hgrn2", "hgrn1"), ("mamba2", "mamba1")
ONLY_FOR: dict[str, tuple[str, ...]] = {
    "value_activation": ("tnl", "cosformer2"),
    "decay_slopes": ("tnl",),
    "theta_learned": ("cosformer2",),
    "lrpe": ("cosformer2",),
    "tpe_learned_decay": ("cosformer2",),
    "tpe_context": ("cosformer2",),
    "lower_bound": HGRN,
    "input_gate": HGRN,
    "output_gate": HGRN,
    "hgrn1_state": ("hgrn1",),
    "data_dependent_theta": ("hgrn1",),
    "expansion": ("hgrn1",),
    "expand_ratio": ("hgrn1",),
    "expand": MAMBA,
    "conv_width": MAMBA,
    "ssm_state": MAMBA,
    "dt_rank": ("mamba1",),
}
# What each named choice may be; the first is the default.
CHOICES = {
    "decay_slopes": ("paper", "fixed"),
    "lrpe": ("full", "half"),
    "lower_bound": ("increasing", "off", "random", "decreasing", "only"),
    "input_gate": ("tied", "own", "none"),
    "hgrn1_state": ("complex", "real", "real_2d", "narrow"),
    "expansion": ("none", "naive", "lr", "glt", "glti", "krp", "kp"),
    "residual_dtype": ("auto", "fp32"),
}
# Choices of the ablations. A run's identity (`identity`) names them only where they differ from the default, so that
# another choice can be added here without giving every run there is another hash.
ABLATIONS = (
    "value_activation",
    "decay_slopes",
    "theta_learned",
    "lrpe",
    "tpe_learned_decay",
    "lower_bound",
    "input_gate",
    "output_gate",
    "data_dependent_theta",
    "expansion",
    "expand_ratio",
)
SSM_STATE = {"mamba2": 128, "mamba1": 16}  # as published
LARGEST = 10**10  # of any size: what is larger is a slip of the pen
LARGEST_FLOAT = {"norm_eps": 1.0, "init_std": 100.0, "rope_base": 1e12}


def reads(arch: str, field: str) -> bool:
    """Whether a field of ModelConfig means something to an architecture."""
    return field not in ONLY_FOR or arch in ONLY_FOR[field]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that determines a model's parameters and its function.

    `norm`, `gate_rank`, `tpe_dim`, `tpe_context`, `ssm_state` and `dt_rank` may be left None; their values are then
    filled in at construction, so a ModelConfig never holds an unresolved field (the last three stay None where they
    mean nothing).
    Mamba has no MLP and ignores `d_ffn`. Raises InputError for sizes that cannot work, and for fields that
    contradict each other or mean nothing to the architecture. Each ablation is one field; its default is the model of
    the paper. What a choice means is written in the mixer that reads it.
    """

    arch: str
    d_model: int
    n_layers: int
    n_heads: int
    d_ffn: int
    vocab_size: int = 100_280
    context_length: int = 8192
    tie_embeddings: bool = True
    norm: str | None = None  # srms | rms | layer
    norm_eps: float = 1e-6
    init_std: float = 0.02
    chunk_size: int = 64  # rows of a chunk in the linear mixers; LLaMA and Mamba1 ignore it
    rope_base: float = 10_000.0  # LLaMA
    gate_rank: int | None = None  # TNL, cosFormer2: width t of the low-rank output gate; default: head dimension
    tpe_context: int | None = None  # cosFormer2: longest time constant of that encoding in tokens; default: the context
    tpe_dim: int | None = None  # cosFormer2: width e of the Toeplitz position encoding; default: head dimension
    tpe_residual: bool = True  # cosFormer2: x + TPE(x) instead of TPE(x), which the paper writes
    tpe_learned_decay: bool = False  # cosFormer2: the poles of the position encoding are learned, + e parameters
    value_activation: bool = False  # TNL, cosFormer2: silu on v, as the authors' later code has it and no paper
    decay_slopes: str = "paper"  # TNL: paper: they follow from the number of heads | fixed: the fastest does not
    theta_learned: bool = True  # cosFormer2: angles of LRPE are parameters; False: they stay where they start
    lrpe: str = "full"  # cosFormer2: full: all channels rotate; half: the first half of a head, the same in each head
    lower_bound: str = "increasing"  # HGRN's forget gates: increasing with depth | off | random | decreasing | only
    input_gate: str = "tied"  # HGRN: tied: 1 - f | own: a projection and sigmoid of its own | none
    output_gate: bool = True  # HGRN
    data_dependent_theta: bool = False  # HGRN1: theta = x W instead of one angle a channel
    expansion: str = "none"  # HGRN1, narrow: how gates and input grow to expand_ratio x d (HGRN2, table 2)
    expand_ratio: int = 1  # HGRN1 with an expansion: n, states per channel
    hgrn1_state: str = "complex"  # HGRN1: complex | real | real_2d | narrow: widths and gates in hgrn1_shape.py
    expand: int = 2  # Mamba: inner width over d_model
    conv_width: int = 4  # Mamba: steps of the short convolution
    ssm_state: int | None = None  # Mamba: width N of the state, default 128 (Mamba2) or 16 (Mamba1)
    dt_rank: int | None = None  # Mamba1: rank of the step sizes' projection, default d_model / 16, rounded up
    residual_dtype: str = "auto"  # of the residual stream under autocast: its compute dtype (auto) or fp32

    def __post_init__(self) -> None:
        if not isinstance(self.arch, str) or self.arch not in KNOWN:
            raise InputError(f"unknown architecture {self.arch!r}{nearest(str(self.arch), list(KNOWN))}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"model.{field.name} must be true or false, not {value!r}")
        sizes = ("d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "chunk_size")
        for name in (*sizes, "expand", "conv_width", "expand_ratio"):
            value = getattr(self, name)
            _check_size(name, value)
        if self.d_model % self.n_heads:
            raise InputError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}: "
                f"choose a head count that divides it"
            )
        if self.arch == "llama" and self.head_dim % 2:
            raise InputError(f"model: rotary embedding needs an even head dimension, not {self.head_dim}")
        if self.chunk_size & (self.chunk_size - 1):
            raise InputError(f"model.chunk_size must be a power of two, not {self.chunk_size}")
        for name, valid in CHOICES.items():
            _check_choice(name, getattr(self, name), valid)
        for name, largest in LARGEST_FLOAT.items():
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise InputError(f"model.{name} must be a positive number, not {value!r}")
            if value > largest:
                raise InputError(f"model.{name}={value:g} is absurdly large: at most {largest:g}")
        self._refuse_contradictions()
        fill = object.__setattr__  # frozen: only here
        if self.norm is None:
            fill(self, "norm", DEFAULT_NORM[self.arch])
        _check_choice("norm", self.norm, NORMS)
        if self.ssm_state is None:
            fill(self, "ssm_state", SSM_STATE.get(self.arch))
        if self.dt_rank is None and self.arch == "mamba1":
            fill(self, "dt_rank", self.default_dt_rank)
        if self.tpe_context is None and self.arch in ONLY_FOR["tpe_context"]:
            fill(self, "tpe_context", self.context_length)
        for name in ("gate_rank", "tpe_dim"):
            if getattr(self, name) is None:
                fill(self, name, self.head_dim)
        for name in ("gate_rank", "tpe_dim", "tpe_context", "ssm_state", "dt_rank"):
            value = getattr(self, name)
            if value is not None:
                _check_size(name, value)

    def _refuse_contradictions(self) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, archs in ONLY_FOR.items():
            if not reads(self.arch, name) and getattr(self, name) != defaults[name]:
                raise InputError(f"model.{name} means nothing to {self.arch}, only to {', '.join(archs)}: leave it out")
        if self.data_dependent_theta and self.hgrn1_state != "complex":
            raise InputError("model.data_dependent_theta needs hgrn1_state complex: a real state has no angle")
        if self.expansion != "none" and self.hgrn1_state != "narrow":
            raise InputError(f"model.expansion={self.expansion} is of narrow states: set hgrn1_state to narrow")
        if self.expansion == "none" and self.expand_ratio != 1:
            raise InputError(
                f"model.expand_ratio={self.expand_ratio} needs an expansion: {', '.join(CHOICES['expansion'][1:])}"
            )
        if self.lower_bound == "only" and self.input_gate == "none":
            raise InputError(
                "model.lower_bound=only with input_gate=none leaves no gate on the state that depends on the token: "
                "choose another input_gate"
            )
        if self.expansion in ("glt", "glti") and self.d_model % self.expand_ratio:
            raise InputError(
                f"model.expansion={self.expansion} cuts d_model={self.d_model} into expand_ratio={self.expand_ratio} "
                f"groups of one width: choose a ratio that divides it"
            )

    @property
    def head_dim(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def default_dt_rank(self) -> int:
        """d_model / 16, rounded up."""
        return -(-self.d_model // 16)

    @property
    def bound_dim(self) -> int:
        """HGRN: lower bounds of a layer's forget gates."""
        return self.d_model * (2 if self.hgrn1_state == "real_2d" else 1)

    @property
    def forget_dim(self) -> int:
        """HGRN: forget gates of a layer; the n states that an expansion makes of a channel have one bound."""
        return self.bound_dim * self.expand_ratio

    @property
    def inner_dim(self) -> int:
        """Mamba: width of what the recurrence mixes. Its heads are inner_dim / n_heads wide."""
        return self.expand * self.d_model

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the fields of other architectures (ONLY_FOR)."""
        return {k: v for k, v in dataclasses.asdict(self).items() if reads(self.arch, k)}

    def identity(self) -> dict[str, Any]:
        """What a run's hash is made of: `to_dict` without the ablations that are at their default, by the names that
        fields had at first."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        fields = {k: v for k, v in self.to_dict().items() if k not in ABLATIONS or v != defaults[k]}
        if self.tpe_context == self.context_length:
            del fields["tpe_context"]
        return as_hashed(fields)

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with `changes`; fields derived from the head dimension are derived again unless given."""
        fields = self.to_dict()
        for name in ("gate_rank", "tpe_dim"):
            if fields[name] == self.head_dim and name not in changes:
                fields[name] = None
        if self.tpe_context == self.context_length and "context_length" in changes:
            fields["tpe_context"] = None
        if self.dt_rank == self.default_dt_rank and "dt_rank" in fields:
            fields["dt_rank"] = None
        return ModelConfig.from_dict(fields | changes)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ModelConfig:
        """From plain data, also that of earlier versions; an unknown key is an error with its name and the nearest
        valid one."""
        fields = of_today(fields)
        valid = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in valid:
                raise InputError(f"unknown model key {key!r}{nearest(key, valid)}")
        missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in fields]
        if missing:
            raise InputError(f"model: missing {', '.join(missing)}")
        return cls(**fields)


def _check_size(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InputError(f"model.{name} must be a positive integer, not {value!r}")
    if value > LARGEST:
        raise InputError(f"model.{name} is absurdly large: at most {LARGEST:,}")


def _check_choice(name: str, value: Any, valid: Iterable[str]) -> None:
    if value not in valid:
        hint = nearest(value, list(valid)) if isinstance(value, str) else ""
        hint = hint if "did you mean" in hint else ""  # all are listed already
        raise InputError(f"model.{name} must be one of {', '.join(valid)}, not {value!r}{hint}")


def stored_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """What of a stored file's keys and values is a ModelConfig's, for `from_dict`: also under an earlier name."""
    return {name: value for name, value in found.items() if name in FIELDS or name in RENAMED}


FIELDS = tuple(field.name for field in dataclasses.fields(ModelConfig))
