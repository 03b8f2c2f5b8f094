"""Bytes that autograd keeps of one layer from the forward to the backward pass, for one sequence. Imports no torch.

Derived from the modules in arch/ and the PyTorch forms of arch/ops, as torch.autograd.graph.saved_tensors_hooks shows
them: a tensor that several operations save counts once, views of it not at all. `a` is the bytes of an activation: 4,
or 2 under bf16 autocast; norms, gates, decays and everything inside the sequence operations are fp32 (F = 4) even then.
What does not grow with the tokens (vectors, masks of one chunk) is left out. README.md has the table.

Names: d width, h heads, p = d/h, T tokens, C chunk, N states, w tensors as wide as the residual stream.
"""

from __future__ import annotations

import math

from arch.architectures.hgrn1.shape import inner_width, numbers_a_gate, state_size
from arch.config import ModelConfig

from .cores import chunks, power_of_two

Bytes = dict[str, float]
F = 4.0


def norm(cfg: ModelConfig, width: int) -> float:
    """A norm, by token: its input in fp32, 1 / rms, and with a weight the output before it. (LayerNorm: mean, 1 / std.)
    Under autocast the input is a copy of its own; in fp32 it is the stream itself, kept here and nowhere else."""
    return {"srms": F * width + F, "rms": 2 * F * width + F, "layer": F * width + 2 * F}[str(cfg.norm)]


def channel(cfg: ModelConfig, a: int) -> float:
    """The gated linear unit, by token: x, up, gate and their product (LLaMA: silu(gate) too)."""
    return a * (cfg.d_model + (4 if cfg.arch == "llama" else 3) * cfg.d_ffn)


