"""Random patterns: periods of layers of several kinds, each kind with fields of its own."""

from __future__ import annotations

import random
from typing import Any

from arch.config import ARCHS, ModelConfig
from arch.presets import preset
from arch.registry import ARCHITECTURES, register_pattern

KINDS = tuple(arch for arch in ARCHS if ARCHITECTURES[arch].in_patterns)
OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "llama": ({}, {"n_heads": 4}, {"norm": "layer"}),
    "tnl": ({}, {"gate_rank": 3}, {"decay": "dependent", "d_ffn": 40}),
    "hgrn2": ({}, {"n_heads": 1}, {"lower_bound": "off"}, {"input_gate": "own", "norm": "rms"}),
    "hgrn1": ({}, {"hgrn1_state": "real"}, {"d_ffn": 24}),
    "mamba2": ({}, {"ssm_state": 4}, {"n_heads": 4, "norm_eps": 1e-3}),
    "mamba1": ({}, {"conv_width": 2}),
    "lru": ({}, {"d_ffn": 24}, {"norm": "layer"}),
    "gated_deltanet": ({}, {"expand_v": 1, "n_heads": 4}, {"negative_eigenvalues": True, "conv_width": 1}),
    "gla": ({}, {"gate_rank": 3, "n_heads": 4}, {"norm": "srms", "gate_temperature": 2}),
    "retnet": ({}, {"expand_v": 1, "n_heads": 4}, {"norm": "layer", "d_ffn": 40}),
    "deltanet": ({}, {"expand_v": 2, "norm": "srms"}, {"n_heads": 4, "conv_width": 2}),
    "kimi_delta": ({}, {"expand_v": 3, "gate_rank": 3}, {"norm": "layer", "d_ffn": 24}),
    "transformer": (
        {},
        {"window": 9, "position": "none"},
        {"window": 30, "attention_gate": True},
        {"n_heads": 4, "n_kv_heads": 1, "qk_norm": False},
    ),
}


def random_pattern(seed: int, **changes: Any) -> ModelConfig:
    """A tiny model of one or two periods of up to five layers."""
    draw = random.Random(seed)
    layers = [draw.choice(KINDS) for _ in range(draw.randint(2, 5))]
    own = {kind: draw.choice(OWN.get(kind, ({},))) for kind in set(layers)}
    register_pattern("drawn", layers, own)
    period = len(ARCHITECTURES["drawn"].layers)
    fields = {"n_layers": period * draw.randint(1, 2), "vocab_size": 67, "context_length": 64, "chunk_size": 16}
    return preset("drawn", "6k", **fields | changes)
