r"""LRU: a diagonal linear recurrence of complex numbers, its decays and angles the same at every token.

    h_t = lam h_{t-1} + gamma B x_t;   y_t = Re(C h_t) + D x_t        lam = exp(-exp(nu) + i exp(theta)) in C^d

x: [B, T, d]; B: [d, 2d], re and im of a channel side by side; C: [2d, d]; D, nu, theta, log gamma in R^d, learned. The
exponentials keep |lam| < 1. lam starts uniform in the unit disc (|lam|^2 in 0 .. 1, its angle in 0 .. 2 pi) and gamma
at sqrt(1 - |lam|^2), which gives h the variance of B x for white x. The state is 2d real numbers, in fp32.

Source: Resurrecting Recurrent Neural Networks for Long Sequences (Orvieto et al. 2023), sections 3.2 to 3.4, lemma 3.2
and appendix A. Deviations: as many states as channels, so that the mixer has 4 d^2 weights, as softmax attention; B, C
and D start by this project's rule, from `init_std`; behind it is the MLP that HGRN has, where the paper has GELU and a
GLU of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...ops import scan
from ...ops.common import accumulator
from ...ops.fused.linear import fused_linear
from ..hgrn1.mixer import channel_factors, channel_mixing, gated

if TYPE_CHECKING:
    from ...config import ModelConfig

MARGIN = 1e-6  # that keeps the start off |lam| of 0 and 1 and an angle of 0, whose logarithms are infinite


class LRUMixer(Mixer):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer, {"input": 2 * config.d_model}, inner=2 * config.d_model)
        self.nu, self.theta, self.log_gamma, self.skip = (nn.Parameter(torch.empty(config.d_model)) for _ in range(4))

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        square, turn = (
            torch.rand(self.config.d_model, generator=generator, dtype=torch.float64).clamp(MARGIN, 1 - MARGIN)
            for _ in range(2)
        )
        with torch.no_grad():
            self.nu.copy_((-0.5 * square.log()).log())
            self.theta.copy_((2 * math.pi * turn).log())
            self.log_gamma.copy_((1 - square).log() / 2)
            self.skip.normal_(0.0, self.config.matrix_std, generator=generator)

    def operands(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """log |lam|, gamma, both [B, T, D], and the angles [D] or [B, T, D], fp32 (fp64 for fp64); a padded token
        leaves the state."""
        shape, dtype = (*x.shape[:2], -1), accumulator(self.nu)
        rate, angles, gamma = (p.to(dtype).exp() for p in (self.nu, self.theta, self.log_gamma))
        angles = angles if stream.padding_mask is None else stream.mask(angles.expand(shape))
        return stream.mask(-rate.expand(shape)), stream.mask(gamma.expand(shape)), angles

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        log_decay, gamma, angles = self.operands(x, stream)
        entering = gated(gamma, fused_linear(x, self.project["input"])[0])
        mixed, state = scan(log_decay, entering, angles, **self.reading(stream, cache))
        return mixed.flatten(2).to(x.dtype), {"state": state}

    def forward(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        mixed, cache = super().forward(x, stream, cache)
        return mixed + self.skip.to(x.dtype) * x, cache

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """|lam| [B, T, D], 1 at padded tokens."""
        return self.operands(x, stream)[0].exp()

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """[B, 1, T, T]: the real part of the weights on B x, averaged over channels, without C and D."""
        return channel_mixing(*self.operands(x, stream), stream, self.config.chunk_size)

    def mixing_factors(self, x: Tensor, stream: Stream) -> tuple[Tensor, Tensor] | None:
        return channel_factors(*self.operands(x, stream), stream, self.config.chunk_size)
