"""Fields and names that transformers' Mamba and Mamba2 share. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...hf.families import Fields

if TYPE_CHECKING:
    from ...config import ModelConfig

CONTEXT = 2048  # tokens that the published Mambas were trained on; their configurations do not have it
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


def shared_ours(fields: Fields) -> dict[str, Any]:
    """ModelConfig's fields; a missing context length is that of the published models."""
    return {
        "n_heads": 1,
        "d_ffn": fields["expand"] * fields["hidden_size"],  # there is no MLP
        "context_length": fields.config.get("max_position_embeddings", CONTEXT),
        "norm_eps": fields["layer_norm_epsilon"],
        "expand": fields["expand"],
        "conv_width": fields["conv_kernel"],
        "ssm_state": fields["state_size"],
        "residual_dtype": "fp32" if fields["residual_in_fp32"] else "auto",
    }


def shared_theirs(config: ModelConfig) -> dict[str, Any]:
    return {
        "layer_norm_epsilon": config.norm_eps,
        "expand": config.options.expand,
        "conv_kernel": config.options.conv_width,
        "state_size": config.options.ssm_state,
        "residual_in_fp32": config.residual_dtype == "fp32",
    }
