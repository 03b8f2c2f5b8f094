r"""Mamba2: linear attention with a decay per head and step, behind a short convolution.

    [z, u, dt'] = x W_in;   [v, B, C] = silu(conv(u));   dt = softplus(dt' + b_dt);   a = -exp(A_log)
    S_t = exp(a dt_t) S_{t-1} + B_t^T (dt_t v_t);   o_t = C_t S_t + D v_t             S_t in R^{N x p}, per head
    y = RMSNorm(concat o * silu(z)) W_out

x: [B, T, d]; z, v: [B, T, 2d] (expand d), v cut into H heads of p; B, C: [B, T, N], the same for all heads;
dt: [B, T, H]; a, b_dt, D: [H]. conv is causal, `conv_width` steps, each channel of u alone. The block has no gated
MLP. N is `ssm_state` (128 as published), p = 2d / H (64 as published). The state is 2dN real numbers, in fp32.

Source: Mamba-2 (Dao and Gu 2024), section 7 and its code; one group of B and C. The recurrence runs through
decay_attention with q = C, k = B, gain dt and skip D. A_log, b_dt, D and the convolution start as in that code (A
uniform within 1 .. 16, D = 1).
Deviations: the projections start normal(0, init_std), where that code leaves PyTorch's uniform rule; dt is not clamped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.norms import Norm
from ...ops import decay_attention
from ...ops.fused.linear import columns, fused_linear
from ...ops.fused.pointwise import skip_gated, softplus
from ..common.mamba_options import inner_width
from ..common.ssm import CausalConv, reset_dt_bias

if TYPE_CHECKING:
    from ...config import ModelConfig

A_RANGE = (1.0, 16.0)


class Mamba2Mixer(Mixer):
    has_mlp: ClassVar[bool] = False
    fused: ClassVar[tuple[str, ...]] = ("input",)
    time_scales: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    def __init__(self, config: ModelConfig, layer: int) -> None:
        assert config.norm is not None
        inner, state, heads = inner_width(config), config.options.ssm_state, config.n_heads
        self.widths = [inner, inner + 2 * state, heads]
        super().__init__(config, layer, {"input": sum(self.widths)}, inner)
        self.conv = CausalConv(inner + 2 * state, config.options.conv_width)
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.norm = Norm(config.norm, inner, config.norm_eps)

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        self.conv.reset_parameters(generator)
        reset_dt_bias(self.dt_bias, generator)
        with torch.no_grad():
            self.A_log.uniform_(*A_RANGE, generator=generator).log_()
            self.D.fill_(1.0)

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        gate, value, key, query, dt, window = self._operands(x, stream, cache)
        out, state = self._mix(value, key, query, dt, stream, cache)
        out = skip_gated(out, None, gate, None, self.norm)
        return out.to(x.dtype), {"state": state, "conv": window}

    def _operands(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, ...]:
        """z [B, T, 2d], v [B, T, H, p], B and C [B, T, N], dt [B, T, H], and the convolution's state."""
        inner, width = inner_width(self.config), self.config.options.ssm_state
        gate, mixed, step = columns(fused_linear(x, self.project["input"])[0], self.widths)
        mixed, window = self.conv(mixed, stream, cache.get("conv"))
        value, key, query = columns(mixed, (inner, width, width))
        value = value.unflatten(-1, (self.config.n_heads, -1))
        return gate, value, key, query, stream.mask(softplus(step, self.dt_bias)), window

    def _mix(
        self, value: Tensor, key: Tensor, query: Tensor, dt: Tensor, stream: Stream, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        """C S + D v and the state for v [B, T, H, any width]."""
        return decay_attention(
            query[:, :, None],
            key[:, :, None],
            value,
            self._log_decays(dt),
            **self.reading(stream, cache),
            gain=dt,
            skip=self.D,
        )

    def _log_decays(self, dt: Tensor) -> Tensor:
        return dt * -self.A_log.exp()

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor:
        """exp(a dt), [B, T, H]."""
        return self._log_decays(self._operands(x, stream, {})[4]).exp()

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """C_t . B_s dt_s times the decay from s to t, and D where t = s: [B, H, T, T]. It leaves out the convolution,
        by which a token's value has a part of the three before it."""
        _, _, key, query, dt, _ = self._operands(x, stream, {})
        value = self.unit_values(x)
        return self._mix(value, key, query, dt, stream, {})[0].transpose(1, 2)
