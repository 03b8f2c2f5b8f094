"""The language model: decoder, tied head, loss; built from a seed, saved and loaded as safetensors.

Imports no transformers, which takes seconds: the trainer and the evaluations start many processes. arch/hf/auto.py
wraps the same parameters, names and files for the Hugging Face world.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..config import ModelConfig
from ..errors import InputError
from ..ops.fused.cross_entropy import linear_cross_entropy
from ..registry import plugins_of
from ..soft_targets import parts_of
from .cache import DecodeCache
from .decoder import Decoder, Filled
from .encoder import Encoder
from .layout import boundaries
from .stored import MODEL_TYPE as MODEL_TYPE
from .stored import WEIGHTS as WEIGHTS
from .stored import check_layers, compare_shapes, read_config, stored_shapes, write_tensors

EMBEDDING = "decoder.embedding.weight"


class Output(NamedTuple):
    """logits [B, T, V]; loss in nats per token (fp32) where targets were given; cache where it was asked for. A tuple,
    in which hooks of modules (DeepSpeed's) see the tensors."""

    logits: Tensor
    loss: Tensor | None = None
    cache: DecodeCache | None = None


def mask_targets(targets: Tensor, documents: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    """Shifted targets [B, T] with -100 where the next token is padding or belongs to the next document."""
    if documents is not None:
        return targets.masked_fill(nnf.pad(boundaries(documents), (0, 1), value=False), -100)
    if attention_mask is not None:
        return targets.masked_fill(attention_mask[:, -targets.shape[1] :] == 0, -100)
    return targets


def check_targets(targets: Tensor, like: Tensor) -> None:
    """Raises InputError where targets do not have the shape [B, T] of `like` [B, T, ..]."""
    if targets.shape != like.shape[:2]:
        raise InputError(
            f"targets have shape {list(targets.shape)}, the logits are of {list(like.shape[:2])} tokens: give one "
            f"target a token, and leave logits_to_keep out"
        )


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per token, in fp32 whatever autocast says. logits [B, T, V]; targets [B, T] hold the
    next token of each position; -100 is ignored. Raises InputError where they are not as many as the logits."""
    check_targets(targets, logits)
    with torch.autocast(logits.device.type, enabled=False):
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return nnf.cross_entropy(wide.flatten(0, 1), targets.flatten())


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per example, in fp32 whatever autocast says. logits [B, 1, C]; targets [B, 1] hold
    classes, or what arch.soft_targets makes of them. Raises InputError where they are not as many as the logits."""
    check_targets(targets, logits)
    with torch.autocast(logits.device.type, enabled=False):
        wide = logits if logits.dtype == torch.float64 else logits.float()
        first, second, weight, smoothing = parts_of(targets[..., None])
        log = wide.log_softmax(-1)
        of_pair = (1 - weight) * log.gather(-1, first) + weight * log.gather(-1, second)
        return -((1 - smoothing) * of_pair + smoothing * log.mean(-1, keepdim=True)).mean()


def last_tokens(hidden: Tensor, count: int) -> Tensor:
    """hidden [B, T, d] of the last `count` tokens (0: all). Raises InputError for a negative count or no integer."""
    if not isinstance(count, int) or count < 0:
        raise InputError(f"logits_to_keep must be a number of tokens, or 0 for all, not {count!r}")
    return hidden[:, -count:] if count else hidden


def makes_parts(hidden: Tensor) -> bool:
    """Whether the loss is computed by `linear_cross_entropy`."""
    return hidden.is_cuda and not torch.compiler.is_compiling()


class Head(nn.Linear):
    """Logits [.., V] of hidden states [.., d]; with targets [..] the loss of these logits, which are never all in
    memory. Its weight is read inside its call alone: so hooks can gather a weight that is sharded."""

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return super().forward(hidden)
        return linear_cross_entropy(hidden.flatten(0, -2), self.weight, targets.flatten())


class LanguageModel(nn.Module):
    """A decoder with a language-model head, tied to the embedding unless the configuration says otherwise."""

    architecture: ClassVar[str] = "LinearScalingForCausalLM"  # as config.json names it

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model_config = config
        self.decoder = Decoder(config) if config.encoder is None else Encoder(config)
        self.lm_head = Head(config.head_width, config.n_outputs, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.decoder.embedding.weight

    def forward(
        self,
        input_ids: Tensor,
        targets: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecodeCache | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        loss_only: bool = False,
        backend: str | None = None,
    ) -> Output:
        """Logits of input_ids [B, T], the loss where `targets` are given, the cache with `use_cache`.

        targets: [B, T], already shifted, -100 for positions without a target. attention_mask: [B, T], 0 for padding at
        either end of a row, which changes nothing for the other tokens and does not count in the loss. documents: int
        [B, T], ids of packed documents, each read as if alone; a document's last token has no target. cache: of the
        tokens before these, as `use_cache` returned it. logits_to_keep: number of last tokens to give logits for (0:
        all). loss_only: the output has no logits (on a GPU they are never all in memory). backend: of the sequence
        operations (None: the fastest). After `decoder.split` logits are those of this process's part of each row, and
        the mean of the processes' losses is the loss. Raises InputError for shapes that do not fit, ids outside the
        vocabulary and a cache of another model.
        """
        hidden, after = self.decoder(input_ids, attention_mask, documents, cache, use_cache, backend)
        targets = None if targets is None else mask_targets(targets, documents, attention_mask)
        weight: Tensor | None = None
        if self.decoder.sequence is not None and targets is not None:
            check_targets(targets, input_ids)
            targets, weight = self.decoder.sequence.targets(targets)
        if loss_only and targets is not None and makes_parts(hidden):
            check_targets(targets, hidden)
            logits = hidden.new_empty(len(hidden), 0, self.model_config.n_outputs)
            loss = self.lm_head(hidden, targets)
        else:
            logits = self.lm_head(last_tokens(hidden, logits_to_keep))
            if targets is None:
                return Output(logits, cache=after)
            loss = next_token_loss(logits, targets)
        return Output(logits[:, :0] if loss_only else logits, loss if weight is None else loss * weight.to(loss), after)

    def reset_parameters(self, seed: int, filled: Filled = nullcontext) -> None:
        """Initialise every parameter from `seed` alone. filled: as of Decoder.reset_parameters."""
        generator = torch.Generator().manual_seed(seed)
        self.decoder.reset_parameters(generator, filled)
        if not self.model_config.tie_embeddings:
            with torch.no_grad(), filled([self.lm_head.weight]):
                self.lm_head.weight.normal_(0.0, self.model_config.matrix_std, generator=generator)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters excluded from weight decay."""
        return {f"decoder.{name}" for name in self.decoder.no_weight_decay()}

    def matrices(self) -> set[str]:
        """Names of the weights that are one matrix each of a hidden layer."""
        return {f"decoder.{name}" for name in self.decoder.matrices()}

    def keep_fp32(self) -> set[str]:
        """Names of parameters that checkpoints keep in fp32."""
        return {f"decoder.{name}" for name in self.decoder.keep_fp32()}

    def stored_dtypes(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        """The precision of each weight in a checkpoint of `dtype`, by name, in the order of the file, safetensors'
        own."""
        keep = self.keep_fp32()
        dtypes = {name: torch.float32 if name in keep else dtype for name, _ in self.named_parameters()}
        return dict(sorted(dtypes.items(), key=lambda item: (-item[1].itemsize, item[0])))

    def save_pretrained(
        self, directory: Path | str, dtype: torch.dtype = torch.float32, weights: Iterable[Tensor] | None = None
    ) -> None:
        """Write config.json and model.safetensors, a weight at a time. Weights are in `dtype`, those of `keep_fp32` in
        fp32; a tied head is left out. weights: in the order of `stored_dtypes`; None: the model's own."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        dtypes, own = self.stored_dtypes(dtype), dict(self.named_parameters())
        weights = map(own.__getitem__, dtypes) if weights is None else weights
        contents = (
            weight.detach().to("cpu", of_file).reshape(-1).view(torch.uint8).numpy()
            for weight, of_file in zip(weights, dtypes.values(), strict=True)
        )
        kinds = {name: (str(of_file).removeprefix("torch."), own[name].shape) for name, of_file in dtypes.items()}
        write_tensors(directory / WEIGHTS, kinds, contents, format="pt")
        header: dict[str, Any] = {
            "model_type": MODEL_TYPE,
            "architectures": [self.architecture],
            "dtype": str(dtype).removeprefix("torch."),
            "tie_word_embeddings": self.model_config.tie_embeddings,
        }
        plugins = plugins_of(kind.arch for kind in self.model_config.kinds)
        header |= {"plugin": ", ".join(plugins)} if plugins else {}
        start = self.decoder.document_start_id
        header |= {} if start is None else {"document_start_id": start}
        config = json.dumps(header | self.model_config.to_dict(), indent=1) + "\n"
        (directory / "config.json").write_text(config, encoding="utf-8")


class Classifier(LanguageModel):
    """Logits [B, 1, n_classes] of rows [B, context_length]; the target of a row's last place is its class, or a mixture
    of classes (arch.soft_targets)."""

    architecture: ClassVar[str] = "LinearScalingClassifier"

    def forward(
        self, input_ids: Tensor, targets: Tensor | None = None, *, loss_only: bool = False, **given: Any
    ) -> Output:
        """As LanguageModel's. targets: [B, any number], of which the last is the class."""
        logits = super().forward(input_ids, **given).logits
        if targets is None:
            return Output(logits)
        return Output(logits[:, :0] if loss_only else logits, class_loss(logits, targets[:, -1:]))


class NoInit(TorchFunctionMode):
    """Modules made inside do not initialise their parameters, because they are overwritten right after (initialising
    386 M parameters takes 2 to 5 s on one CPU core)."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        tensor = (named or {}).get("tensor")
        if getattr(function, "__module__", "") == "torch.nn.init" and isinstance(tensor, nn.Parameter):
            return tensor
        return function(*arguments, **(named or {}))


def empty_of(config: ModelConfig) -> LanguageModel:
    """The model of `config`, a classifier where that is an encoder's, its parameters not initialised."""
    with NoInit():
        return LanguageModel(config) if config.encoder is None else Classifier(config)


def build_model(config: ModelConfig, seed: int | None = 0) -> LanguageModel:
    """A freshly initialised model in fp32 on the CPU; the same bits for the same config and seed. seed: None for
    parameters that are not filled, and take no memory yet."""
    model = empty_of(config)
    if seed is not None:
        model.reset_parameters(seed)
    return model


def load_model(directory: Path | str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The model saved in `directory`, on the CPU, its weights in `dtype` (those of `keep_fp32` in fp32 at least).

    Raises InputError where there is no model, a file is damaged, or weights and configuration do not fit.
    """
    model = empty_model(directory, dtype)
    load_weights(model, directory)
    return model


def empty_model(directory: Path | str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """As `load_model`, with parameters that are not filled yet: `load_weights` does."""
    directory = Path(directory)
    config, start = read_config(directory)
    check_fits(config, directory / WEIGHTS)
    model = empty_of(config)
    model.decoder.document_start_id = start
    keep, at_least = model.keep_fp32(), torch.promote_types(dtype, torch.float32)
    for name, parameter in model.named_parameters():
        parameter.data = torch.empty_like(parameter, dtype=at_least if name in keep else dtype)
    return model


def check_fits(config: ModelConfig, path: Path) -> None:
    """Raise InputError where the safetensors file at `path` does not hold the model of `config`. Only its header is
    read, and nothing larger than the file is allocated: a configuration may ask for any size."""
    shapes = stored_shapes(path)
    check_layers(config, shapes, path)
    embedding = {EMBEDDING: [config.embedded, config.d_model]}
    compare_shapes(path, embedding, {name: shapes[name] for name in embedding if name in shapes})
    try:
        with torch.device("meta"):
            model = empty_of(config)
    except RuntimeError as error:
        raise InputError(f"{path}: no model of its config.json can be made ({error})") from None
    compare_shapes(path, {name: list(parameter.shape) for name, parameter in model.named_parameters()}, shapes)


def read_weights(directory: Path | str) -> dict[str, Tensor]:
    """The tensors saved in `directory`, on the CPU, by name. Raises InputError where the file is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(directory) / WEIGHTS
    try:
        weights: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path}: is damaged ({error}); take another copy") from None
    return weights


def load_weights(model: LanguageModel, directory: Path | str) -> None:
    """Fill every parameter of `model`, on its device and in its precision, with the weights saved in `directory`.

    Raises InputError where the file is damaged, or its weights are not those of the model.
    """
    path = Path(directory) / WEIGHTS
    weights = read_weights(directory)
    expected = dict(model.named_parameters())
    shapes = ({name: tensor.shape for name, tensor in tensors.items()} for tensors in (expected, weights))
    compare_shapes(path, *shapes)
    for name, parameter in expected.items():
        with torch.no_grad():
            parameter.copy_(weights[name])
