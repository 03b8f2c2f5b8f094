"""ModelConfig: the shape of a model, for every architecture. Imports no torch, so that sizing tools start at once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .errors import InputError, nearest

ARCHS = ("llama", "tnl", "hgrn2", "cosformer2", "hgrn1", "mamba2", "mamba1")

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
NORMS = ("srms", "rms", "layer")

# Fields that mean something to these architectures only. `to_dict` leaves them out elsewhere, so that a run of another
# architecture keeps its hash when a field is added here.
ONLY_FOR = {
    "hgrn1_complex": ("hgrn1",),
    "expand": ("mamba2", "mamba1"),
    "conv_width": ("mamba2", "mamba1"),
    "ssm_state": ("mamba2", "mamba1"),
    "dt_rank": ("mamba1",),
}
SSM_STATE = {"mamba2": 128, "mamba1": 16}  # as published


@dataclass(frozen=True)
class ModelConfig:
    """Everything that determines a model's parameters and its function.

    `norm`, `gate_rank`, `tpe_dim`, `ssm_state` and `dt_rank` may be left None; their values are then filled in at
    construction, so a ModelConfig never holds an unresolved field (the last two stay None where they mean nothing).
    Mamba has no channel mixer and ignores `d_ffn`. Raises InputError for sizes that cannot work.
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
    tpe_dim: int | None = None  # cosFormer2: width e of the Toeplitz position encoding; default: head dimension
    tpe_residual: bool = True  # cosFormer2: x + TPE(x) instead of TPE(x), which the paper writes
    hgrn1_complex: bool = True  # HGRN1: complex states, 2 d numbers wide, as in its paper; False: real ones, d wide
    expand: int = 2  # Mamba: inner width over d_model
    conv_width: int = 4  # Mamba: steps of the short convolution
    ssm_state: int | None = None  # Mamba: width N of the state, default 128 (Mamba2) or 16 (Mamba1)
    dt_rank: int | None = None  # Mamba1: rank of the step sizes' projection, default d_model / 16, rounded up
    residual_dtype: str = "auto"  # of the residual stream under autocast: its compute dtype (auto) or fp32

    def __post_init__(self) -> None:
        if self.arch not in ARCHS:
            raise InputError(f"unknown architecture {self.arch!r}{nearest(self.arch, list(ARCHS))}")
        sizes = ("d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "chunk_size")
        for name in (*sizes, "expand", "conv_width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise InputError(f"model.{name} must be a positive integer, not {value!r}")
        if self.d_model % self.n_heads:
            raise InputError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}: "
                f"choose a head count that divides it"
            )
        if self.arch == "llama" and self.head_dim % 2:
            raise InputError(f"model: rotary embedding needs an even head dimension, not {self.head_dim}")
        if self.chunk_size & (self.chunk_size - 1):
            raise InputError(f"model.chunk_size must be a power of two, not {self.chunk_size}")
        if self.residual_dtype not in ("auto", "fp32"):
            raise InputError(f"model.residual_dtype must be 'auto' or 'fp32', not {self.residual_dtype!r}")
        for name in ("norm_eps", "init_std", "rope_base"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise InputError(f"model.{name} must be a positive number, not {value!r}")
        fill = object.__setattr__  # frozen: only here
        if self.norm is None:
            fill(self, "norm", DEFAULT_NORM[self.arch])
        if self.norm not in NORMS:
            raise InputError(f"unknown norm {self.norm!r}{nearest(str(self.norm), list(NORMS))}")
        if self.ssm_state is None:
            fill(self, "ssm_state", SSM_STATE.get(self.arch))
        if self.dt_rank is None and self.arch == "mamba1":
            fill(self, "dt_rank", self.default_dt_rank)
        for name in ("gate_rank", "tpe_dim"):
            if getattr(self, name) is None:
                fill(self, name, self.head_dim)
        for name in ("gate_rank", "tpe_dim", "ssm_state", "dt_rank"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise InputError(f"model.{name} must be a positive integer, not {getattr(self, name)!r}")

    @property
    def head_dim(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def default_dt_rank(self) -> int:
        """d_model / 16, rounded up."""
        return -(-self.d_model // 16)

    @property
    def inner_dim(self) -> int:
        """Mamba: width of what the recurrence mixes. Its heads are inner_dim / n_heads wide."""
        return self.expand * self.d_model

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the fields of other architectures (ONLY_FOR)."""
        return {k: v for k, v in dataclasses.asdict(self).items() if self.arch in ONLY_FOR.get(k, ARCHS)}

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with `changes`; fields derived from the head dimension are derived again unless given."""
        fields = self.to_dict()
        for name in ("gate_rank", "tpe_dim"):
            if fields[name] == self.head_dim and name not in changes:
                fields[name] = None
        if self.dt_rank == self.default_dt_rank and "dt_rank" in fields:
            fields["dt_rank"] = None
        return ModelConfig.from_dict(fields | changes)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ModelConfig:
        """From plain data; an unknown key is an error with its name and the nearest valid one."""
        valid = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in valid:
                raise InputError(f"unknown model key {key!r}{nearest(key, valid)}")
        missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in fields]
        if missing:
            raise InputError(f"model: missing {', '.join(missing)}")
        return cls(**fields)


FIELDS = tuple(field.name for field in dataclasses.fields(ModelConfig))
