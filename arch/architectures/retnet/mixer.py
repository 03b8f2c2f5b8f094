r"""RetNet: multi-scale retention, linear attention with a fixed decay per head and rotary positions.

    q, k = rope(x W_q), rope(x W_k);  v = x W_v;   S_t = lam_h S_{t-1} + k_t^T v_t;   o_t = q_t S_t
    y = (concat(RMSNorm(o)) * silu(x W_g)) W_o;   lam_h = 1 - 2^(-5 - h),   h = 0 .. H - 1

q, k: [B, T, H, p], p = d / H; v: [B, T, H, p_v], p_v = expand_v p; S: [p, p_v] per head. The norm is over a head's
channels, its weight shared by the heads. rope turns pairs of channels by angles t theta, theta_c = rope_base^(-2c/p):
the paper's e^{i n theta}, xPos without its scale.
Source: Retentive Network (Sun et al. 2023), section 2.1 to 2.3.
Deviations: RMSNorm in place of GroupNorm; no scale of q k^T and of its rows, which the norm undoes (up to its eps); the
MLP is gated (SwiGLU) as the other models' and pays for what the mixer has beyond 4 d^2, 4 d^2 at expand_v = 2 (the
paper's MLP is 2 d wide, with GELU); the projections start normal(0, init_std); heads are the configuration's, where the
paper's have 256 channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ...model.cache import LayerCache
from ...model.mixer import Stream
from ...model.norms import Norm
from ...model.positions import rotate_pairs
from ...ops import decay_attention
from ...ops.fused.linear import fused_linear
from ...ops.fused.pointwise import gated_product
from ..common.fixed_decays import FixedDecays
from ..llama.mixer import angles
from .shape import values

if TYPE_CHECKING:
    from ...config import ModelConfig


class RetNetMixer(FixedDecays):
    mlp_activation: ClassVar[str] = "silu"

    def __init__(self, config: ModelConfig, layer: int) -> None:
        assert config.norm is not None
        wide = values(config)
        widths = {"query": config.d_model, "key": config.d_model, "value": wide, "gate": wide}
        super().__init__(config, layer, widths, wide)
        self.set_decays([math.log1p(-(2.0 ** (-5 - head))) for head in range(config.n_heads)])
        self.norm = Norm(config.norm, wide // config.n_heads, config.norm_eps)

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return angles(config, positions, x)

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value, gate = self._projected(x, stream)
        mixed, state = self._mix(query, key, value, stream, cache)
        return gated_product(self.norm(mixed), gate, "silu").flatten(2), {"state": state}

    def _projected(self, x: Tensor, stream: Stream) -> tuple[Tensor, ...]:
        """q and k [B, T, H, p], rotated, v and the gate's logits [B, T, H, p_v]. v is a separate product: with q and k
        in one it would keep these before they are rotated."""
        to_query, to_key, *rest = self.project.values()
        projected = fused_linear(x, (to_query, to_key), *rest)
        query, key, value, gate = (y.unflatten(-1, (self.config.n_heads, -1)) for y in projected)
        rotary = stream.rotary or angles(self.config, stream.positions, x)
        return *rotate_pairs(query, key, *rotary), value, gate

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, stream: Stream, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        return decay_attention(
            query, stream.mask(key), stream.mask(value), self._log_decays(value, stream), **self.reading(stream, cache)
        )

    def _log_decays(self, x: Tensor, stream: Stream) -> Tensor:
        """[H], or [B, T, H] where there is padding."""
        decays = self.decays_like(x)
        return decays if stream.padding_mask is None else stream.mask(decays.expand(*x.shape[:2], -1))

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """lam of each head [B, T, H], the same for all tokens."""
        return self._log_decays(x, stream).exp().expand(*x.shape[:2], -1)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """q_t . k_s times the decays from s to t, [B, H, T, T]."""
        query, key, *_ = self._projected(x, stream)
        return self._mix(query, key, self.unit_values(x).to(query), stream, {})[0].transpose(1, 2)
