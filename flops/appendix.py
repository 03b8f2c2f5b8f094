"""Appendix A.1 of the paper as data: training FLOP per token, each operation that it lists a named line. No torch.

Source: Scaling Laws for Linear Complexity Language Models (Shen et al. 2024), A.1.1 to A.1.4, whose operations stand
here one by one; sums are made from them, so that the printed algebra's slips cannot enter:

1. LLaMA's total lists 3 x every term but RoPE's 4nd: 12nd restored (its own g = 8d/3 line, 20nd, has it).
2. LLaMA's relative form ends in h/(8d^2): the term is nh/(8d^2), from 9n^2h.
3. cosFormer2's C adds 2nd where its operations (Lrpe 4nd, output update nd, gating nd) add 6nd.
4. So with B = t = e = d/h its C is 8nd^2 + 18nd^2/h + 9nd, printed 5nd, and its relative form 1 + 3/4h + 35/72d,
   printed 23/72d (which table 1 inherits).
5. The embedding is 12bndv in every total; 12ndv is printed for LLaMA, and in all the g = 8d/3 lines.
6. "Forward FLOPs" of TNL, HGRN2 and cosFormer2 are of one sequence; LLaMA's has b on its layers, not on 4ndv.
7. Section 2.3's C = 6N is for each token: C = 6ND.
HGRN2's 12dl, without b and n, is right: the softmax over layers is done once a step, whatever the batch.

Symbols: l layers, d width, h heads, n tokens, v vocabulary, and of the configuration g = d_ffn, t = gate rank, e = TPE
dimension; B = d/h, "in all scenarios". Factor 3 for forward and backward. The look-up of the input embedding counts as
the product of a one-hot matrix, 2ndv, which no code computes.
"""

from __future__ import annotations

from arch.config import ModelConfig

from .entry import Lines, summed
from .registry import entry_of


def qualified(name: str, assumption: str, holds: bool) -> str:
    """`name`, with the assumption that its value makes where the configuration does not share it: lines of equal names
    have equal values in all conventions."""
    return name if holds else f"{name}[{assumption}]"


def appendix_forward(cfg: ModelConfig, context_length: int) -> Lines:
    """Forward FLOP per token by operation, of an architecture whose entry has an `appendix`; what is spent once a step
    is divided among the tokens of one sequence."""
    d, v, parts = float(cfg.d_model), float(cfg.vocab_size), list[Lines]()
    for kind in cfg.kinds:
        entry = entry_of(kind.arch)
        assert entry.appendix is not None
        layers, g = kind.n_layers, float(kind.d_ffn)
        lines = {name: layers * flop for name, flop in entry.appendix(kind, context_length).items()}
        lines |= {f"ffn.{name}": layers * 2 * d * g for name in ("gate", "up", "down")} | {"ffn.gating": layers * g}
        parts += [lines, entry.appendix_once(kind, context_length, 1)]
    return summed(parts) | {"embedding": 2 * d * v, "head": 2 * d * v}


def paper_forward(cfg: ModelConfig, context_length: int) -> Lines:
    """Table 1 by operation: A.1 with g = 8d/3 and B = t = d/h, without embedding and head, LLaMA's softmax function,
    Tpe, HGRN2's lower bound, and (correction 3) cosFormer2's Lrpe. h is the configuration's head count (d/128 in the
    paper's models)."""
    return summed(_paper_layers(kind, context_length) for kind in cfg.kinds)


def _paper_layers(cfg: ModelConfig, context_length: int) -> Lines:
    """Of the layers of one kind."""
    entry = entry_of(cfg.arch)
    assert entry.appendix is not None
    d, p = float(cfg.d_model), float(cfg.head_dim)
    lines = {name: cfg.n_layers * flop for name, flop in entry.appendix(cfg, context_length).items()}
    for name in ("mixer.softmax.exp", "mixer.lrpe"):
        lines.pop(name, None)
    if "mixer.gate" in lines:
        del lines["mixer.gate"]
        lines[qualified("mixer.gate", "t=d/h", cfg.options.gate_rank == cfg.head_dim)] = cfg.n_layers * 4 * d * p
    fits = 3 * cfg.d_ffn == 8 * cfg.d_model
    for name in ("ffn.gate", "ffn.up", "ffn.down"):
        lines[qualified(name, "g=8d/3", fits)] = cfg.n_layers * 16 * d * d / 3
    return lines | {qualified("ffn.gating", "g=8d/3", fits): cfg.n_layers * 8 * d / 3}


def projections(cfg: ModelConfig, *names: str) -> Lines:
    return {f"mixer.{name}": 2.0 * cfg.d_model**2 for name in names}


def linear_attention(cfg: ModelConfig, parts: float) -> Lines:
    """Lightning attention and FLA, over n: 4Bd + Bh in a block (keys of `parts` d/h channels: 2(1 + parts)Bd), states
    read and updated 4d^2/h `parts`, their decay `parts` d^2/(Bh), the output's sum d; B = d/h."""
    d, p = float(cfg.d_model), float(cfg.head_dim)
    return {
        "mixer.inside[B=d/h]": 2 * (1 + parts) * p * d,
        "mixer.mask[B=d/h]": d,
        "mixer.state": 4 * parts * d * p,
        "mixer.state.decay[B=d/h]": parts * d,
        "mixer.add": d,
    }


def low_rank_gate_lines(cfg: ModelConfig) -> Lines:
    d = float(cfg.d_model)
    return {"mixer.gate": 4 * d * float(cfg.options.gate_rank), "mixer.gating": d}
