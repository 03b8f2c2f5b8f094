"""What Mamba1 and Mamba2 share: the short convolution, and the parameters that set the time scales."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ..ops.common import accumulator, full_precision

DT_RANGE, DT_FLOOR = (1e-3, 1e-1), 1e-4  # step sizes dt at initialisation


class CausalConv(nn.Module):
    """silu(b + sum_i w_i x_{t-i}) on each channel alone, i = 0 .. width - 1; x is 0 before the sequence."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))  # its last column meets x_t, as in nn.Conv1d
        self.bias = nn.Parameter(torch.empty(channels))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """nn.Conv1d's rule, which Mamba's code leaves as it is: uniform within 1 / sqrt(width)."""
        limit = self.weight.shape[1] ** -0.5
        with torch.no_grad():
            for parameter in (self.weight, self.bias):
                parameter.uniform_(-limit, limit, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return nnf.silu(causal_conv(x, self.weight, self.bias))


@full_precision
def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """b + sum_i w_i x_{t-i}: x [B, T, C], weight [C, width], bias [C] -> [B, T, C] in x's dtype."""
    dtype, width = accumulator(x, weight, bias), weight.shape[1]
    padded = nnf.pad(x.to(dtype), (0, 0, width - 1, 0))
    out = bias.to(dtype)
    for i, column in enumerate(weight.to(dtype).unbind(1)):
        out = out + padded[:, i : i + x.shape[1]] * column
    return out.to(x.dtype)


def reset_dt_bias(bias: Tensor, generator: torch.Generator) -> None:
    """In place: softplus^-1(dt), dt log-uniform within DT_RANGE and at least DT_FLOOR."""
    low, high = (math.log(end) for end in DT_RANGE)
    with torch.no_grad():
        dt = torch.empty_like(bias).uniform_(low, high, generator=generator).exp_().clamp_(min=DT_FLOOR)
        bias.copy_(dt + torch.log(-torch.expm1(-dt)))
