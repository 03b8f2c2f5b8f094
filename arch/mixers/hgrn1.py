r"""HGRN1: a gated linear RNN on single channels, its state a complex number each that turns as it fades.

    c = silu(x W_i) in C^d;   lam = b + (1 - b) sigmoid(x W_f) in R^d;   theta in R^d, learned
    h_t = lam_t e^{i theta} h_{t-1} + (1 - lam_t) c_t                    h_t in C^d
    g = sigmoid(x W_g) in R^{2d};   y = Norm(g * [re h, im h]) W_o

x: [B, T, d]; W_i, W_g: [d, 2d], re and im of a channel side by side; W_f: [d, d]; W_o: [2d, d]. b in [0, 1)^d is the
layer's lower bound, as in HGRN2. theta starts from 10000^(-2c/d), c = 0 .. d-1, and does not depend on the data. The
state is 2d real numbers, in fp32.

Source: HGRN (Qin et al. 2023), section 3: eq. 3 and the output gate after it. `hgrn1_complex` = False is the real
variant of its ablation: c, h and g in R^d, no theta, W_o [d, d].
Deviations: no biases, and the norm is the configuration's (srms), where the paper has an affine LayerNorm, so that the
linear models differ in their mixers alone (norm="layer" gives it). The gate comes before the norm and is a sigmoid, as
the paper writes; the authors' first code has silu after it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ..config import ModelConfig
from ..norms import Norm
from ..ops import scan
from ..ops.common import accumulator, full_precision
from ..ops.gated_attention import forget_gate
from ..state import State
from .base import Mixer, Stream


class HGRN1Mixer(Mixer):
    has_lower_bounds: ClassVar[bool] = True
    time_scales: ClassVar[tuple[str, ...]] = ("theta",)

    def __init__(self, config: ModelConfig, layer: int) -> None:
        width = config.d_model * (2 if config.hgrn1_complex else 1)
        super().__init__(config, layer, {"input": width, "forget": config.d_model, "gate": width}, width)
        assert config.norm is not None
        self.norm = Norm(config.norm, width, config.norm_eps)
        self.theta = nn.Parameter(torch.empty(config.d_model)) if config.hgrn1_complex else None

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        if self.theta is not None:
            channels = torch.arange(self.config.d_model, dtype=torch.float64)
            with torch.no_grad():
                self.theta.copy_(10_000.0 ** (-2 * channels / self.config.d_model))

    def forward(self, x: Tensor, stream: Stream, past: State) -> tuple[Tensor, State]:
        log_decay, update = gated_input(
            self.project["forget"](x), nnf.silu(self.project["input"](x)), stream.bound(self.layer)
        )
        mixed, state = scan(
            stream.mask(log_decay),
            stream.mask(update),
            self.theta,
            initial_state=past.get("state"),
            chunk_size=self.config.chunk_size,
            form=stream.form,
            reset=stream.reset,
        )
        mixed = mixed if self.theta is None else mixed.flatten(2)
        gate = torch.sigmoid(self.project["gate"](x))
        return self.out(self.norm(mixed.to(x.dtype) * gate)), {"state": state}


@full_precision
def gated_input(logits: Tensor, c: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """log lam [B, T, D] and (1 - lam) c, [B, T, D, 2] where c [B, T, 2 D] is complex, both in fp32 (fp64 for fp64).

    logits: [B, T, D]; bound: [D]. fp32 whatever c is: the scan's outputs take the dtype of its inputs.
    """
    dtype = accumulator(logits, c, bound)
    log_decay, complement = forget_gate(logits.to(dtype), bound.to(dtype))
    c = c.to(dtype)
    if c.shape != logits.shape:
        return log_decay, complement[..., None] * c.unflatten(-1, (-1, 2))
    return log_decay, complement * c
