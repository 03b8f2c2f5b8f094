r"""The transformer of today, the baseline of studies of hybrids, and their softmax layers.

    Q = rope(Norm(x W_q)), K = rope(Norm(x W_k)), V = x W_v;  o_i = softmax(Q_i K_g^T / sqrt(d/h)) V_g;  y = o W_o

K and V have n_kv_heads heads, of which each is read by h / n_kv_heads heads of Q (grouped queries); Norm is over each
head's channels, its weights shared by the heads. Defaults are those of Qwen3's dense models (Yang et al. 2025, Qwen3
Technical Report, section 2, in pre-training: RMSNorm before each branch, SwiGLU, no biases, 8 heads of keys and values,
rotary base 10,000). Deviations: heads of d / h channels, where its smaller models have wider ones (128), and the norms'
weights are the configuration's (`norm`).

Options: `window`, of W tokens: token t reads tokens t - W + 1 .. t, and the cache holds W - 1; `position: none` (as
hybrids' softmax layers may have, whose linear layers tell positions); `attention_gate`: y = (o * sigmoid(x W_g)) W_o,
for each channel (Qiu et al. 2025, Gated Attention for Large Language Models, as Qwen3-Next has it).

Attention runs through PyTorch's SDPA: over the whole square, or with a window short enough in blocks of W queries, each
of which reads 2 W keys (shape.blocks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.norms import Norm
from ...model.positions import rotate_pairs
from ...ops.fused.linear import fused_linear
from ..llama.mixer import LlamaMixer, angles, attention
from .shape import blocks, projections

if TYPE_CHECKING:
    from ...config import ModelConfig


class TransformerMixer(LlamaMixer):
    exchanges_heads: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, layer: int) -> None:
        Mixer.__init__(self, config, layer, projections(config))
        self.window = config.options.window
        if config.options.qk_norm:
            assert config.norm is not None
            self.query_norm = Norm(config.norm, config.head_dim, config.norm_eps)
            self.key_norm = Norm(config.norm, config.head_dim, config.norm_eps)

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return angles(config, positions, x) if config.options.position == "rotary" else None

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        mixed, kept = super().mix(x, stream, cache)
        if self.config.options.attention_gate:
            mixed = mixed * torch.sigmoid(fused_linear(x, self.project["gate"])[0])
        if self.window:
            kept = {name: y[:, max(0, y.shape[1] - self.window + 1) :] for name, y in kept.items()}
        return mixed, kept

    def _projected(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, T, H, p], keys and values [B, T, n_kv_heads, p]."""
        projections = fused_linear(x, (self.project["query"], self.project["key"]), self.project["value"])
        query, key, value = (y.unflatten(-1, (-1, self.config.head_dim)) for y in projections)
        if self.config.options.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.config.options.position == "rotary":
            rotary = stream.rotary or angles(self.config, stream.positions, query)
            query, key = rotate_pairs(query, key, *rotary)
        return query, key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = True) -> Tensor:
        """Attention over values [B, S, heads, any width]; mask: of all tokens, of which the keys are the last S."""
        length, n_keys = query.shape[1], key.shape[1]
        mask = None if mask is None else mask[..., -n_keys:]
        if self.window and n_keys > self.window:
            if length == n_keys and (count := blocks(self.window, length)):
                return self._banded(query, key, value, mask, count)
            tokens = torch.arange(n_keys, device=query.device)
            near = self._near(tokens[n_keys - length :], tokens)
            mask = near if mask is None else near & mask
        return attention(query, key, value, mask, causal)

    def _near(self, query: Tensor, key: Tensor) -> Tensor:
        """bool [.., T, S]: whether tokens query [.., T] read tokens key [.., S], of which negative ones are none."""
        back = query[..., :, None] - key[..., None, :]
        return (back >= 0) & (back < self.window) & (key >= 0)[..., None, :]

    def _banded(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, count: int) -> Tensor:
        """`_attend` by `count` blocks of queries, each with its own keys and those of the block before."""
        batch, length, size = *query.shape[:2], self.window
        beyond = count * size - length
        queries = nnf.pad(query, (0, 0, 0, 0, 0, beyond)).unflatten(1, (count, size)).flatten(0, 1)
        keys, values = (
            nnf.pad(x, (0, 0, 0, 0, size, beyond)).unfold(1, 2 * size, size).movedim(-1, 2).flatten(0, 1)
            for x in (key, value)
        )
        rows = torch.arange(count * size, device=query.device).view(count, size)
        columns = torch.cat([rows - size, rows], 1)
        near = self._near(rows, columns)[None]
        if mask is not None:
            last = length - 1
            near = near & mask[:, 0, rows.clamp(max=last)[:, :, None], columns.clamp(0, last)[:, None, :]]
        near = near.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
        mixed = attention(queries, keys, values, near)
        return mixed.unflatten(0, (batch, count)).flatten(1, 2)[:, :length]

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """The softmax weights, [B, H, T, T]."""
        query, key, _ = self._projected(x, stream)
        key = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
        return self._attend(query, key, self.unit_values(x), stream.attention_mask).transpose(1, 2)

    def additive_mixing(self, x: Tensor, stream: Stream) -> Tensor | None:
        """None with a window shorter than the text: its recurrence drops what the window leaves behind."""
        return None if 0 < self.window < x.shape[1] else super().additive_mixing(x, stream)
