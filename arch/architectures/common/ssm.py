"""The short convolution and the initial step sizes that the Mambas and the mixers with the delta rule share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from ...model.mixer import Stream
from ...ops.common import accumulator, full_precision
from ...ops.fused.pointwise import uses_kernels

DT_RANGE, DT_FLOOR = (1e-3, 1e-1), 1e-4  # step sizes dt at initialisation


class CausalConv(nn.Module):
    """silu(b + sum_i w_i x_{t-i}) for each channel, i = 0 .. width - 1; x is 0 before a document."""

    def __init__(self, channels: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))  # its last column multiplies x_t, as in nn.Conv1d
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialise by nn.Conv1d's rule, as in Mamba's code: uniform within 1 / sqrt(width)."""
        limit = self.weight.shape[1] ** -0.5
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-limit, limit, generator=generator)

    def forward(self, x: Tensor, stream: Stream, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, T, C] -> [B, T, C], and the last width - 1 inputs of the last document [B, width - 1, C]. cache: the
        inputs before x."""
        x = stream.mask(x)
        count = self.weight.shape[1] - 1
        asked = stream.backend in (None, "triton") and uses_kernels(x)
        by_kernel = asked and count < 4 and (cache is None or not cache.requires_grad)
        earlier = x.new_zeros(x.shape[0], count, x.shape[2]) if cache is None else cache
        inputs = torch.cat([earlier, x[:, max(0, x.shape[1] - count) :] if by_kernel else x], 1)
        window = inputs[:, inputs.shape[1] - count :].clone()
        if stream.document_starts is not None:
            age = torch.arange(window.shape[1] - 1, -1, -1, device=x.device)
            window = window.masked_fill((stream.positions[:, -1:] < age)[..., None], 0.0)
        bias = self.weight.new_zeros(x.shape[2]) if self.bias is None else self.bias
        if by_kernel:
            from ...ops.fused.triton.short_conv import ShortConv

            ages = None if stream.document_starts is None else stream.positions
            return ShortConv.apply(x, cache, self.weight, bias, ages), window
        return nnf.silu(causal_conv(inputs, self.weight, bias, stream)), window


@full_precision
def causal_conv(x: Tensor, weight: Tensor, bias: Tensor, stream: Stream) -> Tensor:
    """b + sum_i w_i x_{t-i}, within documents: x [B, width - 1 + T, C], weight [C, width], bias [C] -> [B, T, C]."""
    dtype, width = accumulator(x, weight, bias), weight.shape[1]
    length = x.shape[1] - width + 1
    wide = x.to(dtype)
    out = bias.to(dtype)
    for i, column in enumerate(weight.to(dtype).unbind(1)):
        term = wide[:, i : i + length] * column
        if stream.document_starts is not None:
            term = term * (stream.positions >= width - 1 - i)[..., None]
        out = out + term
    return out.to(x.dtype)


def reset_dt_bias(bias: Tensor, generator: torch.Generator) -> None:
    """Set the bias to softplus^-1(dt), dt log-uniform within DT_RANGE and at least DT_FLOOR."""
    low, high = (math.log(end) for end in DT_RANGE)
    with torch.no_grad():
        dt = torch.empty_like(bias).uniform_(low, high, generator=generator).exp_().clamp_(min=DT_FLOOR)
        bias.copy_(dt + torch.log(-torch.expm1(-dt)))
