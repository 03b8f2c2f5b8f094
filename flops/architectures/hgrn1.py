"""The costs of HGRN1: an element-wise recurrence, its gates projected densely or by an expansion. Imports no torch."""

from __future__ import annotations

from arch.architectures.hgrn1.shape import (
    factors,
    forget_gates,
    inner_width,
    lower_bounds,
    matrix_size,
    numbers_a_gate,
    projections,
    state_size,
)
from arch.config import ModelConfig
from arch.kernel_config import scan_states

from .. import by_kernels as kernels
from ..activations import F, norm
from ..entry import Entry, Lines, Memory, Times, norm_size
from ..hgrn_gates import forget, lower_bound

# what the counts call the projections
NAMES = {"forget": "f", "input": "i", "gate": "g", "input_gate": "ig", "angle": "angle"}


def projected(cfg: ModelConfig) -> dict[str, int]:
    """Widths of the projections of x."""
    widths = projections(cfg)
    return {short: widths[name] for name, short in NAMES.items() if name in widths}


def matrices(cfg: ModelConfig) -> dict[str, int]:
    """Dense ones are [d, width]; those of an expansion are the matrices of HGRN2's table 2."""
    sizes = {f"mixer.{name}": matrix_size(cfg, width) for name, width in projected(cfg).items()}
    return sizes | {"mixer.o": inner_width(cfg) * cfg.d_model}


def vectors(cfg: ModelConfig) -> dict[str, int]:
    """With what an expansion has beside matrices of 2 FLOP an entry."""
    return {f"mixer.{name}.factors": factors(cfg) for name in projected(cfg)} | {
        "mixer.norm": norm_size(cfg, inner_width(cfg)),
        "mixer.theta": cfg.d_model if cfg.options.hgrn1_state == "complex" else 0,
    }


def core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The recurrence is element-wise, O(d) a token, and counts as no matrix product; with GLTI each
    projection mixes the n copies of each channel, 2 n n d a token."""
    if cfg.options.expansion != "glti":
        return {}
    return {"mixer.interact": 2.0 * len(projected(cfg)) * cfg.options.expand_ratio**2 * cfg.d_model * context}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """The gates; log lam (unless the same at all tokens), the input gate and h; c in fp32 where a gate is learned; c
    before silu; h and the output gate's sigmoid; Norm's input; angles that depend on the token. In fp32 casts are no
    copies: the own input gate is its sigmoid, and h, unless in pairs, is what the output gate or the norm keeps too."""
    d, n, gates, size = cfg.d_model, cfg.options.expand_ratio, forget_gates(cfg), state_size(cfg)
    wide, own = a < F, cfg.options.input_gate == "own"
    log_decays = gates if cfg.options.gates_forget else 0
    inputs = 0 if cfg.options.input_gate == "none" else size
    reads_h = cfg.options.output_gate or cfg.options.expansion == "none"
    shared = size if not wide and numbers_a_gate(cfg) == 1 and reads_h else 0
    names = 1 + cfg.options.gates_forget + cfg.options.output_gate + own  # projections
    between = {"lr": max(1, round(d / (n + 1))), "kp": d, "glti": n * d}.get(cfg.options.expansion, 0) * names
    return {
        "mixer.norm": T * norm(cfg, inner_width(cfg)),
        "mixer.projections": a * T * (d + inner_width(cfg) + between),
        "mixer.activation": a * T * (size * (3 if cfg.options.output_gate else 1) + (gates if own and wide else 0)),
        "mixer.gates": T * (forget(cfg, gates, True) + (F * d if cfg.options.data_dependent_theta else 0.0)),
        "mixer.core": F * T * (log_decays + gates + inputs + size - shared),
    }


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """c before silu, c, the gates' logits, the states before the pieces, h and the output gate's logits, Norm's input
    and output; angles that depend on the token. A gate that is not 1 - lam of learned gates multiplies c before the
    scan, in fp32, with all that activations.py counts for such gates."""
    gates, size = forget_gates(cfg), state_size(cfg)
    plain, x = activations(cfg, T, a), kernels.stream(cfg, a)
    own, constant = cfg.options.input_gate == "own", not cfg.options.gates_forget
    lines = {"mixer.norm": T * kernels.norm(cfg, inner_width(cfg), x), "mixer.projections": plain["mixer.projections"]}
    lines["mixer.activation"] = T * (a * size + ((x + a) * size if cfg.options.output_gate else 0.0))
    lines["mixer.states"] = F * scan_states(T, B, forget_gates(cfg), numbers_a_gate(cfg)) * size
    lines["mixer.angles"] = F * T * cfg.d_model if cfg.options.data_dependent_theta else 0.0
    if cfg.options.input_gate == "tied" and not constant:
        return lines | {"mixer.core": a * T * (gates + size)}
    lines["mixer.gates"] = T * (forget(cfg, gates, True) + (a * gates if own and a < F else 0.0))
    inputs = 0 if cfg.options.input_gate == "none" else size
    return lines | {"mixer.core": F * T * ((0 if constant else gates) + gates + inputs + size)}


def autocast_copies(cfg: ModelConfig) -> tuple[str, ...]:
    """All that do not go through the fused linear function (arch/ops/fused/linear.py)."""
    cheap = cfg.options.expansion not in ("none", "naive")
    return tuple(name for name in matrices(cfg) if name != "mixer.o") if cheap else ()


ENTRY = Entry(
    matrices=matrices,
    vectors=vectors,
    core=core,
    once=lambda cfg: lower_bound(cfg, lower_bounds(cfg)),
    once_fp32=lambda cfg: sum(lower_bound(cfg, lower_bounds(cfg)).values()),
    rounded=lambda cfg: len(projected(cfg)) * factors(cfg),  # they are matrices, of expansions
    state=lambda cfg, n: {"state": state_size(cfg)},
    memory=Memory(activations, by_kernels, autocast_copies=autocast_copies),
    times=Times(host_ms=None, replayed=None, core=(4.3, 1.3, 2.6, 0.44)),
)
