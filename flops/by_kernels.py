"""As activations.py, where the kernels run (arch/ops/triton): by themselves on a GPU of compute capability 8.0 or more.

What a kernel's gradient reads is kept in the activations' dtype: its inputs as they came, `a` bytes a number, and what
it cannot form again soon enough, states before chunks of 64 rows (32 in fp32) or pieces. Norms keep the sum they read,
gates their logits. LayerNorm, heads wider than 256 channels, convolutions of more than 4 taps and Tpe's learned poles
have no kernel: their lines are those of activations.py. Segments and chunks are those of arch/kernel_config.py that ask
neither for the GPU nor for its assembler, so that all GPUs keep the same.

Names as in activations.py; B the sequences of a micro-batch, by which some of the rules go. What the functions give is
for one sequence.
"""

from __future__ import annotations

import math

from arch.architectures.hgrn1.shape import inner_width, numbers_a_gate, state_size
from arch.config import ModelConfig
from arch.kernel_config import SELECTIVE_SCAN, WIDEST_HEAD, decay_config, decay_segments, gated_chunk, scan_states

from . import activations
from .activations import Bytes, F

TAPS = 4  # of their convolution
LOSS_ROWS = 8192  # tokens whose logits are there at a time


def padded(width: int) -> int:
    """A head's channels as the kernels take them: a power of two, at least 16."""
    return max(16, activations.power_of_two(width))


def stream(cfg: ModelConfig, a: int) -> float:
    """Bytes of a number of the residual stream."""
    return F if cfg.residual_dtype == "fp32" else a


def norm(cfg: ModelConfig, width: int, size: float) -> float:
    """A norm, by token: its input, of `size` bytes a number."""
    return activations.norm(cfg, width) if cfg.norm == "layer" else size * width


def channel(cfg: ModelConfig, a: int) -> float:
    """The gated linear unit, by token: x, up, gate and their product."""
    return a * (cfg.d_model + 3 * cfg.d_ffn)


