"""The costs of the vanilla Transformer: softmax attention, an MLP of two matrices. Imports no torch."""

from __future__ import annotations

from ..entry import Entry, Memory, square
from . import llama

ENTRY = Entry(
    matrices=lambda cfg: square(cfg, "q", "k", "v", "o"),
    core=llama.core,
    gated_mlp=False,
    state=lambda cfg, n: {"cache": 2 * n * cfg.d_model},
    memory=Memory(llama.activations, mlp_tensors=1, temporaries=lambda cfg, tokens, a: tokens * a * cfg.d_ffn),
)
