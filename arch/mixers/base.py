"""What every token mixer is given besides its input, and the projections they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ModelConfig


@dataclass(frozen=True)
class Stream:
    """What travels beside the residual stream through one forward pass."""

    start: int = 0  # position of the first token
    form: str | None = None  # form of the sequence operations; None: the fast one
    bounds: Tensor | None = None  # HGRN2: lower bound of the forget gates, [layers, d], fp32


class Mixer(nn.Module):
    """Projections `names` from d to d, an output projection, and heads of config.head_dim channels."""

    def __init__(self, config: ModelConfig, layer: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.project = nn.ModuleDict({name: nn.Linear(config.d_model, config.d_model, bias=False) for name in names})
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, H, p]."""
        return x.unflatten(-1, (self.config.n_heads, self.config.head_dim))

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        """[B, T, d], already normalised -> [B, T, d]."""
        raise TypeError(f"{type(self).__name__} must define forward")


class LowRankGate(nn.Module):
    """sigmoid(x W_down W_up), rank t, no activation between (eq. 9: G)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.up(self.down(x)))