def llama(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """What PyTorch's attention keeps; nothing of the rotation."""
    return activations.llama(cfg, T, a)


def chunks_of(T: int, a: int) -> tuple[int, int]:
    """Rows of a chunk, and how many chunks."""
    rows = gated_chunk(a == F)  # the other operations' are the same
    return rows, -(-T // rows)


def _decay(cfg: ModelConfig, T: int, a: int, B: int, keys: int, values: int, decays: bool) -> Bytes:
    """decay_attention without angles, heads of `keys` and `values` channels (powers of two), but for its operands: what
    each of several segments adds to the state, and a table of three decays a row."""
    rows, count = chunks_of(T, a)
    cut = decay_segments(decay_config(keys, values, a == F), B * cfg.n_heads, values, count)
    return {
        "mixer.states": F * cfg.n_heads * cut * (keys * values + 1) if cut > 1 else 0.0,
        "mixer.decays": 3 * F * cfg.n_heads * count * rows if decays else 0.0,
    }


def _gated_output(cfg: ModelConfig, T: int, a: int) -> Bytes:
    """TNL's and cosFormer2's: x, its low-rank projection, the gate's logits, o and what is made of them (LayerNorm:
    sigmoid and Norm(o) apart)."""
    d = cfg.d_model
    wide = 4 if cfg.norm == "layer" else 3
    return {"mixer.norm": T * norm(cfg, d, a), "mixer.projections": a * T * (wide * d + int(cfg.gate_rank or 0))}


def tnl(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """q, k (and v with value_activation) before their silu, and behind it as operands; the output gate. Kernels take
    q and k before it, with their heads filled up."""
    p = padded(cfg.head_dim)
    if p > WIDEST_HEAD:
        return activations.tnl(cfg, T, a) | _gated_output(cfg, T, a)
    return _decay(cfg, T, a, B, p, p, True) | _gated_output(cfg, T, a) | {
        "mixer.activation": a * T * (2 * cfg.n_heads * p + (cfg.d_model if cfg.value_activation else 0)),
        "mixer.core": 3 * a * T * cfg.n_heads * p,
    }  # fmt: skip


def cosformer2(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """As TNL; with lrpe="full" the kernels turn q and k themselves and keep the states before the chunks (Hopper's own,
    of heads of 128, do not: this is the most that a GPU keeps), with "half" q and k are turned before, in fp32, which
    is kept where theta is learned."""
    p, h, d = cfg.head_dim, cfg.n_heads, cfg.d_model
    full = cfg.lrpe == "full"
    keys, values = padded(p if full else p + p // 2), padded(p)
    if (2 * p if full else p + p // 2) > WIDEST_HEAD:
        return activations.cosformer2(cfg, T, a) | _gated_output(cfg, T, a)
    lines = _gated_output(cfg, T, a)
    lines["mixer.activation"] = a * T * (2 * (h * keys if full else d) + (d if cfg.value_activation else 0))
    lines["mixer.core"] = a * T * h * (2 * keys + values)
    if full:
        return lines | {"mixer.states": 2 * a * h * chunks_of(T, a)[1] * keys * values}
    lines["mixer.turned"] = 2 * F * T * d if cfg.theta_learned else 0.0
    return lines | _decay(cfg, T, a, B, keys, values, False)


def hgrn2(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """q before its silu, the gates' logits, v (and k) as operands, q and k with their decays; links, states and scores
    of the chunks; o and Norm(o)."""
    d, h, p = cfg.d_model, cfg.n_heads, padded(cfg.head_dim)
    lines = {"mixer.norm": T * norm(cfg, d, a), "mixer.projections": 2 * a * T * d}
    if p > WIDEST_HEAD:
        return activations.hgrn2(cfg, T, a) | {"mixer.norm": lines["mixer.norm"]}
    own, filled = cfg.input_gate == "own", p != cfg.head_dim
    # what replaces q or k by ones has the stream's dtype, and all operands the widest one
    wide = F if stream(cfg, a) == F and (not cfg.output_gate or cfg.input_gate == "none") else a
    rows, count = chunks_of(T, int(wide))
    lines["mixer.projections"] += a * T * d if own and (filled or wide > a) else 0.0  # its sigmoid
    constant = cfg.lower_bound == "only"  # log f of one token, copied to all only where heads are filled up
    gates = (F if constant else a) * T * h * p if filled or not constant else 0.0
    return lines | {
        "mixer.gates": gates,
        "mixer.core": wide * T * h * p * (4 + (cfg.input_gate != "tied")),
        "mixer.links": 3 * F * h * count * p,
        "mixer.states": wide * h * count * p * p,
        "mixer.scores": wide * h * count * rows * rows,
    }


def hgrn1(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """c before silu, c, the gates' logits, the states before the pieces, h and the output gate's logits, Norm's input
    and output; angles that depend on the token. A gate that is not 1 - lam of learned gates multiplies c before the
    scan, in fp32, with all that activations.py tells of such gates."""
    gates, size = cfg.forget_dim, state_size(cfg)
    plain, x = activations.hgrn1(cfg, T, a), stream(cfg, a)
    own, constant = cfg.input_gate == "own", cfg.lower_bound == "only"
    lines = {"mixer.norm": T * norm(cfg, inner_width(cfg), x), "mixer.projections": plain["mixer.projections"]}
    lines["mixer.activation"] = T * (a * size + ((x + a) * size if cfg.output_gate else 0.0))
    lines["mixer.states"] = F * scan_states(T, B, cfg.forget_dim, numbers_a_gate(cfg)) * size
    lines["mixer.angles"] = F * T * cfg.d_model if cfg.data_dependent_theta else 0.0
    if cfg.input_gate == "tied" and not constant:
        return lines | {"mixer.core": a * T * (gates + size)}
    lines["mixer.gates"] = T * (activations.forget(cfg, gates) + (a * gates if own and a < F else 0.0))
    inputs = 0 if cfg.input_gate == "none" else size
    return lines | {"mixer.core": F * T * ((0 if constant else gates) + gates + inputs + size)}


def _conv(cfg: ModelConfig, T: int, a: int, channels: int) -> float:
    """The short convolution's result; its input is a part of what the projection gives."""
    return a * T * channels if cfg.conv_width <= TAPS else activations.conv(cfg, T, a, channels)


def mamba2(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """x; all that the input projection gives; the convolution's result, of which v, B and C are parts; step sizes and
    decays; dt v, o, their gated sum, its norm."""
    i, s, h = cfg.inner_dim, int(cfg.ssm_state or 0), cfg.n_heads
    lines = {
        "mixer.norm": T * norm(cfg, i, a),
        "mixer.projections": a * T * (cfg.d_model + 2 * i + 2 * s + h + i),
        "mixer.conv": _conv(cfg, T, a, i + 2 * s),
        "mixer.activation": a * T * i,
    }
    keys, values = padded(s), padded(i // h)
    if max(keys, values) > WIDEST_HEAD:
        return activations.mamba2(cfg, T, a) | lines
    filled = 2 * keys if keys != s else 0
    return lines | _decay(cfg, T, a, B, keys, values, True) | {
        "mixer.steps": 2 * F * T * h,
        "mixer.core": a * T * (h * values + filled),
    }  # fmt: skip


def mamba1(cfg: ModelConfig, T: int, a: int, B: int) -> Bytes:
    """x; what the input and the selecting projection give; the convolution's result; dt before and behind softplus; a
    state for each 16 tokens; o and the gated sum."""
    i, s, rank = cfg.inner_dim, int(cfg.ssm_state or 0), int(cfg.dt_rank or 0)
    return {
        "mixer.projections": a * T * (cfg.d_model + 2 * i + rank + 2 * s + i),
        "mixer.conv": _conv(cfg, T, a, i),
        "mixer.steps": T * i * (a + F),
        "mixer.core": a * T * i,
        "mixer.states": F * math.ceil(T / (SELECTIVE_SCAN.rows * SELECTIVE_SCAN.stored)) * i * s,
    }


def filters(cfg: ModelConfig) -> bool:
    """Whether Tpe has a kernel, which keeps its input alone."""
    return not cfg.tpe_learned_decay and int(cfg.tpe_dim or 0) <= WIDEST_HEAD


def loss(cfg: ModelConfig, tokens: float, a: int) -> Bytes:
    """Of all sequences: the loss goes by groups of rows, whose logits its gradient overwrites, the next group's beside
    the last's; it makes the gradients of the hidden states and, in fp32, of the head, in the forward pass."""
    head, width, x = float(cfg.vocab_size * cfg.d_model), tokens * cfg.d_model, stream(cfg, a)
    return {
        "logits": a * min(tokens, 2.0 * LOSS_ROWS) * cfg.vocab_size,
        "loss": (x + (a if x != a else 0)) * width + (a * head if a < F else 0.0),
        "loss_gradients": a * width + F * head,
    }


def temporaries(cfg: ModelConfig, tokens: float, a: int) -> float:
    """The most that a layer's backward pass holds beside what it reads: gradients of the gated linear unit's inputs;
    Mamba: of what the scan reads, of each head or block of channels by itself, fp32, and the states it goes through."""
    i, s, h = cfg.inner_dim, int(cfg.ssm_state or 0), cfg.n_heads
    if cfg.arch == "mamba1":
        return tokens * ((2 * a + F) * i + 2 * F * s * math.ceil(i / 32))
    if cfg.arch == "mamba2":
        return tokens * (3 * a * i + 2 * F * h * s + a * i * s / chunks_of(1, a)[0])
    return tokens * 2 * a * cfg.d_ffn


def cached_weights(cfg: ModelConfig, matrices: dict[str, int]) -> int:
    """Weights of a layer's `matrices` that linear.py does not hold: autocast keeps copies to the forward's end."""
    cheap = cfg.arch == "hgrn1" and cfg.expansion not in ("none", "naive")
    names = {"hgrn1": ("mixer.o",), "mamba1": ("mixer.select", "mixer.step")}.get(cfg.arch, ())
    return sum(size for name, size in matrices.items() if name in names or (cheap and name.startswith("mixer.")))


def rotation(cfg: ModelConfig, T: int) -> float:
    """As in activations.py; kernels that turn q and k themselves read the positions, 4 bytes each."""
    full = cfg.arch == "cosformer2" and cfg.lrpe == "full" and 2 * cfg.head_dim <= WIDEST_HEAD
    return 4.0 * T if full else activations.rotation(cfg, T)


MIXERS = {
    "llama": llama,
    "tnl": tnl,
    "hgrn2": hgrn2,
    "cosformer2": cosformer2,
    "hgrn1": hgrn1,
    "mamba2": mamba2,
    "mamba1": mamba1,
}
