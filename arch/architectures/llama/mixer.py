r"""LLaMA: softmax attention with rotary positions, the quadratic baseline.

    Q, K, V = x W_q, x W_k, x W_v;   O_i = softmax(rope(Q_i) rope(K_i)^T / sqrt(d/h)) V_i;   y = concat(O) W_o

Source: Scaling Laws for Linear Complexity LMs, eq. 5; x is the normalised input. Attention runs through PyTorch's SDPA.
The paper does not state the rotary base, 10,000, nor the RMSNorm with a weight, which are common LLaMA practice (its
parameter counts have two weight-and-bias norms a layer, which norm="layer" gives).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.positions import rotate_pairs, rotation
from ...ops.common import accumulator
from ...ops.fused.linear import fused_linear

if TYPE_CHECKING:
    from ...config import ModelConfig

# cuDNN's attention plans anew for every length of the cache: 27 instead of 130 tokens/s on an H200
DECODING = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class LlamaMixer(Mixer):
    mlp_activation: ClassVar[str] = "silu"  # eq. 6

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, ("query", "key", "value"))

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value = self._projected(x, stream)
        if cache:
            key = torch.cat([cache["key"], key], 1)
            value = torch.cat([cache["value"], value], 1)
        return self._attend(query, key, value, stream).flatten(2), {"key": key, "value": value}

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, p/2] or [B, T, p/2] of the rotary angles."""
        pairs = torch.arange(0, config.head_dim, 2, dtype=accumulator(x), device=x.device)
        return rotation(config.options.rope_base ** (-pairs / config.head_dim), positions)

    def _projected(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values, [B, T, H, p]. The values are a separate product: attention keeps them
        for the backward pass, and would keep the unrotated queries and keys with them."""
        projections = fused_linear(x, (self.project["query"], self.project["key"]), self.project["value"])
        query, key, value = (self.heads(y) for y in projections)
        rotary = stream.rotary or self.rotary(self.config, stream.positions, query)
        return *rotate_pairs(query, key, *rotary), value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, stream: Stream) -> Tensor:
        """Attention over values [B, T, H, any width], of the same shape."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if query.shape[2] < key.shape[2]:
            with sdpa_kernel(DECODING):
                mixed = nnf.scaled_dot_product_attention(query, key, value, attn_mask=stream.attention_mask)
        else:
            mixed = nnf.scaled_dot_product_attention(
                query, key, value, attn_mask=stream.attention_mask, is_causal=stream.attention_mask is None
            )
        return mixed.transpose(1, 2)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """The softmax weights, [B, H, T, T]."""
        query, key, _ = self._projected(x, stream)
        return self._attend(query, key, self.unit_values(x), stream).transpose(1, 2)
