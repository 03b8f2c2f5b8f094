"""The model types of transformers that are also ours: their configurations' fields and their parameters' names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """One of the library's model types: its configuration's fields, and its parameters' names.

    defaults: fields that are read, with the library's values for those a config.json leaves out; only: the values that
    our model can express; ignored: fields that do not change the function (initialisation, kernels, ids of tokens).
    names, in_layer: parameters outside and inside of layers, ours -> theirs, a layer's behind `layers`.
    """

    arch: str
    classes: tuple[str, str]
    defaults: dict[str, Any]
    only: dict[str, tuple[Any, ...]]
    ignored: tuple[str, ...]
    layers: str
    names: dict[str, str]
    in_layer: dict[str, str]

    def theirs(self, ours: str) -> str:
        """The library's name of our parameter."""
        if not ours.startswith("decoder.layers."):
            return self.names[ours]
        index, name = ours.removeprefix("decoder.layers.").split(".", 1)
        return f"{self.layers}.{index}.{self.in_layer[name]}"


TOKENS = ("use_cache", "pad_token_id", "bos_token_id", "eos_token_id")
STEPS = ("time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual")  # at initialisation
MAMBA_DEFAULTS = {
    "conv_kernel": 4,
    "expand": 2,
    "hidden_act": "silu",
    "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": True,
    "use_bias": False,
    "use_conv_bias": True,
}
MAMBA_ONLY = {"hidden_act": ("silu", "swish"), "use_bias": (False,), "use_conv_bias": (True,)}
MAMBA_NAMES = {
    "decoder.embedding.weight": "backbone.embeddings.weight",
    "decoder.norm.weight": "backbone.norm_f.weight",
    "lm_head.weight": "lm_head.weight",
}
MAMBA_LAYER = {
    "mixer_norm.weight": "norm.weight",
    "mixer.project.input.weight": "mixer.in_proj.weight",
    "mixer.conv.weight": "mixer.conv1d.weight",
    "mixer.conv.bias": "mixer.conv1d.bias",
    "mixer.out.weight": "mixer.out_proj.weight",
    "mixer.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
}
FAMILIES = {
    "llama": Family(
        arch="llama",
        classes=("LlamaConfig", "LlamaForCausalLM"),
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-6,
            "rope_parameters": None,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
        },
        only={
            "hidden_act": ("silu", "swish"),
            "attention_bias": (False,),
            "attention_dropout": (0, None),
            "mlp_bias": (False,),
        },
        ignored=(*TOKENS, "pretraining_tp"),
        layers="model.layers",
        names={
            "decoder.embedding.weight": "model.embed_tokens.weight",
            "decoder.norm.weight": "model.norm.weight",
            "lm_head.weight": "lm_head.weight",
        },
        in_layer={
            "mixer_norm.weight": "input_layernorm.weight",
            "mixer.project.query.weight": "self_attn.q_proj.weight",
            "mixer.project.key.weight": "self_attn.k_proj.weight",
            "mixer.project.value.weight": "self_attn.v_proj.weight",
            "mixer.out.weight": "self_attn.o_proj.weight",
            "channel_norm.weight": "post_attention_layernorm.weight",
            "channel.up.weight": "mlp.up_proj.weight",
            "channel.gate.weight": "mlp.gate_proj.weight",
            "channel.down.weight": "mlp.down_proj.weight",
        },
    ),
    "mamba2": Family(
        arch="mamba2",
        classes=("Mamba2Config", "Mamba2ForCausalLM"),
        defaults=MAMBA_DEFAULTS
        | {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "chunk_size": 256,
            "time_step_limit": [0.0, math.inf],
            "tie_word_embeddings": False,
        },
        only=MAMBA_ONLY | {"n_groups": (1,), "time_step_limit": ([0.0, math.inf],)},
        ignored=(*TOKENS, *STEPS, "time_step_rank"),
        layers="backbone.layers",
        names=MAMBA_NAMES,
        in_layer=MAMBA_LAYER | {"mixer.dt_bias": "mixer.dt_bias", "mixer.norm.weight": "mixer.norm.weight"},
    ),
    "mamba": Family(
        arch="mamba1",
        classes=("MambaConfig", "MambaForCausalLM"),
        defaults=MAMBA_DEFAULTS
        | {
            "vocab_size": 50280,
            "hidden_size": 768,
            "num_hidden_layers": 32,
            "state_size": 16,
            "time_step_rank": "auto",
            "tie_word_embeddings": True,
        },
        only=MAMBA_ONLY,
        ignored=(
            *(*TOKENS, *STEPS, "time_step_scale", "time_step_init_scheme"),
            *("use_mambapy", "use_associative_scan"),
        ),
        layers="backbone.layers",
        names=MAMBA_NAMES,
        in_layer=MAMBA_LAYER
        | {
            "mixer.dt_bias": "mixer.dt_proj.bias",
            "mixer.select.weight": "mixer.x_proj.weight",
            "mixer.step.weight": "mixer.dt_proj.weight",
        },
    ),
}
