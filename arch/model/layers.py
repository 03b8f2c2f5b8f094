"""A layer of the decoder: a token mixer and, behind it, an MLP."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..config import ModelConfig
from ..ops.fused.gated_mlp import gated_mlp
from ..ops.fused.layer_end import Scale, layer_end, takes_layer_end
from ..ops.fused.linear import fused_linear
from .cache import LayerCache
from .mixer import Mixer, Stream, mixer_of
from .norms import Norm


class GatedMLP(nn.Module):
    """W_down((x W_u) * act(x W_v)): silu in LLaMA (eq. 6), no activation in the linear models (eq. 10, 14, 18)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = mixer_of(config.arch).mlp_activation
        self.up = nn.Linear(config.d_model, config.d_ffn, bias=False)
        self.gate = nn.Linear(config.d_model, config.d_ffn, bias=False)
        self.down = nn.Linear(config.d_ffn, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return gated_mlp(x, self.up, self.gate, self.down, self.activation)


class MLP(nn.Module):
    """W_down relu(x W_u)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ffn, bias=False)
        self.down = nn.Linear(config.d_ffn, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fused_linear(fused_linear(x, self.up)[0].relu(), self.down)[0]


class Layer(nn.Module):
    """x += TokenMixer(Norm(x)); x += GatedMLP(Norm(x)), the latter where the token mixer has `has_mlp` (an
    MLP without a gate where it has no `mlp_gate`).

    config, index: of the layer's kind, and its place among the layers of that kind.

    The layer returns x and the output of its last branch separately: the next norm, of the next layer or of the model,
    adds and normalises in one kernel. Where kernels do this inside the branches' last products (`layer_end`), the layer
    returns x with both branches added, and its next norm.
    """

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        assert config.norm is not None
        self.mixer_norm = Norm(config.norm, config.d_model, config.norm_eps)
        self.mixer = mixer_of(config.arch)(config, index)
        if self.mixer.has_mlp:  # `channel` and `channel_norm` are names of stored parameters, which stay
            self.channel_norm = Norm(config.norm, config.d_model, config.norm_eps)
            self.channel = GatedMLP(config) if self.mixer.mlp_gate else MLP(config)

    def forward(
        self,
        x: Tensor,
        branch: Tensor | None,
        normed: Tensor | None,
        stream: Stream,
        layer_cache: LayerCache,
        next_norm: Norm | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, LayerCache]:
        """x, a branch to add to it (None: nothing to add), and the norm of x if it is known, [B, T, d] each -> the same
        three after the layer, and the new cache. next_norm: the norm that reads the output; None: unknown."""
        if normed is None:
            x, normed = (x, self.mixer_norm(x)) if branch is None else self.mixer_norm.add(x, branch)
        if (scales := self._scales(x, next_norm)) is not None:
            mixed, cache = self.mixer.mixed(normed, stream, layer_cache)
            x, normed = layer_end(x, mixed, self._matrices(), self.mixer.mlp_activation, *scales)
            return x, None, normed, cache
        branch, cache = self.mixer(normed, stream, layer_cache)
        if self.mixer.has_mlp:
            x, normed = self.channel_norm.add(x, branch)
            branch = self.channel(normed)
        return x, branch, None, cache

    def _matrices(self) -> tuple[nn.Module, ...]:
        assert isinstance(self.channel, GatedMLP)
        return self.mixer.out, self.channel.up, self.channel.gate, self.channel.down

    def _scales(self, x: Tensor, next_norm: Norm | None) -> tuple[Scale, Scale] | None:
        """The scales of the two norms that `layer_end` takes; None where it does not run: for a mixer with a `forward`
        of its own, and for modules that have hooks or were replaced."""
        if next_norm is None or not self.mixer.has_mlp or type(self.mixer).forward is not Mixer.forward:
            return None
        if type(self.channel) is not GatedMLP or type(self.channel_norm) is not Norm or type(next_norm) is not Norm:
            return None
        if not (called_as_written(self.mixer) and called_as_written(self.channel)):
            return None
        scale, next_scale = self.channel_norm.scale(), next_norm.scale()
        if scale is None or next_scale is None:
            return None
        scales = scale, next_scale
        return scales if takes_layer_end(x, self._matrices(), self.channel.activation, scales) else None


def called_as_written(module: nn.Module) -> bool:
    """Whether a call of the module runs its class's `forward` alone: it has no hooks, global ones included, and no
    `forward` of its own."""
    hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    return not (any(getattr(module, name) for name in hooks) or "forward" in vars(module) or _has_any_global_hook())
