"""transformers' Mamba2ForCausalLM: its fields and names. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...hf.families import TOKENS, Family, Fields
from ..common.mamba_family import (
    MAMBA_DEFAULTS,
    MAMBA_LAYER,
    MAMBA_NAMES,
    MAMBA_ONLY,
    STEPS,
    shared_ours,
    shared_theirs,
)
from ..common.mamba_options import inner_width

if TYPE_CHECKING:
    from ...config import ModelConfig


def ours(fields: Fields) -> dict[str, Any]:
    width, expand, heads, chunk = (fields[name] for name in ("hidden_size", "expand", "num_heads", "chunk_size"))
    if width % heads:
        fields.refuse("num_heads", f"only a divisor of hidden_size={width}")
    if fields["head_dim"] * heads != expand * width:
        fields.refuse("head_dim", f"only expand * hidden_size / num_heads = {expand * width // heads}")
    # the size of chunks does not change the function; ours are powers of two
    return shared_ours(fields) | {"n_heads": heads} | ({} if chunk & (chunk - 1) else {"chunk_size": chunk})


def theirs(config: ModelConfig) -> dict[str, Any]:
    heads = {"num_heads": config.n_heads, "head_dim": inner_width(config) // config.n_heads}
    return shared_theirs(config) | heads | {"n_groups": 1, "chunk_size": config.chunk_size}


FAMILY = Family(
    arch="mamba2",
    model_type="mamba2",
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
    ours=ours,
    theirs=theirs,
)
