r"""Gated DeltaNet: the delta rule with a decay per head and step, behind a short convolution.

    [q, k, v] = silu(conv(x W));   q, k / their length;   beta = sigmoid(x W_b)
    log a = -exp(A_log) softplus(x W_a + b_dt)
    S_t = (I - beta_t k_t^T k_t) a_t S_{t-1} + beta_t k_t^T v_t;   o_t = q_t S_t / sqrt(p)  S_t in R^{p x p_v}, per head
    y = concat(RMSNorm(o) * silu(x W_g)) W_o

q, k: [B, T, H, p], p = 3/4 d / H; v: [B, T, H, p_v], p_v = 2 p; beta, a: [B, T, H]. conv is causal, `conv_width`
steps, each channel alone, without bias; the norm is over a head's channels, its weight shared by the heads.
Source: Gated DeltaNet (Yang et al. 2024), eq. 10 and section 3.4. A is uniform within 0 .. 16 and dt log-uniform within
0.001 .. 0.1 at the start, as in the authors' code. `negative_eigenvalues` doubles beta (Grazzi et al. 2024).
Keys are 0.75 d and values 1.5 d wide, as in the authors' models of 0.4 and 1.3 billion parameters (options `key_dim`,
`expand_v`; Qwen3-Next has d and 2 d).
Deviations: the authors' code has a bias on beta, flash-linear-attention's has none, as here. The projections start
normal(0, init_std), as in the latter, and the convolution by nn.Conv1d's rule, as in the former. A is at least 0.0001.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ...ops.fused.pointwise import gated_product, softplus
from ..common.delta import DeltaMixer
from ..common.delta_shape import values

if TYPE_CHECKING:
    from ...config import ModelConfig


class GatedDeltaNetMixer(DeltaMixer):
    decay_rates: ClassVar[tuple[float, float]] = (1e-4, 16.0)  # not 0, which has no logarithm

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, (config.n_heads, values(config)), config.n_heads)

    def gates(self, *rest: Tensor) -> tuple[Tensor, Tensor]:
        step, gate = rest
        return -softplus(step, self.dt_bias) * self.A_log.exp(), gate

    def gated(self, mixed: Tensor, gate: Tensor) -> Tensor:
        return gated_product(self.norm(mixed), gate, "silu")
