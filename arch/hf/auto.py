"""The models as Hugging Face classes. Importing this registers them: AutoConfig, AutoModelForCausalLM, generate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.configuration_utils import PretrainedConfig
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import PreTrainedModel

from ..config import ARCHS, ModelConfig, archs_in, model_fields_in
from ..errors import InputError
from ..model.cache import DecodeCache
from ..model.decoder import Decoder
from ..model.lm import MODEL_TYPE, last_tokens, mask_targets, next_token_loss
from ..model.stored import WEIGHTS, check_layers, read_config, stored_shapes
from ..registry import plugins_of, require

# Arguments of the library that these models cannot honour; its other arguments change nothing.
REFUSED = (
    *("output_hidden_states", "output_attentions"),
    *("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"),  # of packing; `documents` is ours
)


class LinearScalingConfig(PretrainedConfig):
    """ModelConfig's fields under their own names, and the library's names for those it looks up itself."""

    model_type = MODEL_TYPE
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "d_ffn",
        "max_position_embeddings": "context_length",
    }

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {self.attribute_map.get(name, name): value for name, value in kwargs.items()}
        own = model_fields_in(kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        # the library builds a default configuration to compare with when it prints one
        shape: dict[str, Any] = {"arch": ARCHS[0], "d_model": 128, "n_layers": 2, "n_heads": 1, "d_ffn": 344}
        require(archs_in(shape | own), kwargs.get("plugin"), "config.json")
        config = ModelConfig.from_dict(shape | own)
        if plugins := plugins_of(kind.arch for kind in config.kinds):
            kwargs["plugin"] = ", ".join(plugins)
        for name, value in config.to_dict().items():
            setattr(self, name, value)
        kwargs["tie_word_embeddings"] = config.tie_embeddings
        super().__init__(**kwargs)

    def model_config(self) -> ModelConfig:
        return ModelConfig.from_dict(model_fields_in(vars(self)))


@dataclass
class CausalLMOutputWithState(CausalLMOutput):
    """`state` is the cache that `generate` passes to the next step."""

    state: DecodeCache | None = None


class LinearScalingForCausalLM(PreTrainedModel, GenerationMixin):
    """The parameters of `arch.model.lm.LanguageModel`, under the same names.

    transformers' Trainer applies weight decay to all parameters without "bias" or "norm" in their names, time scales
    too. Give it an optimiser that excludes `decoder.no_weight_decay()`.
    """

    config_class = LinearScalingConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is a mean over the tokens of one forward pass
    _is_stateful = True  # a state cannot be cut back to fewer tokens
    _no_split_modules: ClassVar[list[str]] = ["Layer"]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "decoder.embedding.weight"}

    def __init__(self, config: LinearScalingConfig) -> None:
        super().__init__(config)
        model_config = config.model_config()
        self.decoder = Decoder(model_config)
        self.decoder.document_start_id = getattr(config, "document_start_id", None)
        self.lm_head = nn.Linear(model_config.d_model, model_config.vocab_size, bias=False)
        self.post_init()
        # with dtype=bfloat16 too, since rounded time scales are other time scales; the library takes patterns
        self._keep_in_fp32_modules_strict = {rf"^decoder\.{re.escape(name)}$" for name in self.decoder.keep_fp32()}

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As the library's method; weights that do not fit the configuration raise an InputError that names the
        first."""
        folder = Path(args[0]) if args and isinstance(args[0], (str, Path)) else None
        if folder is not None and (folder / WEIGHTS).is_file() and (folder / "config.json").is_file():
            # the library makes the layers that config.json asks for before it reads the weights
            check_layers(read_config(folder)[0], stored_shapes(folder / WEIGHTS), folder / WEIGHTS)
        # other shapes are let in, since the library's own error names none of them
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True} | kwargs
        model, info = super().from_pretrained(*args, **options)
        where = args[0] if args else "weights"
        for name, stored, needed in sorted(info["mismatched_keys"]):
            raise InputError(
                f"{where}: tensor {name!r} has shape {list(stored)}, the configuration needs {list(needed)}"
            )
        for problem in ("missing", "unexpected"):
            for name in sorted(info[f"{problem}_keys"]):
                raise InputError(f"{where}: {problem} tensor {name!r}")
        return (model, info) if output_loading_info else model

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise every parameter by the configuration's rule, from PyTorch's seed. Does nothing once weights were
        loaded, because `from_pretrained` refuses incomplete weights. The library's own method skips modules that, like
        the decoder, have no parameters beside their children's."""
        if any(getattr(parameter, "_is_hf_initialized", False) for parameter in self.decoder.parameters()):
            return
        seed = int(torch.randint(1 << 62, (), device="cpu"))
        self.decoder.reset_parameters(torch.Generator().manual_seed(seed))
        if not self.config.tie_embeddings:
            self._init_weights(self.lm_head)

    def _init_weights(self, module: nn.Embedding | nn.Linear) -> None:
        """Initialise an embedding or a head, which the library makes anew where the vocabulary is resized."""
        nn.init.normal_(module.weight, 0.0, self.decoder.config.matrix_std)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        documents: Tensor | None = None,
        state: DecodeCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        backend: str | None = None,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutputWithState:
        """Logits [B, T, V] and, with labels [B, T] (position t predicts labels[t + 1]), the loss in nats per token,
        padding neither predicting nor predicted; with `use_cache` the state, which `state` or `past_key_values` of a
        later call goes on from. inputs_embeds [B, T, d]: in the place of ids. The other arguments are those of
        `arch.model.lm.LanguageModel`."""
        for name in REFUSED:
            if others.get(name) is not None and others[name] is not False:
                raise InputError(f"{name} is not supported by {type(self).__name__}: leave it out")
        read = input_ids if inputs_embeds is None else inputs_embeds
        if read is None or (input_ids is not None and inputs_embeds is not None):
            raise InputError(f"{type(self).__name__}: give input_ids or inputs_embeds, and not both")
        state = others.get("past_key_values") if state is None else state
        hidden, after = self.decoder(read, attention_mask, documents, state, bool(use_cache), backend)
        logits = self.lm_head(last_tokens(hidden, logits_to_keep))
        loss = None
        if labels is not None:
            targets = nnf.pad(mask_targets(labels, None, attention_mask)[:, 1:], (0, 1), value=-100)
            loss = next_token_loss(logits, mask_targets(targets, documents, attention_mask))
        return CausalLMOutputWithState(loss=loss, logits=logits, state=after)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def generate(self, *args: Any, past_key_values: DecodeCache | None = None, **options: Any) -> Any:
        """As the library's method. past_key_values: the state after earlier tokens, which the ids begin with, as a call
        with `return_dict_in_generate` returned it under this name."""
        return super().generate(*args, **({} if past_key_values is None else {"state": past_key_values}), **options)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: DecodeCache | None = None,
        use_cache: bool | None = True,
        logits_to_keep: int | None = None,
        inputs_embeds: Tensor | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """The arguments of the next step: only the tokens that `state` has not read. inputs_embeds: what generation
        begins with in the place of ids."""
        begins = inputs_embeds is not None and (state is None or not input_ids.shape[1])
        unread = input_ids if state is None else input_ids[:, state.n_read if inputs_embeds is None else -1 :]
        return {
            "input_ids": None if begins else unread,
            "inputs_embeds": inputs_embeds if begins else None,
            "attention_mask": attention_mask,
            "state": state,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep or 0,
        }

    def _reorder_cache(self, state: DecodeCache, rows: Tensor) -> DecodeCache:
        return state.select(rows)


if not __name__.startswith("transformers_modules."):  # auto_map names the copy beside exported weights
    AutoConfig.register(MODEL_TYPE, LinearScalingConfig)
    AutoModelForCausalLM.register(LinearScalingConfig, LinearScalingForCausalLM)
