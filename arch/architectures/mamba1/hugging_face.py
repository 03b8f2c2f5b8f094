"""transformers' MambaForCausalLM: its fields and names. Imports no torch."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from ...config import ModelConfig


def ours(fields: Fields) -> dict[str, Any]:
    rank = fields["time_step_rank"]
    if rank != "auto" and not (type(rank) is int and rank > 0):
        fields.refuse("time_step_rank", "only a positive integer or 'auto'")
    return shared_ours(fields) | {"dt_rank": None if rank == "auto" else rank}


def theirs(config: ModelConfig) -> dict[str, Any]:
    return shared_theirs(config) | {"time_step_rank": config.options.dt_rank}


FAMILY = Family(
    arch="mamba1",
    model_type="mamba",
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
    ours=ours,
    theirs=theirs,
)
