r"""HGRN2: a gated linear RNN whose state is expanded by an outer product.

    q = silu(x W_q);  f = b + (1 - b) sigmoid(x W_f);  v = x W_v
    S_t = diag(f_t) S_{t-1} + (1 - f_t)^T v_t;   o_t = q_t S_t;   y = Norm(concat o) W_o      S_t in R^{p x p}, per head

b in [0, 1)^d is the layer's lower bound, learned for all layers together, 0 in the first layer (forget_gates.py). The
head dimension p = d / n_heads is the expand ratio: the state is p d numbers, in fp32; the parameters do not depend on
p.
Source: HGRN2, section 3 and eq. 3; Scaling Laws for Linear Complexity LMs, eq. 13. Deviations: silu on the output
gate q as in the authors' code (eq. 13 shows no activation); W_o, declared but not written, is applied last; no second
output gate (eq. 13 declares its matrices but neither uses nor counts them).

Ablations (those of HGRN, as no table of HGRN2 has them; the choices are ours): `lower_bound` as in forget_gates.py;
`input_gate`, here the key: own: k = sigmoid(x W_k), none: k = 1, so that every row of S reads all of v and forgets it
at its own pace; `output_gate` off: q = 1, o is the sum of S over its expanded dimension, as table 2's methods
"marginalize" theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...model.cache import LayerCache
from ...model.mixer import Stream
from ...model.norms import Norm
from ...ops import gated_attention
from ...ops.common import accumulator
from ...ops.fused.linear import fused_linear
from ..common.forget_gates import Forget, HGRNMixer

if TYPE_CHECKING:
    from ...config import ModelConfig


class HGRN2Mixer(HGRNMixer):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        used = {
            "query": config.options.output_gate,
            "forget": config.options.gates_forget,
            "value": True,
            "input_gate": config.options.input_gate == "own",
        }
        super().__init__(config, layer, tuple(name for name, is_used in used.items() if is_used))
        assert config.norm is not None
        self.activation = "silu" if config.options.output_gate else ""
        self.norm = Norm(config.norm, config.d_model, config.norm_eps)

    def reads_projections(self) -> bool:
        options = self.config.options
        return options.output_gate and options.gates_forget and options.input_gate == "tied"

    def operands(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor | None, Tensor, Forget]:
        """q before its silu, k, v and the forget gates, as gated_attention takes them."""
        projected = dict(zip(self.project, fused_linear(x, *self.together(*self.project.values())), strict=True))
        query = projected["query"] if self.config.options.output_gate else torch.ones_like(x)
        key = self.input_gate(x, stream, projected.get("input_gate"))
        gate = self.forget(x, stream, projected.get("forget"))
        return (
            self.heads(query),
            None if key is None else self.heads(key),
            stream.mask(self.heads(projected["value"])),
            (self.heads(gate[0]), self.heads(gate[1])) if isinstance(gate, tuple) else self.heads(gate),
        )

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value, gate = self.operands(x, stream)
        mixed, state = gated_attention(
            query,
            key,
            value,
            gate,
            **self.reading(stream, cache),
            activation=self.activation,
        )
        return self.norm(mixed.flatten(2)), {"state": state}

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """A [B, H, T, T] with o = A v in each head: A_ts = q_t diag(f_{s+1} .. f_t) k_s^T for s <= t, fp32 (fp64 for
        fp64)."""
        query, key, _, gate = self.operands(x, stream)
        mixed, _ = gated_attention(
            query,
            key,
            self.unit_values(x).to(accumulator(x)),
            gate,
            **self.reading(stream, {}),
            activation=self.activation,
        )
        return mixed.transpose(1, 2)
