"""The widths of HGRN1's four forms and the parameters of its projections. Imports no torch.

    form      numbers of a state            forget gates    input and output gate    W_o
    complex   2 d, pairs, rotated           d               2 d                      [2 d, d]
    real      2 d, pairs                    d               2 d                      [2 d, d]
    real_2d   2 d                           2 d             2 d                      [2 d, d]
    narrow    n d                           n d             n d                      [d, d]

Numbers of a pair share a forget gate. n is `expand_ratio`, 1 without an expansion; the n states of a channel are summed
before W_o. `complex` and `real` are the rows of 46.25 M and 46.24 M in HGRN2's table 1, `real_2d` that of 47.82 M
(NOTES.md); expansions (its table 2) are of narrow states.
"""

from __future__ import annotations

from ...config import ModelConfig


def numbers_a_gate(cfg: ModelConfig) -> int:
    """Real numbers of the state that one forget gate keeps."""
    return 2 if cfg.hgrn1_state in ("complex", "real") else 1


def state_size(cfg: ModelConfig) -> int:
    """Real numbers of one layer's state."""
    return numbers_a_gate(cfg) * cfg.forget_dim


def inner_width(cfg: ModelConfig) -> int:
    """Width of the norm and of what W_o reads."""
    return state_size(cfg) // cfg.expand_ratio


def projections(cfg: ModelConfig) -> dict[str, int]:
    """Output widths of the projections of x [.., d] that there are, by the names that the mixer gives them."""
    widths = {
        "input": state_size(cfg),
        "forget": 0 if cfg.lower_bound == "only" else cfg.forget_dim,
        "gate": state_size(cfg) if cfg.output_gate else 0,
        "input_gate": cfg.forget_dim if cfg.input_gate == "own" else 0,
        "angle": cfg.d_model if cfg.data_dependent_theta else 0,
    }
    return {name: width for name, width in widths.items() if width}


def matrix_size(cfg: ModelConfig, width: int) -> int:
    """Entries of the matrices of a projection from d to `width`: d x width, or HGRN2's table 2."""
    d, n = cfg.d_model, cfg.expand_ratio
    cheap = {"lr": d * max(1, round(d / (n + 1))) * (n + 1), "glt": d * d, "glti": d * d, "krp": 0, "kp": d * d}
    return cheap.get(cfg.expansion, d * width)


def factors(cfg: ModelConfig) -> int:
    """What a projection of an expansion has beside matrices of 2 FLOP an entry: GLTI's n^2, KRP's n d, KP's n."""
    d, n = cfg.d_model, cfg.expand_ratio
    return {"glti": n * n, "krp": n * d, "kp": n}.get(cfg.expansion, 0)


def mixer_size(cfg: ModelConfig) -> int:
    """Parameters of one layer's projections and W_o: 7 d^2 (complex, real), 8 d^2 (real_2d), 4 d^2 (narrow) with all
    gates and no expansion."""
    sizes = (matrix_size(cfg, width) + factors(cfg) for width in projections(cfg).values())
    return sum(sizes) + inner_width(cfg) * cfg.d_model
