"""Bytes that autograd keeps of one layer from the forward to the backward pass, for one sequence. Imports no torch.

Derived from the modules in arch/ and the PyTorch forms of arch/ops, as torch.autograd.graph.saved_tensors_hooks shows
them: a tensor that several operations save counts once, views of it not at all. `a` is the bytes of an activation: 4,
or 2 under bf16 autocast; norms, gates, decays and everything inside the sequence operations are fp32 (F = 4) even then.
What does not grow with the tokens (vectors, masks of one chunk) is left out. README.md has the table.

Names: d width, h heads, p = d/h, T tokens, C chunk, N states, w tensors as wide as the residual stream.
"""

from __future__ import annotations

import math

from arch.config import ModelConfig

from .cores import chunks, power_of_two

Bytes = dict[str, float]
F = 4.0


def norm(cfg: ModelConfig, width: int) -> float:
    """A norm, by token: its input in fp32, 1 / rms, and with a weight the output before it. (LayerNorm: mean, 1 / std.)
    Under autocast the input is a copy of its own; in fp32 it is the stream itself, kept here and nowhere else."""
    return {"srms": F * width + F, "rms": 2 * F * width + F, "layer": F * width + 2 * F}[str(cfg.norm)]


def mlp(cfg: ModelConfig, a: int, tensors: int) -> float:
    """The MLP, by token: x, and `tensors` of d_ffn: up, gate and their product (with an activation its result too)."""
    return a * (cfg.d_model + tensors * cfg.d_ffn)


def unread_rows(parts: list[tuple[int, int]]) -> int:
    """Rows of a single last chunk: no gradient needs its update, so that k decayed to its end is not kept."""
    rows, count = parts[-1]
    return rows if count == 1 else 0


def chunked(cfg: ModelConfig, T: int, keys: int, values: int, learned: bool) -> Bytes:
    """decay_attention, fp32: q, k and both decayed (`keys` wide, all heads), v (`values`); the scores of a chunk's rows
    with each other; the states before the chunks. Decays that are learned keep the undecayed scores and the decays
    between rows, and each state but the last once more as it is carried on."""
    parts = chunks(T, cfg.chunk_size)
    scores = sum(rows * rows * count for rows, count in parts) * cfg.n_heads
    states, state = sum(count for _, count in parts), keys * values / cfg.n_heads
    return {
        "mixer.core": F * (T * (4 * keys + values) - unread_rows(parts) * keys),
        "mixer.scores": F * scores * (3 if learned else 1),
        "mixer.states": F * state * (2 * states - 1 if learned else states),
    }


def gated_chunks(cfg: ModelConfig, T: int, keys: int, values: int) -> Bytes:
    """gated_attention, fp32: q, k, the gates from and to the chunk's ends, both decayed (`keys` wide, all heads), v
    (`values`); of each of the log2(C) levels the two decayed halves and their decays; scores, and states twice, as
    their decays are learned."""
    parts = [(power_of_two(rows), count) for rows, count in chunks(T, cfg.chunk_size)]
    rows, states = sum(r * count for r, count in parts), sum(count for _, count in parts)
    return {
        "mixer.core": F * (rows * (6 * keys + values) - unread_rows(parts) * keys),
        "mixer.levels": 2 * F * keys * sum(r * count * math.log2(r) for r, count in parts),
        "mixer.scores": F * sum(r * r * count for r, count in parts) * cfg.n_heads,
        "mixer.states": F * (2 * states - 1) * keys * values / cfg.n_heads,
    }


def gated_output(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """Of an output gate of low rank: x, its low-rank projection, sigmoid, Norm(o) and their product."""
    d = cfg.d_model
    return {"mixer.norm": T * norm(cfg, d), "mixer.projections": a * T * (2 * d + int(cfg.options.gate_rank) + 2 * d)}


def gated_heads(cfg: ModelConfig, T: int, a: int, values: int) -> Bytes:
    """Of a norm of each head and an output gate with silu, all heads' `values` wide: x; the gate before and behind
    silu, Norm(o) and their product."""
    return {
        "mixer.norm": T * cfg.n_heads * norm(cfg, values // cfg.n_heads),
        "mixer.projections": a * T * (cfg.d_model + values),
        "mixer.activation": 3.0 * a * T * values,
    }
