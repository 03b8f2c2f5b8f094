"""The transformer of today: softmax attention with grouped queries, and norms of queries and keys. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...options import Options, check_size, option
from ...registry import register
from ...sizes import ffn_beside
from .shape import mixer_size

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer

MOST_KV_HEADS = 8  # of Qwen3's dense models, at every size


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


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The d_ffn that gives a layer as many parameters as the others have, 4 d^2 + 3 d g, to a multiple of 8, of 16 from
    a width of 256 on and of 64 from 1,024 on: what grouped keys and values save, and a gate costs, is the MLP's."""
    fields = shape | {name: changes[name] for name in ("d_model", "n_heads") if name in changes}
    names = ("n_kv_heads", "attention_gate")
    options = TransformerOptions(**{name: changes[name] for name in names if name in changes})
    for name in ("d_model", "n_heads"):
        check_size(name, fields[name])
    if "d_ffn" in changes or fields["d_model"] % fields["n_heads"]:
        return {}  # which ModelConfig refuses
    if options.n_kv_heads is None:
        options = TransformerOptions(n_kv_heads=kv_heads(fields["n_heads"]), attention_gate=options.attention_gate)
    mixer = mixer_size(SimpleNamespace(**fields, options=options))
    return {"d_ffn": ffn_beside(mixer, fields["d_model"], shape["d_ffn"])}


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
        preset=preset,
        label="Transformer",
        color="#e69f00",
        aliases=("softmax",),
        constant_state=False,
    )
