"""The decoder all architectures share: embedding -> [Tpe] -> layers of token mixers and gated MLPs -> norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..architectures.common.forget_gates import lower_bounds, reset_gamma
from ..architectures.cosformer2.mixer import Tpe
from ..architectures.mixers import mixer_of
from ..config import ModelConfig
from ..ops.fused.linear import fused_gated_linear, fused_linear
from .cache import DecodeCache, LayerCache
from .layout import check_ids, lay_out
from .mixer import Mixer, Stream
from .norms import Norm


class GatedMLP(nn.Module):
    """W_down((x W_u) * act(x W_v)): silu in LLaMA (eq. 6), no activation in the linear models (eq. 10, 14, 18)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.silu = config.arch == "llama"
        self.up = nn.Linear(config.d_model, config.d_ffn, bias=False)
        self.gate = nn.Linear(config.d_model, config.d_ffn, bias=False)
        self.down = nn.Linear(config.d_ffn, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return fused_linear(fused_gated_linear(x, self.up, self.gate, "silu" if self.silu else ""), self.down)[0]


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


class Decoder(nn.Module):
    """Token ids [B, T] -> normalised hidden states [B, T, d]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.norm is not None
        self.config = config
        self.gradient_checkpointing = False  # compute each layer's activations again in the backward pass
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tpe = Tpe(config) if config.arch == "cosformer2" else None
        mixer = mixer_of(config.arch)
        self.has_kv_cache = mixer.has_kv_cache
        # gamma of `lower_bounds`
        bounded = mixer.has_lower_bounds and config.lower_bound != "off"
        self.gamma = nn.Parameter(torch.empty(config.n_layers, config.bound_dim)) if bounded else None
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.n_layers))
        self.norm = Norm(config.norm, config.d_model, config.norm_eps)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecodeCache | None = None,
        use_cache: bool = False,
        backend: str | None = None,
    ) -> tuple[Tensor, DecodeCache | None]:
        """Hidden states [B, T, d] and, with `use_cache`, what the next tokens need. Arguments as LanguageModel's."""
        if cache is not None:
            cache.check(self.config, len(input_ids))
        layout = lay_out(input_ids, attention_mask, documents, cache, self.has_kv_cache, use_cache)
        check_ids(input_ids, self.embedding.num_embeddings)
        x = self.embedding(input_ids)
        if self.config.residual_dtype == "auto" and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        bounds = None if self.gamma is None else lower_bounds(self.gamma, self.config.lower_bound)
        rotary = mixer_of(self.config.arch).rotary(self.config, layout.positions, x)
        stream = Stream(
            layout.positions,
            layout.padding_mask,
            layout.document_starts,
            layout.attention_mask,
            backend,
            bounds,
            rotary,
        )
        first: LayerCache = {}
        if self.tpe is not None:
            x, first = self.tpe(x, stream, {} if cache is None else cache.first)
        caches: list[LayerCache] = []
        branch: Tensor | None = None
        for index, layer in enumerate(self.layers):
            layer_cache = {} if cache is None else cache.layers[index]
            if self.gradient_checkpointing and self.training:
                x = x if branch is None else x + branch.to(x.dtype)  # one tensor to keep, not two
                x, branch, after = checkpoint(layer, x, None, stream, layer_cache, use_reentrant=False)
            else:
                x, branch, after = layer(x, branch, stream, layer_cache)
            if use_cache:
                caches.append(after)
        assert branch is not None
        hidden = self.norm.add(x, branch)[1]
        if not use_cache:
            return hidden, None
        n_read = input_ids.shape[1] + (0 if cache is None else cache.n_read)
        return hidden, DecodeCache(self.config, layout.seen, caches, first, n_read, layout.masked_keys)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialise every parameter from `generator`, one of the CPU so that devices agree.

        Matrices are normal(0, init_std); those that write to the residual stream are divided by the square root of
        their number (2 L, or L without MLPs). Norms start at weight 1 and bias 0; gamma, Tpe and a mixer's special
        parameters as their modules say. The rule is ours: the papers state none.
        """
        std = self.config.init_std
        writers = self.config.n_layers * (2 if mixer_of(self.config.arch).has_mlp else 1)
        residual = ("mixer.out.weight", "channel.down.weight")
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if name.endswith(residual):
                    parameter.normal_(0.0, std / math.sqrt(writers), generator=generator)
                elif name == "gamma" or name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() >= 2:
                    parameter.normal_(0.0, std, generator=generator)
                else:
                    parameter.fill_(1.0)
        if self.gamma is not None:
            reset_gamma(self.gamma, self.config.lower_bound, generator)
        if self.tpe is not None:
            self.tpe.reset_own_parameters(generator)
        for module in self.modules():
            if isinstance(module, Mixer):
                module.reset_own_parameters(generator)

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay must not pull to zero: vectors, gate bounds and frequencies."""
        scales = tuple(f".mixer.{name}" for name in mixer_of(self.config.arch).time_scales)
        names = {name for name, p in self.named_parameters() if p.dim() < 2 or name.endswith(scales)}
        return names | ({"gamma"} if self.gamma is not None else set())

    def keep_fp32(self) -> set[str]:
        """Parameters that a checkpoint must not round to bf16: the same ones, since they set time scales."""
        return self.no_weight_decay()
