"""cosFormer2: linear attention without decay, positions by cosines and a Toeplitz filter. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...options import Options, option
from ...registry import register
from ...sizes import layers_at_paper_size

if TYPE_CHECKING:
    from ...config import ModelConfig
    from ...model.mixer import Mixer


@dataclass(frozen=True)
class CosFormer2Options(Options):
    """The options of cosFormer2."""

    gate_rank: int | None = option(None)
    """Width of the low-rank output gate; null: the head dimension."""
    value_activation: bool = option(False, ablation=True)
    """silu on v, as in the authors' later code and in no paper."""
    theta_learned: bool = option(True, ablation=True)
    """The angles of LRPE are parameters; false: they are constant."""
    lrpe: str = option("full", choices=("full", "half"), ablation=True)
    """`full`: all channels rotate; `half`: the first half of a head rotates, by the same angles in each head."""
    tpe_dim: int | None = option(None)
    """Width of TPE, the Toeplitz position encoding; null: the head dimension."""
    tpe_context: int | None = option(None)
    """Longest time constant of TPE; null: the context length."""
    tpe_residual: bool = option(True)
    """x + TPE(x) instead of the paper's TPE(x)."""
    tpe_learned_decay: bool = option(False, ablation=True)
    """The poles of TPE are learned: tpe_dim more parameters."""

    def derived(self, config: ModelConfig) -> dict[str, int]:
        return {"gate_rank": config.head_dim, "tpe_dim": config.head_dim, "tpe_context": config.context_length}


def preset(size: str, shape: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return layers_at_paper_size(size)


def mixer_class() -> type[Mixer]:
    from .mixer import CosFormer2Mixer

    return CosFormer2Mixer


def register_this() -> None:
    """Register this architecture."""
    register(
        "cosformer2",
        mixer=mixer_class,
        options=CosFormer2Options,
        preset=preset,
        label="cosFormer2",
        color="#b4479b",
        aliases=("cos2",),
        in_patterns=False,
    )
