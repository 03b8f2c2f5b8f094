r"""LLaMA: softmax attention with rotary positions, the quadratic baseline.

    Q, K, V = x W_q, x W_k, x W_v;   O_i = softmax(rope(Q_i) rope(K_i)^T / sqrt(d/h)) V_i;   y = concat(O) W_o

Source: Scaling Laws for Linear Complexity LMs, eq. 5; x is the normalised input. Attention runs through PyTorch's SDPA.
The paper does not state the rotary base, 10,000, nor the RMSNorm with a weight, which are common LLaMA practice (its
parameter counts have two weight-and-bias norms a layer, which norm="layer" gives).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
from ...ops.softmax_recurrence import softmax_recurrence

if TYPE_CHECKING:
    from ...config import ModelConfig

# cuDNN's attention plans anew for every length of the cache: 27 instead of 130 tokens/s on an H200
DECODING = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = True) -> Tensor:
    """Softmax attention of queries [B, T, H, p] over S keys and values [B, S, heads, p or any width], whose heads, H or
    a divisor of it, are each read by as many of the queries' -> [B, T, H, width of the values]. mask: bool, True where
    t may attend to s; None: all, or `causal`, and the queries are the last of the keys' tokens where they are fewer
    (one)."""
    if mask is not None and key.shape[2] < query.shape[2]:  # no kernel takes both
        key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], 2) for x in (key, value))
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    causal, grouped = causal and mask is None and query.shape[2] == key.shape[2], key.shape[1] < query.shape[1]
    mixed = nnf.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
    return mixed.transpose(1, 2)


def decoding(cache: LayerCache) -> AbstractContextManager[None]:
    """A context for attention after a cache."""
    return sdpa_kernel(DECODING) if cache else nullcontext()


def angles(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, p/2] or [B, T, p/2] of the rotary angles, for hidden states like x."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=accumulator(x), device=x.device)
    return rotation(config.options.rope_base ** (-pairs / config.head_dim), positions)


class LlamaMixer(Mixer):
    mlp_activation: ClassVar[str] = "silu"  # eq. 6
    exchanges_heads: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, ("query", "key", "value"))

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value = self._projected(x, stream)
        if cache:
            key = torch.cat([cache["key"], key], 1)
            value = torch.cat([cache["value"], value], 1)
        with decoding(cache):
            mixed = self._attend_by(stream, query, key, value).flatten(2)
        return mixed, {"key": key, "value": value}

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return angles(config, positions, x)

    def _projected(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values, [B, T, H, p]. The values are a separate product: attention keeps them
        for the backward pass, and would keep the unrotated queries and keys with them."""
        projections = fused_linear(x, (self.project["query"], self.project["key"]), self.project["value"])
        query, key, value = (self.heads(y) for y in projections)
        rotary = stream.rotary or angles(self.config, stream.positions, query)
        return *rotate_pairs(query, key, *rotary), value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = True) -> Tensor:
        return attention(query, key, value, mask, causal)

    def _attend_by(self, stream: Stream, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`_attend` as the stream says, to whole rows."""
        attend = partial(self._attend, mask=stream.attention_mask, causal=stream.causal)
        if stream.sequence is None:
            return attend(query, key, value)
        return stream.sequence.attend(attend, query, key, value)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """The softmax weights, [B, H, T, T]."""
        query, key, _ = self._projected(x, stream)
        return attention(query, key, self.unit_values(x), stream.attention_mask).transpose(1, 2)

    def additive_mixing(self, x: Tensor, stream: Stream) -> Tensor | None:
        """The same of one unpadded document, as an additive recurrence computes it (arch/ops/softmax_recurrence.py)."""
        query, key, _ = self._projected(x, stream)
        key = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
        return softmax_recurrence(query, key, self.unit_values(x)).transpose(1, 2)
