"""The mixer that TNL and cosFormer2 share: linear attention, a norm, and a sigmoid gate of low rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as nnf
from torch import Tensor, nn

from ...model.cache import LayerCache
from ...model.mixer import Mixer, Stream
from ...model.norms import Norm
from ...ops.fused.linear import fused_linear

if TYPE_CHECKING:
    from ...config import ModelConfig


class LowRankGate(nn.Module):
    """x W_down W_up of rank t, without an activation between: the logits of eq. 9's G. The norm applies the sigmoid."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)


class LowRankGatedMixer(Mixer):
    """y = (Norm(concat o) * sigmoid(x W_down W_up)) W_o, o of the linear attention that a subclass computes in `_mix`.

    more: {name: width} of additional projections of x for `_mix`, beside query, key and value.
    Options: gate_rank, and value_activation, which puts silu on the values.
    """

    def __init__(self, config: ModelConfig, layer: int, more: dict[str, int] | None = None) -> None:
        super().__init__(config, layer, dict.fromkeys(("query", "key", "value"), config.d_model) | (more or {}))
        assert config.norm is not None
        self.gate = LowRankGate(config.d_model, config.options.gate_rank)
        self.norm = Norm(config.norm, config.d_model, config.norm_eps)

    def reads_projections(self) -> bool:
        return not self.config.options.value_activation

    def reads_silu(self, stream: Stream) -> bool:
        """Whether the kernels read x W_q and x W_k unchanged and also their silu, which the product then writes too.
        False with padding, and where heads are padded to a width that kernels take."""
        kernels = stream.backend in (None, "triton") and self.config.head_dim in (16, 32, 64, 128, 256)
        return kernels and stream.padding_mask is None and self.reads_projections()

    def mix(self, x: Tensor, stream: Stream, cache: LayerCache) -> tuple[Tensor, LayerCache]:
        modules = self.together(*self.project.values(), self.gate.down)
        query, key, value, *more, gate = fused_linear(x, *modules, silu=self.reads_silu(stream))
        value = self.heads(value)
        value = stream.mask(nnf.silu(value) if self.config.options.value_activation else value)
        mixed, state = self._mix(query, key, value, stream, cache, *more)
        out = self.norm(mixed.flatten(2), *fused_linear(gate, self.gate.up))
        return out, {"state": state}

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, stream: Stream, cache: LayerCache, *more: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The linear attention of x W_q and x W_k [B, T, d] over value [B, T, H, any width], and its state; more: the
        projections of x that the subclass added."""
        raise TypeError(f"{type(self).__name__} must define _mix")
