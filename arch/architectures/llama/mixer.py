r"""LLaMA: softmax attention with rotary positions, the quadratic baseline.

    Q, K, V = x W_q, x W_k, x W_v;   O_i = softmax(rope(Q_i) rope(K_i)^T / sqrt(d/h)) V_i;   y = concat(O) W_o

Source: Scaling Laws for Linear Complexity LMs, eq. 5; x is the normalised input. Attention runs through PyTorch's SDPA.
Not stated there and taken from common LLaMA practice: rotary base 10,000, and RMSNorm with a weight (the paper's
parameter counts hold two weight-and-bias norms a layer, which norm="layer" gives).
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...config import ModelConfig
from ...model.mixer import Mixer, Stream
from ...model.positions import rotate_pairs, rotation
from ...model.state import State
from ...ops.common import accumulator
from ...ops.fused.linear import linears

# cuDNN's attention plans anew for every length of the cache: 27 instead of 130 tokens/s on an H200
DECODING = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class LlamaMixer(Mixer):
    reads_history: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, ("query", "key", "value"))

    def forward(self, x: Tensor, stream: Stream, past: State) -> tuple[Tensor, State]:
        query, key, value = (self.heads(y) for y in linears(x, *self.project.values()))
        query, key = self._turned(query, key, stream)
        if past:
            key = torch.cat([past["key"], key], 1)
            value = torch.cat([past["value"], value], 1)
        return linears(self._attend(query, key, value, stream).flatten(2), self.out)[0], {"key": key, "value": value}

    @staticmethod
    def turns(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, p/2] or [B, T, p/2] of the rotary angles."""
        pairs = torch.arange(0, config.head_dim, 2, dtype=accumulator(x), device=x.device)
        return rotation(config.rope_base ** (-pairs / config.head_dim), positions)

    def _turned(self, query: Tensor, key: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        turns = stream.turns or self.turns(self.config, stream.positions, query)
        return rotate_pairs(query, *turns), rotate_pairs(key, *turns)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, stream: Stream) -> Tensor:
        """[B, T, H, any width] for values of that width."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if query.shape[2] < key.shape[2]:
            with sdpa_kernel(DECODING):
                mixed = nnf.scaled_dot_product_attention(query, key, value, attn_mask=stream.visible)
        else:
            mixed = nnf.scaled_dot_product_attention(
                query, key, value, attn_mask=stream.visible, is_causal=stream.visible is None
            )
        return mixed.transpose(1, 2)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """The softmax weights, [B, H, T, T]."""
        query, key, _ = (self.heads(y) for y in linears(x, *self.project.values()))
        return self._attend(*self._turned(query, key, stream), self.unit_values(x), stream).transpose(1, 2)