def llama(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """x; rotated q and k, v, the output and the log-sum of each row."""
    return {
        "mixer.projections": a * T * cfg.d_model,
        "mixer.core": T * (4 * a * cfg.d_model + F * cfg.n_heads),
    }


def unread_rows(parts: list[tuple[int, int]]) -> int:
    """Rows of a single last chunk: no gradient needs its update, so that k decayed to its end is not kept."""
    rows, count = parts[-1]
    return rows if count == 1 else 0


def _chunked(cfg: ModelConfig, T: int, keys: int, values: int, learned: bool) -> Bytes:
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


def _gated_output(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """TNL's and cosFormer2's: x, its low-rank projection, sigmoid, Norm(o) and their product."""
    d = cfg.d_model
    return {"mixer.norm": T * norm(cfg, d), "mixer.projections": a * T * (2 * d + int(cfg.gate_rank or 0) + 2 * d)}


def tnl(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """q, k (and v with value_activation) before their silu; the chunk form; the output gate."""
    d, before = cfg.d_model, 3 if cfg.value_activation else 2
    return _chunked(cfg, T, d, d, False) | _gated_output(cfg, T, a) | {"mixer.activation": a * T * before * d}


def cosformer2(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """As TNL with wider keys; where theta is learned, q's and k's turning channels in fp32 before they turn."""
    d, half = cfg.d_model, cfg.head_dim // 2 * cfg.n_heads
    turning = d if cfg.lrpe == "full" else half
    keys = d + turning
    lines = _chunked(cfg, T, keys, d, False) | _gated_output(cfg, T, a)
    lines["mixer.activation"] = a * T * (3 if cfg.value_activation else 2) * d
    if cfg.theta_learned:
        lines["mixer.turned"] = 2 * F * T * d
    return lines


def forget(cfg: ModelConfig, width: int) -> float:
    """f and 1 - f, by token: two sigmoids, the arguments of log, log1p and logsigmoid, and a mask (on a CPU logsigmoid
    keeps a second tensor); where f is the same at all tokens 1 - f alone (HGRN2: if the input gate reads it)."""
    if cfg.lower_bound == "only":
        return F * width if cfg.input_gate == "tied" or cfg.arch == "hgrn1" else 0.0
    return 5 * F * width + width


def hgrn2(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """q before silu; the gates; q, k, the gates from and to the chunk's ends, both decayed, v; of each of the log2(C)
    levels the two decayed halves and their decays; scores, and states twice, as their decays are learned."""
    d, h, p = cfg.d_model, cfg.n_heads, cfg.head_dim
    parts = [(power_of_two(rows), count) for rows, count in chunks(T, cfg.chunk_size)]
    rows = sum(r * count for r, count in parts)
    levels = sum(r * count * math.log2(r) for r, count in parts)
    own = a * T * d if cfg.input_gate == "own" else 0.0
    return {
        "mixer.norm": T * norm(cfg, d),
        "mixer.projections": 2 * a * T * d + own,
        "mixer.activation": a * T * d if cfg.output_gate else 0.0,
        "mixer.gates": T * forget(cfg, d),
        "mixer.core": F * (rows * 7 - unread_rows(parts)) * d,
        "mixer.levels": 2 * F * levels * d,
        "mixer.scores": F * sum(r * r * count for r, count in parts) * h,
        "mixer.states": F * (2 * sum(count for _, count in parts) - 1) * p * d,
    }


def hgrn1(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """The gates; log lam (unless the same at all tokens), the input gate and h; c in fp32 where a gate is learned; c
    before silu; h and the output gate's sigmoid; Norm's input; angles that depend on the token. In fp32 casts are no
    copies: the own input gate is its sigmoid, and h, unless in pairs, is what the output gate or the norm keeps too."""
    d, n, gates, size = cfg.d_model, cfg.expand_ratio, cfg.forget_dim, state_size(cfg)
    wide, own = a < F, cfg.input_gate == "own"
    log_decays = 0 if cfg.lower_bound == "only" else gates
    inputs = 0 if cfg.input_gate == "none" else size
    reads_h = cfg.output_gate or cfg.expansion == "none"
    shared = size if not wide and numbers_a_gate(cfg) == 1 and reads_h else 0
    names = 1 + (cfg.lower_bound != "only") + cfg.output_gate + own  # projections
    between = {"lr": max(1, round(d / (n + 1))), "kp": d, "glti": n * d}.get(cfg.expansion, 0) * names
    return {
        "mixer.norm": T * norm(cfg, inner_width(cfg)),
        "mixer.projections": a * T * (d + inner_width(cfg) + between),
        "mixer.activation": a * T * (size * (3 if cfg.output_gate else 1) + (gates if own and wide else 0)),
        "mixer.gates": T * (forget(cfg, gates) + (F * d if cfg.data_dependent_theta else 0.0)),
        "mixer.core": F * T * (log_decays + gates + inputs + size - shared),
    }


def conv(cfg: ModelConfig, T: int, a: int, channels: int) -> float:
    """The short convolution: its input in fp32 with the steps before it, the sum before silu, and silu's result."""
    return F * channels * (T + cfg.conv_width - 1) + 2 * a * T * channels


def mamba2(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """x; all that the input projection gives; the convolution; step sizes and decays; the chunk form with B and C for
    each head; o, silu(z), and Norm's input and output."""
    i, s, h = cfg.inner_dim, int(cfg.ssm_state or 0), cfg.n_heads
    return _chunked(cfg, T, h * s, i, True) | {
        "mixer.norm": T * norm(cfg, i),
        "mixer.projections": a * T * (cfg.d_model + 2 * i + 2 * s + h + i),
        "mixer.conv": conv(cfg, T, a, i + 2 * s),
        "mixer.steps": 5 * F * T * h,
        "mixer.activation": T * i * (F + a),
    }


def mamba1(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """x; what the input and the selecting projection give; the convolution; softplus's input, dt, B and C, the scan's
    input and output in fp32; a state for each 16 tokens; silu(z) and the gated output."""
    i, s, rank = cfg.inner_dim, int(cfg.ssm_state or 0), int(cfg.dt_rank or 0)
    copies = (i + 2 * s) * F if a < F else 0.0  # of what is fp32 already there is no copy
    return {
        "mixer.projections": a * T * (cfg.d_model + 2 * i + rank + 2 * s + i),
        "mixer.conv": conv(cfg, T, a, i),
        "mixer.core": T * (3 * F * i + copies),
        "mixer.states": F * math.ceil(T / 16) * i * s,
        "mixer.activation": a * T * i,
    }


def rotation(cfg: ModelConfig, T: int) -> float:
    """Of a layer and shared by the sequences of a batch: cos and sin of all positions, cosFormer2's, of its own angles,
    which are kept in fp64 with the positions too where they are learned. LLaMA's layers share theirs: `rotary`."""
    if cfg.arch == "cosformer2":
        angles = cfg.d_model if cfg.lrpe == "full" else cfg.head_dim // 2
        return T * (angles * 2 * F + ((angles + 1) * 2 * F if cfg.theta_learned else 0.0))
    return 0.0


def rotary(cfg: ModelConfig, T: int) -> float:
    """LLaMA's cos and sin of p/2 angles at all positions, once a model."""
    return F * T * cfg.head_dim if cfg.arch == "llama" else 0.0


def tpe(cfg: ModelConfig, T: int, sequences: int) -> float:
    """Of cosFormer2's Tpe, once a model: its input, the updates and the states before the chunks, in fp32. Where a
    shorter chunk is left over, the rows of several sequences are copied to stand side by side."""
    parts = chunks(T, cfg.chunk_size)
    copied = parts[0][0] * parts[0][1] if len(parts) > 1 and sequences > 1 else 0
    states = 2 * sum(count for _, count in parts) - (unread_rows(parts) > 0)
    return F * cfg.d_model * (T + copied + states * int(cfg.tpe_dim or 0))


def toeplitz(cfg: ModelConfig, T: int) -> float:
    """Of Tpe, shared by the sequences of a batch: a kernel and its Toeplitz matrix for each channel, and the matrix's
    indices and mask."""
    sizes = [rows for rows, _ in chunks(T, cfg.chunk_size)]
    return sum(F * cfg.d_model * (rows * rows + rows) + 9.0 * rows * rows for rows in sizes)


MIXERS = {
    "llama": llama,
    "tnl": tnl,
    "hgrn2": hgrn2,
    "cosformer2": cosformer2,
    "hgrn1": hgrn1,
    "mamba2": mamba2,
    "mamba1": mamba1,
}
