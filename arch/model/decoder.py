"""The decoder all architectures share: embedding -> [position encoding] -> layers -> norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import ModelConfig
from ..errors import InputError
from ..ops.fused.embedding import embed
from ..ops.fused.pointwise import uses_kernels
from ..ops.fused.weight_casts import WeightCasts
from ..registry import architecture
from .cache import DecodeCache, LayerCache, alone
from .layers import MLP, GatedMLP, Layer, called_as_written
from .layout import check_ids, lay_out
from .mixer import Mixer, PositionEncoding, Stream, mixer_of
from .norms import Norm
from .sequence import SequenceGroup

Filled = Callable[[Iterable[Tensor]], AbstractContextManager[Any]]


class Decoder(nn.Module):
    """Token ids [B, T] -> normalised hidden states [B, T, d]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.norm is not None
        self.config = config
        self.gradient_checkpointing = 0.0  # the share of layers whose activations the backward pass computes again
        self.document_start_id: int | None = None  # see forward
        self.sequence: SequenceGroup | None = None  # see split
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.kinds = [(kind, mixer_of(kind.arch)) for kind in config.kinds]
        self.kind_of_layer = [kind.arch for kind, _ in config.by_layer]
        first, mixer = self.kinds[0]
        self.tpe = mixer.position_encoding(first)  # stored weights have this name
        self.has_kv_cache = not config.constant_state
        self.register_parameter("gamma", None)
        self.gammas: dict[str, str] = {}  # the parameter of each kind that has lower bounds
        for kind, mixer in self.kinds:
            if (shape := mixer.gamma_shape(kind)) is not None:
                self.gammas[kind.arch] = f"gamma_{kind.arch}" if self.gammas else "gamma"
                self.register_parameter(self.gammas[kind.arch], nn.Parameter(torch.empty(shape)))
        self.layers = nn.ModuleList(Layer(kind, index) for kind, index in config.by_layer)
        self.norm = Norm(config.norm, config.d_model, config.norm_eps)
        self.casts = WeightCasts()

    def split(self, sequence: SequenceGroup | None) -> None:
        """Read from now on this process's part of each row in `forward`, which is still given whole rows and returns
        that part's hidden states; None: whole rows again. Raises InputError where a layer cannot."""
        if sequence is not None:
            self.config.check_split(sequence.size)
            for kind, mixer in self.kinds:
                mixes = next(base for base in mixer.__mro__ if "mix" in vars(base))  # which must say so itself
                if not (architecture(kind.arch).constant_state or vars(mixes).get("exchanges_heads")):
                    raise InputError(f"architecture {kind.arch!r}: its layers do not read rows in parts")
        self.sequence = sequence

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecodeCache | None = None,
        use_cache: bool = False,
        backend: str | None = None,
    ) -> tuple[Tensor, DecodeCache | None]:
        """Hidden states [B, T, d] and, with `use_cache`, the cache for the next tokens. Arguments as LanguageModel's;
        in the place of ids also the vectors [B, T, d] that the embedding would give.

        Where `document_start_id` is set, each token of that id begins a document, which is read as if alone, unless
        documents, a mask or a cache are given.
        """
        if cache is not None:
            cache.check(self.config, len(input_ids))
        vectors = input_ids if input_ids.is_floating_point() and input_ids.dim() == 3 else None
        if vectors is not None:
            if vectors.shape[2] != self.config.d_model:
                raise InputError(f"inputs_embeds has shape {list(vectors.shape)}: give [B, T, {self.config.d_model}]")
            input_ids = torch.zeros(vectors.shape[:2], dtype=torch.int64, device=vectors.device)  # no ids are known
        elif self.document_start_id is not None and documents is None and attention_mask is None and cache is None:
            documents = (input_ids == self.document_start_id).cumsum(1)
        layout = lay_out(input_ids, attention_mask, documents, cache, self.has_kv_cache, use_cache)
        if vectors is None:
            check_ids(input_ids, self.embedding.num_embeddings)
        if self.sequence is not None:
            if use_cache or cache is not None:
                raise InputError("rows in parts are not decoded: Decoder.split(None) first")
            part = self.sequence.part(input_ids.shape[1])
            layout, input_ids = layout.part(part), input_ids[:, part]
            vectors = None if vectors is None else vectors[:, part]
        device = input_ids.device.type
        dtype = self.stream_dtype(device)
        x = embed(input_ids, self.embedding, dtype) if vectors is None else vectors.to(dtype or vectors.dtype)
        streams = {
            kind.arch: Stream(
                layout.positions,
                layout.padding_mask,
                layout.document_starts,
                layout.attention_mask,
                backend,
                self.bounds(kind, mixer),
                mixer.rotary(kind, layout.positions, x),
                sequence=self.sequence,
            )
            for kind, mixer in self.kinds
        }
        first: LayerCache = {}
        if self.tpe is not None:
            before = {} if cache is None else cache.first
            if self.sequence is not None:
                x, before = self.sequence.receive(x, -1)
            x, first = self.tpe(x, streams[self.kind_of_layer[0]], before)
            if self.sequence is not None:
                x = self.sequence.send(x, -1, first)
        caches: list[LayerCache] = []
        hidden = self.through_layers(x, streams, cache, caches if use_cache else None)
        if not use_cache:
            return hidden, None
        n_read = input_ids.shape[1] + (0 if cache is None else cache.n_read)
        return hidden, DecodeCache(self.config, layout.seen, caches, first, n_read, layout.masked_keys)

    def stream_dtype(self, device: str) -> torch.dtype | None:
        """The residual stream's dtype where it is not the embedding's."""
        cast = self.config.residual_dtype == "auto" and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if cast else None

    def through_layers(
        self,
        x: Tensor,
        streams: dict[str, Stream],
        cache: DecodeCache | None = None,
        caches: list[LayerCache] | None = None,
    ) -> Tensor:
        """The normalised hidden states behind all layers, whose new caches are appended to `caches`. streams: by
        kind."""
        n_recomputed = self.config.n_recomputed(self.gradient_checkpointing) if self.training else 0
        # a layer that is computed again casts its own
        ahead = torch.is_grad_enabled() and not n_recomputed and uses_kernels(x)
        with self.casts.once() if ahead else nullcontext():
            return self._through(x, streams, cache, caches, n_recomputed)

    def _through(
        self,
        x: Tensor,
        streams: dict[str, Stream],
        cache: DecodeCache | None,
        caches: list[LayerCache] | None,
        n_recomputed: int,
    ) -> Tensor:
        """n_recomputed: the first layers, whose activations the backward pass needs last, when the others' are gone."""
        branch: Tensor | None = None
        normed: Tensor | None = None
        # a layer that is wrapped, or sharded by hooks, has its own parameters alone, not the next one's norm
        together = all(type(layer) is Layer and called_as_written(layer) for layer in self.layers)
        following = [*(layer.mixer_norm for layer in self.layers[1:]), self.norm] if together else []
        hand_on = [kind.arch for kind, _ in self.kinds if architecture(kind.arch).constant_state]
        for index, layer in enumerate(self.layers):
            stream = streams[self.kind_of_layer[index]]
            layer_cache = {} if cache is None else cache.layers[index]
            sequence = stream.sequence if self.kind_of_layer[index] in hand_on else None
            if sequence is not None:
                x, layer_cache = sequence.receive(x, index)
            if index < n_recomputed:
                x = x if branch is None else x + branch.to(x.dtype)  # one tensor to keep, not two
                # no layer draws random numbers, and a CUDA graph cannot record the reading of the generators' states
                x, branch, _, after = checkpoint(
                    layer, x, None, None, stream, layer_cache, use_reentrant=False, preserve_rng_state=False
                )
            else:
                next_norm = following[index] if together else None
                x, branch, normed, after = layer(x, branch, normed, stream, layer_cache, next_norm)
            if sequence is not None and normed is not None:
                normed = sequence.send(normed, index, after)  # behind the last layer nothing reads x
            elif sequence is not None:
                x = sequence.send(x, index, after)
            if caches is not None:
                caches.append(alone(after))
        if normed is not None:
            return normed
        assert branch is not None
        return self.norm.add(x, branch)[1]

    def bounds(self, kind: ModelConfig, mixer: type[Mixer]) -> tuple[Tensor, ...] | None:
        """The bounds [channels] of each layer of a kind, split in one operation so that their gradients are joined in
        one; None where it has none."""
        if kind.arch not in self.gammas:
            return None
        bounds = mixer.bounds(kind, getattr(self, self.gammas[kind.arch]))
        # a softmax over one layer leaves nothing to bound; clamp guards the sum's last rounding
        return bounds.clamp(min=0.0, max=1 - torch.finfo(torch.float32).eps).unbind(0)

    def reset_parameters(self, generator: torch.Generator, filled: Filled = nullcontext) -> None:
        """Initialise every parameter from `generator`, one of the CPU so that devices agree. filled: inside, the
        parameters that it is given are whole and on the CPU, though the model be sharded.

        Matrices are normal(0, init_std); those that write to the residual stream are divided by the square root of
        their number (2 a layer, 1 without an MLP). Norms start at weight 1 and bias 0; gamma, Tpe and a mixer's special
        parameters as their modules say. The papers state no rule.
        """
        std = self.config.matrix_std
        writers = sum(kind.n_layers * (2 if mixer.has_mlp else 1) for kind, mixer in self.kinds)
        residual = ("mixer.out.weight", "channel.down.weight")
        for name, parameter in self.named_parameters():
            with torch.no_grad(), filled([parameter]):
                if name.endswith(residual):
                    parameter.normal_(0.0, std / math.sqrt(writers), generator=generator)
                elif name in self.gammas.values() or name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() >= 2:
                    parameter.normal_(0.0, std, generator=generator)
                else:
                    parameter.fill_(1.0)
        for kind, mixer in self.kinds:
            if kind.arch in self.gammas:
                gamma = getattr(self, self.gammas[kind.arch])
                with filled([gamma]):
                    mixer.reset_gamma(kind, gamma, generator)
        mixers = [module for module in self.modules() if isinstance(module, Mixer)]
        own: list[PositionEncoding | Mixer] = [] if self.tpe is None else [self.tpe]
        own += [mixer for mixer in mixers if type(mixer).reset_own_parameters is not Mixer.reset_own_parameters]
        for module in own:
            with filled(module.parameters()):
                module.reset_own_parameters(generator)

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay must not pull to zero: vectors, gate bounds and frequencies."""
        mixers = [(name, module) for name, module in self.named_modules() if isinstance(module, Mixer)]
        scales = {f"{name}.{scale}" for name, mixer in mixers for scale in mixer.time_scales}
        names = {name for name, p in self.named_parameters() if p.dim() < 2 or name in scales}
        return names | set(self.gammas.values())

    def matrices(self) -> set[str]:
        """The weights of hidden layers that are one matrix each: projections, output projections and MLPs. Not
        embeddings, convolutions, gates of low rank, nor projections that hold several matrices (Mixer.fused)."""
        names = set[str]()
        for name, module in self.named_modules():
            if isinstance(module, Mixer):
                whole = [key for key, item in module.project.items() if isinstance(item, nn.Linear)]
                names |= {f"{name}.project.{key}.weight" for key in whole if key not in module.fused}
                names.add(f"{name}.out.weight")
            elif isinstance(module, (GatedMLP, MLP)):
                names |= {f"{name}.{key}.weight" for key, _ in module.named_children()}
        return names

    def keep_fp32(self) -> set[str]:
        """Parameters that a checkpoint must not round to bf16: those of `no_weight_decay`, which set time scales."""
        return self.no_weight_decay()
