"""As activations.py, where the kernels run (arch/ops/triton): by themselves on a GPU of compute capability 8.0 or more.

What a kernel's gradient reads is kept in the activations' dtype: its inputs as they came, `a` bytes a number, and what
it cannot form again soon enough, states before chunks of 64 rows (32 in fp32) or pieces. Norms keep the sum they read,
gates their logits. LayerNorm, heads wider than 256 channels, convolutions of more than 4 taps and Tpe's learned poles
have no kernel: their lines are those of the plain form. Segments and chunks are those of arch/kernel_config.py that ask
neither for the GPU nor for its assembler, so that all GPUs keep the same; `training_memory` names what does not.

Names as in activations.py; B the sequences of a micro-batch, by which some of the rules go. What the functions give is
for one sequence.
"""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD, decay_config, decay_segments, gated_chunk, gated_config, loss_rows

from . import activations
from .activations import Bytes, F
from .cores import power_of_two


def padded(width: int) -> int:
    """A head's channels as the kernels take them: a power of two, at least 16."""
    return max(16, power_of_two(width))


def stream(cfg: ModelConfig, a: int) -> float:
    """Bytes of a number of the residual stream."""
    return F if cfg.residual_dtype == "fp32" else a


def norm(cfg: ModelConfig, width: int, size: float) -> float:
    """A norm, by token: its input, of `size` bytes a number."""
    return activations.norm(cfg, width) if cfg.norm == "layer" else size * width


def mlp(cfg: ModelConfig, a: int) -> float:
    """The MLP, by token: x, up, gate and their product."""
    return a * (cfg.d_model + 3 * cfg.d_ffn)


def chunks_of(T: int, a: int) -> tuple[int, int]:
    """Rows of a chunk, and how many chunks."""
    rows = gated_chunk(a == F)  # the other operations' are the same
    return rows, -(-T // rows)


def decay(cfg: ModelConfig, T: int, a: int, B: int, keys: int, values: int, decays: bool) -> Bytes:
    """decay_attention without angles, heads of `keys` and `values` channels (powers of two), but for its operands: what
    each of several segments adds to the state, and a table of three decays a row."""
    rows, count = chunks_of(T, a)
    cut = decay_segments(decay_config(keys, values, a == F), B * cfg.n_heads, values, count)
    return {
        "mixer.states": F * cfg.n_heads * cut * (keys * values + 1) if cut > 1 else 0.0,
        "mixer.decays": 3 * F * cfg.n_heads * count * rows if decays else 0.0,
    }


def gated(cfg: ModelConfig, T: int, size: float, keys: int, values: int) -> Bytes:
    """gated_attention of operands of `size` bytes a number, heads of `keys` and `values` channels (powers of two), but
    for its operands: inter-chunk decays, ways (int32), states and scores of the chunks."""
    h, (rows, count) = cfg.n_heads, chunks_of(T, int(size))
    return {
        "mixer.inter_chunk_decays": 3 * F * h * count * keys,
        "mixer.ways": 4 * h * count * (keys // gated_config(keys, values, size == F, hopper=True).operands_tile),
        "mixer.states": size * h * count * keys * values,
        "mixer.scores": size * h * count * rows * rows,
    }


def delta(cfg: ModelConfig, T: int, a: int, key_dim: int, value_dim: int, decays: str) -> Bytes:
    """gated_delta with decays by "head", by "channel" or "none": q and k, and v where it is filled up; of every chunk
    keys by the inverse and the rows written, scores by the inverse, the state before it; of decays by head four numbers
    a row, by channel q and k with their decays, the log-decays, and the chunk's decay."""
    rows, count = chunks_of(T, a)
    keys, values = padded(key_dim), padded(value_dim)
    filled = values if values != value_dim else 0
    each = a * cfg.n_heads
    by_channel = decays == "channel"
    numbers = {"head": 4 * count * rows, "channel": (T + count) * keys, "none": 0}[decays]
    return {
        "mixer.core": each * (T * ((4 if by_channel else 2) * keys + filled) + count * rows * (keys + values)),
        "mixer.scores": each * count * rows**2,
        "mixer.states": each * count * keys * values,
        "mixer.decays": F * cfg.n_heads * numbers,
    }


def gated_output(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """Of an output gate of low rank: x, its low-rank projection, the gate's logits, o and what is made of them
    (LayerNorm: sigmoid and Norm(o) apart)."""
    d = cfg.d_model
    wide = 4 if cfg.norm == "layer" else 3
    return {"mixer.norm": T * norm(cfg, d, a), "mixer.projections": a * T * (wide * d + int(cfg.options.gate_rank))}


def gated_heads(cfg: ModelConfig, T: int, a: int, values: int) -> Bytes:
    """Of a norm of each head and an output gate with silu: x, the gate's logits, Norm(o) and the product. LayerNorm of
    fp32 keeps o as the kernels give it, its heads filled up."""
    head, filled = values // cfg.n_heads, 0.0
    if cfg.norm == "layer" and a == F and padded(head) <= WIDEST_HEAD:
        filled = F * (padded(head) - head)
    return {
        "mixer.norm": T * cfg.n_heads * (norm(cfg, head, a) + filled),
        "mixer.projections": a * T * (cfg.d_model + values),
        "mixer.activation": 2.0 * a * T * values,
    }


def loss(cfg: ModelConfig, tokens: float, a: int) -> Bytes:
    """Of all sequences: the loss goes by groups of rows, whose logits its gradient overwrites, the next group's beside
    the last's; it makes the gradients of the hidden states and, in fp32, of the head, in the forward pass."""
    head, width, x = float(cfg.n_outputs * cfg.head_width), tokens * cfg.head_width, stream(cfg, a)
    return {
        "logits": a * min(tokens, 2.0 * loss_rows(cfg.n_outputs)) * cfg.n_outputs,
        "loss": (x + (a if x != a else 0)) * width + (a * head if a < F else 0.0),
        "loss_gradients": a * width + F * head,
    }
