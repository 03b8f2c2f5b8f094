"""The mixer of DeltaNet, which Gated DeltaNet and Kimi Delta Attention give decays and an output gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.norms import Norm
from ...ops import gated_delta
from ...ops.common import accumulator, full_precision
from ...ops.fused.linear import columns, fused_linear
from ...ops.fused.pointwise import uses_kernels
from .delta_shape import convolved, keys, values
from .ssm import CausalConv, reset_dt_bias

if TYPE_CHECKING:
    from ...config import ModelConfig

EPS = 1e-6  # of the squared length of a query or key


class DeltaMixer(Mixer):
    r"""q, k, v = silu(conv(x W));  q, k / their length;  beta = sigmoid(x W_b);  o by `gated_delta` with q / sqrt(p)

    p: the option key_dim. rest: widths of further projections of x, from which `gates` makes decays and the output's
    gate; n_decays: decays of a token.
    """

    fused: ClassVar[tuple[str, ...]] = ("input",)
    mlp_activation: ClassVar[str] = "silu"  # as in the papers' models
    decay_rates: ClassVar[tuple[float, float]]  # exp(A_log) is uniform within these at initialisation

    def __init__(self, config: ModelConfig, layer: int, rest: tuple[int, ...] = (), n_decays: int = 0) -> None:
        assert config.norm is not None
        self.widths = (convolved(config), config.n_heads, *rest)
        super().__init__(config, layer, {"input": sum(self.widths)}, values(config))
        self.conv = CausalConv(convolved(config), config.options.conv_width, bias=False)
        if n_decays:
            self.A_log, self.dt_bias = nn.Parameter(torch.empty(config.n_heads)), nn.Parameter(torch.empty(n_decays))
        self.norm = Norm(config.norm, values(config) // config.n_heads, config.norm_eps)

    def reset_own_parameters(self, generator: torch.Generator) -> None:
        self.conv.reset_parameters(generator)
        if hasattr(self, "A_log"):
            reset_dt_bias(self.dt_bias, generator)
            with torch.no_grad():
                self.A_log.uniform_(*self.decay_rates, generator=generator).log_()

    def gates(self, *rest: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """From the further projections of x: the log-decays [B, T, H] or [B, T, H, p], and the output gate's logits
        [B, T, values]; None: there are none."""
        return None, None

    def gated(self, mixed: Tensor, gate: Any) -> Tensor:
        """Norm(o) and the output gate, both [B, T, H, values of a head]."""
        return self.norm(mixed)

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        query, key, value, beta, log_decay, gate, window = self._operands(x, stream, cache)
        mixed, state = self._mix(query, key, value, beta, log_decay, stream, cache)
        return self.gated(mixed, gate).flatten(2), {"state": state, "conv": window}

    def _operands(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Any, ...]:
        """q, k, v, beta and log-decays as gated_delta takes them, the gate's logits, and the convolution's state."""
        mixed, beta, *rest = columns(fused_linear(x, self.project["input"])[0], self.widths)
        mixed, window = self.conv(mixed, stream, cache.get("conv"))
        width = keys(self.config)
        query, key, value = (self._by_head(y) for y in columns(mixed, (width, width, values(self.config))))
        beta = torch.sigmoid(beta.to(accumulator(beta))) * (2 if self.config.options.negative_eigenvalues else 1)
        log_decay, gate = self.gates(*rest)
        query, key = unit(query, self.config.options.key_dim**-0.5), unit(key)
        log_decay = None if log_decay is None else stream.mask(log_decay)
        gate = None if gate is None else self._by_head(gate)
        return query, key, value, stream.mask(beta), log_decay, gate, window

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.n_heads, -1))

    def _mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        beta: Tensor,
        log_decay: Tensor | None,
        stream: Stream,
        cache: LayerCache,
    ) -> tuple[Tensor, Tensor]:
        return gated_delta(query, key, value, beta, log_decay, **self.reading(stream, cache))

    def forget_gates(self, x: Tensor, stream: Stream) -> Tensor | None:
        """The decays, [B, T, H] or [B, T, H p], if there are any."""
        log_decay = self._operands(x, stream, {})[4]
        return None if log_decay is None else log_decay.flatten(2).exp()

    def token_mixing(self, x: Tensor, stream: Stream) -> Tensor:
        """What token t reads of token s's value, through all that was written over it: [B, H, T, T]. It leaves out the
        convolution, by which a token's value has a part of those before it."""
        query, key, _, beta, log_decay, *_ = self._operands(x, stream, {})
        out, _ = self._mix(query, key, self.unit_values(x).to(query), beta, log_decay, stream, {})
        return out.transpose(1, 2)


def unit(x: Tensor, length: float = 1.0) -> Tensor:
    """x [B, T, H, p] at this length, in x's dtype."""
    if uses_kernels(x):
        from ...ops.fused.triton.rows import Unit

        return Unit.apply(x, length, EPS)
    return plain_unit(x, length)


@full_precision
def plain_unit(x: Tensor, length: float) -> Tensor:
    wide = x.to(accumulator(x))
    return (wide * (length * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS))).to(x.dtype)
