"""The transformer of today: softmax attention with grouped queries, and norms of queries and keys. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...options import Options, option
from ...registry import register
from ..common.ffn_beside import ffn_beside
from .shape import matrices

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer

MOST_KV_HEADS = 8  # of Qwen3's dense models, at every size
UNEVEN = 2  # times as many heads of queries that read a head of keys


@dataclass(frozen=True)
class TransformerOptions(Options):
    """The options of softmax attention."""

    ignored = ("chunk_size",)

    n_kv_heads: int | None = option(None)
    """Heads of keys and values, each read by several heads of queries; null: half of the heads, at most 8 (the largest
    number up to that which divides n_heads)."""
    qk_norm: bool = option(True)
    """A norm of each head's queries and keys."""
    window: int = option(0, least=0)
    """Tokens that a token reads, itself among them; 0: all before it."""
    position: str = option("rotary", choices=("rotary", "none"))
    """`rotary`: queries and keys are rotated by their positions; `none`: the mask alone tells positions."""
    rope_base: float = option(10_000.0)
    """The rotary angle of channel pair c is position x rope_base^(-2c / head dimension)."""
    attention_gate: bool = option(False)
    """Whether there is an output gate."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"n_kv_heads": kv_heads(config.n_heads)}

    def check(self, config: ModelConfig) -> None:
        if self.position == "rotary" and config.head_dim % 2:
            raise InputError(f"model: rotary embedding needs an even head dimension, not {config.head_dim}")
        if self.n_kv_heads is not None and config.n_heads % self.n_kv_heads:
            raise InputError(
                f"model.n_kv_heads={self.n_kv_heads} does not divide n_heads={config.n_heads}: choose one that does"
            )


def kv_heads(n_heads: int) -> int:
    """Qwen3's rule: 8 of 16 to 64 heads."""
    return max(n for n in range(1, max(1, min(MOST_KV_HEADS, n_heads // 2)) + 1) if n_heads % n == 0)


def drift(models: Sequence[tuple[str, ModelConfig]]) -> str | None:
    """A warning where at one size more than UNEVEN times as many heads of queries read a head of keys as at another: as
    n_kv_heads divides n_heads, 8 heads have 4 and 7 have 1. None where it is not so.

    models: (name of the size, configuration) of all models of a study of this architecture.
    """
    readers = {name: config.n_heads // int(config.options.n_kv_heads) for name, config in models}
    most, fewest = (pick(readers, key=lambda name: readers[name]) for pick in (max, min))
    if readers[most] <= UNEVEN * readers[fewest]:
        return None
    return (
        f"transformer: {readers[most]} heads of queries read a head of keys at {most} and {readers[fewest]} at "
        f"{fewest}, which confounds a law; n_kv_heads in overrides.by_size evens it, or sizes whose heads are even"
    )


def mixer_class() -> type[Mixer]:
    from .mixer import TransformerMixer

    return TransformerMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "transformer",
        mixer=mixer_class,
        norm="rms",
        options=TransformerOptions,
        preset=ffn_beside(TransformerOptions, matrices),
        label="Transformer",
        color="#e69f00",
        aliases=("softmax",),
        constant_state=False,
        warn=drift,
    )
