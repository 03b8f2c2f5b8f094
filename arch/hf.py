"""The models as Hugging Face classes. Importing this registers them: AutoConfig, AutoModelForCausalLM, generate."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.configuration_utils import PretrainedConfig
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import PreTrainedModel

from .config import FIELDS, ModelConfig
from .lm import MODEL_TYPE, next_token_loss
from .model import Decoder


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
        own = {name: kwargs.pop(name) for name in FIELDS if name in kwargs}
        # the library builds a default configuration to compare with when it prints one
        shape: dict[str, Any] = {"arch": "llama", "d_model": 128, "n_layers": 2, "n_heads": 1, "d_ffn": 344}
        config = ModelConfig.from_dict(shape | own)
        for name in FIELDS:
            setattr(self, name, getattr(config, name))
        kwargs["tie_word_embeddings"] = config.tie_embeddings
        super().__init__(**kwargs)

    def model_config(self) -> ModelConfig:
        return ModelConfig.from_dict({name: getattr(self, name) for name in FIELDS})


class LinearScalingForCausalLM(PreTrainedModel, GenerationMixin):
    """The parameters of `arch.lm.LanguageModel`, under the same names."""

    config_class = LinearScalingConfig
    base_model_prefix = "decoder"
    # patterns; with dtype=bfloat16 too: what Decoder.keep_fp32 names, since rounded time scales are other time scales
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["theta", "gamma", "norm", "bias", "A_log", r"\.D$"]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "decoder.embedding.weight"}

    def __init__(self, config: LinearScalingConfig) -> None:
        super().__init__(config)
        model_config = config.model_config()
        self.decoder = Decoder(model_config)
        self.lm_head = nn.Linear(model_config.d_model, model_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        """The whole model at once, from the configuration's rule: the library calls this module by module."""
        if module is self.decoder:
            self.decoder.reset_parameters(torch.Generator().manual_seed(0))
        elif module is self.lm_head and not self.config.tie_embeddings:
            nn.init.normal_(module.weight, 0.0, self.config.init_std)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, start: int = 0, form: str | None = None, **unused: Any
    ) -> CausalLMOutput:
        """Logits [B, T, V] and, with labels [B, T] (position t predicts labels[t + 1]), the loss in nats per token."""
        logits = self.lm_head(self.decoder(input_ids, start, form))
        loss = None
        if labels is not None:
            loss = next_token_loss(logits, nnf.pad(labels[:, 1:], (0, 1), value=-100))
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **unused: Any) -> dict[str, Tensor]:
        return {"input_ids": input_ids}


AutoConfig.register(MODEL_TYPE, LinearScalingConfig)
AutoModelForCausalLM.register(LinearScalingConfig, LinearScalingForCausalLM)
