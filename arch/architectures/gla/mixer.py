r"""Gated Linear Attention: linear attention with a forget gate per key channel.

    q, k, v = x W_q, x W_k, x W_v;   f = sigmoid(x W_1 W_2 + b)^(1 / gate_temperature)
    S_t = diag(f_t) S_{t-1} + k_t^T v_t;   o_t = q_t S_t      S_t in R^{p/2 x p}, per head
    y = (concat(RMSNorm(o)) * silu(x W_r)) W_o

q, k, f: [B, T, H, p/2], v: [B, T, H, p], p = d / H; W_1 [d, gate_rank], W_2 [gate_rank, d/2]. The norm is over a head's
channels, its weight shared by the heads. A layer has 4 d^2 parameters and the forget gate's.
Source: Gated Linear Attention Transformers with Hardware-Efficient Training (Yang et al. 2023), section 4.4.
Deviations: RMSNorm in place of LayerNorm and no bias of r, as in the authors' code; its scale of q, which the norm
undoes (up to its eps), is left out; heads are the configuration's, where the paper's models have four; gate_rank is 16
as there, but not above a head's width; the projections start normal(0, init_std).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.norms import Norm
from ...ops import gated_attention
from ...ops.fused.linear import fused_linear
from ...ops.fused.pointwise import gated_product, softplus
from .shape import keys

if TYPE_CHECKING:
    from ...config import ModelConfig


class GLAMixer(Mixer):
    mlp_activation: ClassVar[str] = "silu"

    def __init__(self, config: ModelConfig, layer: int) -> None:
        assert config.norm is not None
        wide, narrow, rank = config.d_model, keys(config), config.options.gate_rank
        widths = {"query": narrow, "key": narrow, "value": wide, "gate": wide, "forget": rank}
        super().__init__(config, layer, widths)
        self.forget = nn.Linear(rank, narrow, bias=False)
        self.forget_bias = nn.Parameter(torch.empty(narrow))
        self.norm = Norm(config.norm, config.head_dim, config.norm_eps)

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value, gate, log_f = self._operands(x, stream)
        mixed, state = self._mix(query, key, value, log_f, stream, cache)
        return gated_product(self.norm(mixed), gate, "silu").flatten(2), {"state": state}

    def _operands(self, x: Tensor, stream: Stream) -> tuple[Tensor, ...]:
        """q, k, v, the output gate's logits and log f, [B, T, H, p or p/2]."""
        *projected, low = fused_linear(x, *self.project.values())
        # log sigmoid(z + b) = -softplus(-z - b)
        log_f = softplus(-fused_linear(low, self.forget)[0], -self.forget_bias) * (
            -1 / self.config.options.gate_temperature
        )
        query, key, value, gate, log_f = (y.unflatten(-1, (self.config.n_heads, -1)) for y in (*projected, log_f))
        return query, stream.mask(key), stream.mask(value), gate, stream.mask(log_f)

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, log_f: Tensor, stream: Stream, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        return gated_attention(query, key, value, log_f, **self.reading(stream, cache))

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """f [B, T, d/2]."""
        return self._operands(x, stream)[-1].flatten(2).exp()

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """A [B, H, T, T] with o = A v in each head."""
        query, key, _, _, log_f = self._operands(x, stream)
        return self._mix(query, key, self.unit_values(x).to(log_f), log_f, stream, {})[0].transpose(1, 2)
