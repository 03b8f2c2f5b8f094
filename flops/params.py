"""Parameters of a configuration, module by module, equal to the instantiated model's. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from arch.config import ModelConfig
from arch.errors import InputError

from .entry import norm_size, summed
from .registry import entry_of

EMBEDDING = ("embedding", "positions", "head")
LARGEST = 10**15  # of any one number: beyond it a count means nothing, and its powers no longer fit a float


def require_count(name: str, value: object) -> None:
    """Raise InputError unless `value` is a positive integer, up to LARGEST."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InputError(f"{name} must be a positive integer, not {value!r}")
    if value > LARGEST:
        raise InputError(f"{name} is too large to count: at most {LARGEST:.0e}")


@dataclass(frozen=True)
class ParamCount:
    """Numbers of parameters; `by_module` sums each module over the layers.

    `embedding` holds the embedding, an encoder's positions and, where it is not tied, the head; `non_embedding` is
    everything else.
    """

    by_module: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_module.values())

    @property
    def embedding(self) -> int:
        return sum(self.by_module.get(name, 0) for name in EMBEDDING)

    @property
    def non_embedding(self) -> int:
        return self.total - self.embedding


def layer_matrices(cfg: ModelConfig) -> dict[str, int]:
    """Weight matrices of one layer of a kind, name -> size: the token mixer's, and the gated linear unit's 3dg if there
    is one, or 2dg without a gate. No biases."""
    entry, channel = entry_of(cfg.arch), cfg.d_model * cfg.d_ffn
    names = (*["ffn.gate"] * entry.gated_mlp, "ffn.up", "ffn.down") if entry.has_mlp else ()
    return entry.matrices(cfg) | dict.fromkeys(names, channel)


def layer_params(cfg: ModelConfig) -> dict[str, int]:
    """All parameters of one layer of a kind, name -> size."""
    entry = entry_of(cfg.arch)
    return layer_matrices(cfg) | entry.vectors(cfg) | {"norms": (1 + entry.has_mlp) * norm_size(cfg)}


def count_params(cfg: ModelConfig) -> ParamCount:
    """Parameters of the model that `cfg` describes, exactly.

    Embedding V d (tied; the untied head adds V d, an encoder's its width times n_classes); a layer has its token mixer
    (architectures/), the MLP 3 d g and two norms (Mamba: no MLP, one norm); one final norm. Fixed decays and buffers
    are not parameters.
    """
    modules = {"embedding": cfg.embedded * cfg.d_model}
    if cfg.encoder is not None and cfg.encoder.positions == "learned":
        modules["positions"] = cfg.encoder.n_positions(cfg.context_length) * cfg.d_model
    if not cfg.tie_embeddings:
        modules["head"] = cfg.head_width * cfg.n_outputs
    modules |= summed(entry_of(kind.arch).once(kind) for kind in cfg.kinds)
    modules |= summed(
        {name: kind.n_layers * size for name, size in layer_params(kind).items() if size} for kind in cfg.kinds
    )
    if norm_size(cfg):
        modules["final_norm"] = norm_size(cfg)
    return ParamCount(modules)
