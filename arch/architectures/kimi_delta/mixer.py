r"""Kimi Delta Attention: the delta rule with a decay per key channel and step, behind a short convolution.

    [q, k, v] = silu(conv(x W));   q, k / their length;   beta = sigmoid(x W_b)
    log a = -exp(A_log) softplus(x W_a1 W_a2 + b_dt)
    S_t = (I - beta_t k_t^T k_t) diag(a_t) S_{t-1} + beta_t k_t^T v_t;   o_t = q_t S_t / sqrt(p)         per head
    y = concat(RMSNorm(o) * sigmoid(x W_g1 W_g2)) W_o

q, k, a: [B, T, H, p], p = d / H; v: [B, T, H, p]; beta: [B, T, H]; A_log: [H] (options `key_dim`, `expand_v`). W_a1 and
W_g1 are `gate_rank` wide. conv and norm are as in gated_deltanet.
Source: Kimi Linear (Moonshot AI 2025), section 3 to 4, and its public code for decays and their start (A uniform within
1 .. 16, dt log-uniform within 0.001 .. 0.1).
Deviations: the projections start normal(0, init_std), the convolution by nn.Conv1d's rule. W_g2 has no bias, where
flash-linear-attention's has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from ...ops.fused.linear import fused_linear
from ...ops.fused.pointwise import softplus
from ..common.delta import DeltaMixer
from ..common.delta_shape import keys, values

if TYPE_CHECKING:
    from ...config import ModelConfig


class KimiDeltaMixer(DeltaMixer):
    decay_rates: ClassVar[tuple[float, float]] = (1.0, 16.0)

    def __init__(self, config: ModelConfig, layer: int) -> None:
        rank = config.options.gate_rank
        super().__init__(config, layer, (rank, rank), keys(config))
        self.decay = nn.Linear(rank, keys(config), bias=False)
        self.gate = nn.Linear(rank, values(config), bias=False)

    def gates(self, *rest: Tensor) -> tuple[Tensor, Tensor]:
        decay, gate = (fused_linear(x, up)[0] for x, up in zip(rest, (self.decay, self.gate), strict=True))
        return -self._by_head(softplus(decay, self.dt_bias)) * self.A_log.exp()[:, None], gate

    def gated(self, mixed: Tensor, gate: Tensor) -> Tensor:
        return self.norm(mixed, gate)
