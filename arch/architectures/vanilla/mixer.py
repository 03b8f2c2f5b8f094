r"""The vanilla Transformer: softmax attention, sinusoids added to the embedding, and an MLP of two matrices with ReLU.

    x_0 = E[token] + s [sin(t w_c), cos(t w_c)], c = 0 .. d/2 - 1, w_c = 10000^(-2c/d);   MLP(x) = relu(x W_up) W_down
    Q, K, V = x W_q, x W_k, x W_v;   O_i = softmax(Q_i K_i^T / sqrt(d/h)) V_i;   y = concat(O) W_o

Source: Attention Is All You Need (Vaswani et al. 2017), sections 3.1 to 3.5. Deviations: the norms (LayerNorm) precede
the branches, and nothing has biases, as in all models here; s is `init_std`, the embedding's standard deviation at the
start, where the paper multiplies the embedding by sqrt(d) instead. HGRN's and HGRN2's tables have a Transformer of
44.65 million parameters on WikiText-103: embedding, 12 d^2 a layer, biases and norms, and no learned positions
(docs/research/hgrn2-tables.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ...model.cache import LayerCache
from ...model.mixer import PositionEncoding, Stream
from ...model.positions import add_sinusoids
from ...ops.fused.linear import fused_linear
from ..llama.mixer import LlamaMixer

if TYPE_CHECKING:
    from ...config import ModelConfig


class Sinusoids(PositionEncoding):
    """x + s [sin, cos] of each token's position in its document; no parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = config.matrix_std

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        return add_sinusoids(x, stream.positions, self.scale), {}


class VanillaMixer(LlamaMixer):
    mlp_gate: ClassVar[bool] = False

    @staticmethod
    def rotary(config: ModelConfig, positions: Tensor, x: Tensor) -> None:
        return None

    @staticmethod
    def position_encoding(config: ModelConfig) -> PositionEncoding:
        return Sinusoids(config)

    def _projected(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = fused_linear(x, *(self.project[name] for name in ("query", "key", "value")))
        return self.heads(query), self.heads(key), self.heads(value)
