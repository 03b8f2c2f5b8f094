"""A layer of the decoder: a token mixer and, behind it, an MLP."""

from __future__ import annotations

from torch import Tensor, nn

from ..config import ModelConfig
from ..ops.fused.gated_mlp import gated_mlp
from .cache import LayerCache
from .mixer import Stream, mixer_of
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


class Layer(nn.Module):
    """x += TokenMixer(Norm(x)); x += GatedMLP(Norm(x)), the latter where the token mixer has `has_mlp`.

    The output of the last branch is returned beside x and not yet added to it: the next norm, of the next layer or of
    the model, adds and normalises in one kernel.
    """

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        assert config.norm is not None
        self.mixer_norm = Norm(config.norm, config.d_model, config.norm_eps)
        self.mixer = mixer_of(config.arch)(config, index)
        if self.mixer.has_mlp:  # `channel` and `channel_norm` are names of stored parameters, which stay
            self.channel_norm = Norm(config.norm, config.d_model, config.norm_eps)
            self.channel = GatedMLP(config)

    def forward(
        self, x: Tensor, branch: Tensor | None, stream: Stream, layer_cache: LayerCache
    ) -> tuple[Tensor, Tensor, LayerCache]:
        """x and the branch that is to be added to it, [B, T, d] each (None: nothing to add), and the new cache."""
        x, normed = (x, self.mixer_norm(x)) if branch is None else self.mixer_norm.add(x, branch)
        branch, cache = self.mixer(normed, stream, layer_cache)
        if self.mixer.has_mlp:
            x, normed = self.channel_norm.add(x, branch)
            branch = self.channel(normed)
        return x, branch, cache
