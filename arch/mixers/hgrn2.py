r"""HGRN2: a gated linear RNN whose state is expanded by an outer product.

    q = silu(x W_q);  f = b + (1 - b) sigmoid(x W_f);  v = x W_v
    S_t = diag(f_t) S_{t-1} + (1 - f_t)^T v_t;   o_t = q_t S_t;   y = Norm(concat o) W_o

b in [0, 1)^d is the layer's lower bound, learned for all layers together (`lower_bounds`), 0 in the first layer.
Source: HGRN2, section 3 and eq. 3; Scaling Laws for Linear Complexity LMs, eq. 13. Deviations: silu on the output
gate q as in the authors' code (eq. 13 shows no activation); W_o, declared but not written, is applied last; no second
output gate (eq. 13 declares its matrices but neither uses nor counts them).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as nnf
from torch import Tensor

from ..config import ModelConfig
from ..norms import Norm
from ..ops import gated_attention
from ..ops.common import accumulator, full_precision
from ..state import State
from .base import Mixer, Stream


@full_precision
def lower_bounds(gamma: Tensor) -> Tensor:
    """Bounds [L, d], fp32 (fp64 for fp64), from gamma [L, d]: with P = softmax over layers, cumsum(P)[l] - P[0], so
    that 0 <= b < 1 and the first layer is unbounded.

    HGRN, section 3. The 2024 paper drops the subtraction; its top layer would have f = 1 and k = 0.
    """
    shares = gamma.to(accumulator(gamma)).softmax(0)
    return shares.cumsum(0) - shares[0]


class HGRN2Mixer(Mixer):
    has_lower_bounds: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, ("query", "forget", "value"))
        assert config.norm is not None
        self.norm = Norm(config.norm, config.d_model, config.norm_eps)

    def forward(self, x: Tensor, stream: Stream, past: State) -> tuple[Tensor, State]:
        bound = self.heads(stream.bound(self.layer))
        mixed, state = gated_attention(
            nnf.silu(self.heads(self.project["query"](x))),
            None,
            stream.mask(self.heads(self.project["value"](x))),
            # a padded token's gate is 1: log f = 0 and k = 1 - f = 0
            (stream.mask(self.heads(self.project["forget"](x)), math.inf), bound),
            initial_state=past.get("state"),
            chunk_size=self.config.chunk_size,
            form=stream.form,
            reset=stream.reset,
        )
        return self.out(self.norm(mixed.flatten(2))), {"state": state}
