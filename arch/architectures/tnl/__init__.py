"""TNL (TransNormerLLM): linear attention with a fixed decay per head and layer. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import Options, option
from ...registry import register
from ...sizes import PAPER, layers_at_paper_size, matrices
from .decays import drift

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class TNLOptions(Options):
    """The options of TNL."""

    gate_rank: int | None = option(None)
    """Width of the low-rank gate; null: the head dimension (GLA: at most 16)."""
    value_activation: bool = option(False, ablation=True)
    """silu on v, as in the authors' later code and in no paper."""
    decay_slopes: str = option("paper", choices=("paper", "fixed"), ablation=True)
    """`paper`: the decays depend on the number of heads; `fixed`: the fastest is the same for every number of heads."""
    decay: str = option("independent", choices=("independent", "dependent", "none"), ablation=True)
    """`independent` of the data: a constant for each head; `dependent`: a decay for each token and head, which
    starts at that constant; `none`: no decay."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"gate_rank": config.head_dim}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The paper's decays from its smallest model on. Smaller ones have few heads, of which none would be fast."""
    small = matrices(shape["n_layers"], shape["d_model"], shape["d_ffn"]) < matrices(*PAPER["70m"])
    return layers_at_paper_size(size) | {"decay_slopes": "fixed" if small else "paper"}


def mixer_class() -> type[Mixer]:
    from .mixer import TNLMixer

    return TNLMixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "tnl",
        mixer=mixer_class,
        options=TNLOptions,
        preset=preset,
        label="TNL",
        color="#d55e00",
        warn=drift,
        ladder={"decay_slopes": "fixed"},
    )
