r"""Mamba1: a state space model on single channels whose step size, input and output depend on the token.

    [u, z] = x W_in;   v = silu(conv(u));   [r, B, C] = v W_x;   dt = softplus(r W_dt + b_dt);   A = -exp(A_log)
    h_t = exp(dt_t A) h_{t-1} + dt_t v_t B_t;   o_t = h_t C_t + D v_t                   h_t in R^{2d x N}
    y = (o * silu(z)) W_out

x: [B, T, d]; u, z, v, dt: [B, T, 2d] (expand d); r: [B, T, R] with R = `dt_rank`, d / 16 rounded up as published;
B, C: [B, T, N]; A_log: [2d, N]; b_dt, D: [2d]. conv is causal, `conv_width` steps, each channel alone. N is `ssm_state`
(16 as published). The block has no MLP. The state is 2dN real numbers, in fp32. n_heads is ignored.

Source: Mamba (Gu and Dao 2023), section 3 and algorithm 2, and its code. A_log = log(1 .. N), D = 1, b_dt, W_dt and the
convolution start as in that code.
Deviations: W_in, W_x and W_out start normal(0, init_std), where that code leaves PyTorch's uniform rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...ops import selective_scan
from ...ops.fused.linear import columns, fused_linear
from ...ops.fused.pointwise import skip_gated, softplus
from ..common.mamba_options import inner_width
from ..common.ssm import CausalConv, reset_dt_bias

if TYPE_CHECKING:
    from ...config import ModelConfig


class Mamba1Mixer(Mixer):
    has_mlp: ClassVar[bool] = False
    fused: ClassVar[tuple[str, ...]] = ("input",)
    time_scales: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    def __init__(self, config: ModelConfig, layer: int) -> None:
        inner = inner_width(config)
        super().__init__(config, layer, {"input": 2 * inner}, inner)
        self.widths = [config.options.dt_rank, config.options.ssm_state, config.options.ssm_state]
        self.conv = CausalConv(inner, config.options.conv_width)
        self.select = nn.Linear(inner, sum(self.widths), bias=False)
        self.step = nn.Linear(config.options.dt_rank, inner, bias=False)
        self.dt_bias, self.D = (nn.Parameter(torch.empty(inner)) for _ in range(2))
        self.A_log = nn.Parameter(torch.empty(inner, config.options.ssm_state))

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        self.conv.reset_parameters(generator)
        reset_dt_bias(self.dt_bias, generator)
        limit = self.step.weight.shape[1] ** -0.5
        with torch.no_grad():
            self.step.weight.uniform_(-limit, limit, generator=generator)
            self.A_log.copy_(torch.arange(1, self.A_log.shape[1] + 1, dtype=torch.float32).log())
            self.D.fill_(1.0)

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        gate, value, key, query, dt, window = self._operands(x, stream, cache)
        out, state = self._mix(value, key, query, dt, stream, cache)
        out = skip_gated(out, value, gate, self.D).to(x.dtype)
        return out, {"state": state, "conv": window}

    def _operands(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, ...]:
        """z and v [B, T, 2d], B and C [B, T, N], dt [B, T, 2d], and the convolution's state."""
        inner = inner_width(self.config)
        value, gate = columns(fused_linear(x, self.project["input"])[0], (inner, inner))
        value, window = self.conv(value, stream, cache.get("conv"))
        rank, key, query = self.select(value).split(self.widths, -1)
        return gate, value, key, query, stream.mask(softplus(self.step(rank), self.dt_bias)), window

    def _mix(
        self, value: Tensor, key: Tensor, query: Tensor, dt: Tensor, stream: Stream, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        """h C and the state."""
        return selective_scan(
            dt,
            -self.A_log.exp(),
            key,
            query,
            value,
            initial_state=cache.get("state"),
            backend=stream.backend,
            document_starts=stream.document_starts,
        )

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """exp(dt A) of every channel and state, [B, T, 2d N]."""
        dt = self._operands(x, stream, {})[4]
        return (dt[..., None] * -self.A_log.exp()).exp().flatten(2)

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """[B, 1, T, T], the mean over channels: sum_n C_tn B_sn dt_s times the decay from s to t, and D where t = s.

        It leaves out the convolution, by which a token's value has a part of the three before it. Every channel has its
        own decay, so this takes T passes, one for each token.
        """
        _, value, key, query, dt, _ = self._operands(x, stream, {})
        columns = []
        for token in range(x.shape[1]):
            unit = torch.zeros_like(value)
            unit[:, token] = 1.0
            out, _ = self._mix(unit, key, query, dt, stream, {})
            columns.append((out + self.D * unit).mean(-1))
        return torch.stack(columns, -1)[:, None]
