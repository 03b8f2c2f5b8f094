"""The widths of HGRN1's four forms and the parameters of its projections. Imports no torch.

    form      numbers of a state            forget gates    input and output gate    W_o
    complex   2 d, pairs, rotated           d               2 d                      [2 d, d]
    real      2 d, pairs                    d               2 d                      [2 d, d]
    real_2d   2 d                           2 d             2 d                      [2 d, d]
    narrow    n d                           n d             n d                      [d, d]

Numbers of a pair share a forget gate. n is `expand_ratio`, 1 without an expansion; the n states of a channel are summed
before W_o. `complex` and `real` are the rows of 46.25 M and 46.24 M in HGRN2's table 1, `real_2d` that of 47.82 M
(docs/research/hgrn2-tables.md); expansions (its table 2) are of narrow states.
"""

from __future__ import annotations

from typing import Any


def lower_bounds(cfg: Any) -> int:
    """Number of lower bounds of a layer's forget gates. cfg: d_model and options, here and below."""
    return cfg.d_model * (2 if cfg.options.hgrn1_state == "real_2d" else 1)


def forget_gates(cfg: Any) -> int:
    """Number of forget gates of a layer; the n states that an expansion makes of a channel have one bound."""
    return lower_bounds(cfg) * cfg.options.expand_ratio


def numbers_a_gate(cfg: Any) -> int:
    """Real numbers of the state that one forget gate keeps."""
    return 2 if cfg.options.hgrn1_state in ("complex", "real") else 1


def state_size(cfg: Any) -> int:
    """Real numbers of one layer's state."""
    return numbers_a_gate(cfg) * forget_gates(cfg)


def inner_width(cfg: Any) -> int:
    """Width of the norm and of what W_o reads."""
    return state_size(cfg) // cfg.options.expand_ratio


def projections(cfg: Any) -> dict[str, int]:
    """Output widths of the projections of x [.., d], by the mixer's names."""
    widths = {
        "input": state_size(cfg),
        "forget": forget_gates(cfg) if cfg.options.gates_forget else 0,
        "gate": state_size(cfg) if cfg.options.output_gate else 0,
        "input_gate": forget_gates(cfg) if cfg.options.input_gate == "own" else 0,
        "angle": cfg.d_model if cfg.options.data_dependent_theta else 0,
    }
    return {name: width for name, width in widths.items() if width}


def matrix_size(cfg: Any, width: int) -> int:
    """Entries of the matrices of a projection from d to `width`: d x width, or HGRN2's table 2."""
    d, n = cfg.d_model, cfg.options.expand_ratio
    cheap = {"lr": d * max(1, round(d / (n + 1))) * (n + 1), "glt": d * d, "glti": d * d, "krp": 0, "kp": d * d}
    return cheap.get(cfg.options.expansion, d * width)


def factors(cfg: Any) -> int:
    """Parameters of an expansion's projection outside of `matrix_size`: GLTI's n^2, KRP's n d, KP's n."""
    d, n = cfg.d_model, cfg.options.expand_ratio
    return {"glti": n * n, "krp": n * d, "kp": n}.get(cfg.options.expansion, 0)


def mixer_size(cfg: Any) -> int:
    """Parameters of one layer's projections and W_o: 7 d^2 (complex, real), 8 d^2 (real_2d), 4 d^2 (narrow) with all
    gates and no expansion."""
    sizes = (matrix_size(cfg, width) + factors(cfg) for width in projections(cfg).values())
    return sum(sizes) + inner_width(cfg) * cfg.d_model
