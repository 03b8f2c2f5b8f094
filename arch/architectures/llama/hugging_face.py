"""transformers' LlamaForCausalLM: its fields and names. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...hf.families import TOKENS, Family, Fields

if TYPE_CHECKING:
    from ...config import ModelConfig


def ours(fields: Fields) -> dict[str, Any]:
    """ModelConfig's fields; sets `kv_heads`. Our model has rotary angles of one base over whole heads alone."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if width % heads:
        fields.refuse("num_attention_heads", f"only a divisor of hidden_size={width}")
    if fields["head_dim"] not in (None, width // heads):
        fields.refuse("head_dim", f"only hidden_size / num_attention_heads = {width // heads}")
    fields.kv_heads = heads if fields["num_key_value_heads"] is None else fields["num_key_value_heads"]
    if type(fields.kv_heads) is not int or fields.kv_heads < 1 or heads % fields.kv_heads:
        fields.refuse("num_key_value_heads", f"only a divisor of num_attention_heads={heads}")
    # transformers 4 has rope_theta at the top and scaling in rope_scaling, transformers 5 both in rope_parameters
    rope = fields.config.get("rope_scaling") or fields["rope_parameters"] or {}
    name = "rope_scaling" if fields.config.get("rope_scaling") else "rope_parameters"
    nested = not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values())
    if nested or rope.get("rope_type", rope.get("type", "default")) != "default":
        fields.refuse(name, "only one rope_type 'default'")
    if fields.config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1)) not in (None, 1):
        fields.refuse("partial_rotary_factor" if "partial_rotary_factor" in fields.config else name, "only whole heads")
    return {
        "n_heads": heads,
        "d_ffn": fields["intermediate_size"],
        "context_length": fields["max_position_embeddings"],
        "norm_eps": fields["rms_norm_eps"],
        "rope_base": rope.get("rope_theta", fields.config.get("rope_theta", 10_000.0)),
    }


def theirs(config: ModelConfig) -> dict[str, Any]:
    return {
        "intermediate_size": config.d_ffn,
        "num_attention_heads": config.n_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.options.rope_base},
    }


FAMILY = Family(
    arch="llama",
    model_type="llama",
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
    ours=ours,
    theirs=theirs,
)
