"""Matrix products of the sequence operations: one layer's, forward, for one sequence of T tokens. Imports no torch.

FLOP counts are floats, two for each multiply-add, of the chunk forms in arch/ops, which the tests hold against torch's
FLOP counter. Names as in mixers.py.
"""

from __future__ import annotations

from arch.config import ModelConfig


def chunks(context: int, size: int) -> list[tuple[int, int]]:
    """(rows, how many) of the whole chunks of a sequence and of the shorter one left over, as arch/ops cuts it."""
    return [(rows, count) for rows, count in ((size, context // size), (context % size, 1)) if rows and count]


def softmax_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """q k^T and A v over the full T x T square: 4 T^2 d. Convention `exact` halves it (causal)."""
    return {"mixer.softmax": 4.0 * context * context * cfg.d_model}


def decay_core(cfg: ModelConfig, context: int, key_dim: int, value_dim: int | None = None) -> dict[str, float]:
    """decay_attention in chunks. A chunk of C rows and a head have, with keys k wide and values p wide (default: d/h):

    inside the chunk q k^T 2CCk and (q k^T) v 2CCp; through the state q S 2Ckp and k^T v 2Ckp.
    """
    k, p, inside, state = float(key_dim), float(value_dim or cfg.head_dim), 0.0, 0.0
    for rows, count in chunks(context, cfg.chunk_size):
        inside += cfg.n_heads * count * 2.0 * rows * rows * (k + p)
        state += cfg.n_heads * count * 4.0 * rows * k * p
    return {"mixer.inside": inside, "mixer.state": state}


def gated_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """gated_attention in chunks, the scores by halves; keys and values are p wide.

    The scores of a chunk of C rows come from blocks of m = 1, 2, 4 .. C/2 rows: at each level C/2m products of m late
    queries with m early keys, 2mmp each, so Cmp a level and C(C-1)p in all (the diagonal is an element-wise product).
    Then scores v 2CCp, q S 2Cpp and k^T v 2Cpp. A shorter last chunk is filled up to a power of two.
    """
    p, inside, state = float(cfg.head_dim), 0.0, 0.0
    for rows, count in chunks(context, cfg.chunk_size):
        rows = 1 << (rows - 1).bit_length()
        inside += cfg.n_heads * count * rows * (3.0 * rows - 1.0) * p
        state += cfg.n_heads * count * 4.0 * rows * p * p
    return {"mixer.inside": inside, "mixer.state": state}


def filter_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """causal_filter (TPE) in chunks of C rows: state read and update 2Cde each, inside a Toeplitz product 2CCd."""
    d, e = float(cfg.d_model), float(cfg.tpe_dim or 0)
    return {"tpe": sum(count * rows * d * (4.0 * e + 2.0 * rows) for rows, count in chunks(context, cfg.chunk_size))}


def filter_setup(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The Toeplitz kernel B [d, e] times the powers of the decays [e, C], once for each length of chunk: 2deC."""
    d, e = float(cfg.d_model), float(cfg.tpe_dim or 0)
    return {"tpe.kernel": sum(2.0 * d * e * rows for rows, _ in chunks(context, cfg.chunk_size))}


def selective_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """selective_scan in its own chunks of 16 rows: each row reads its states, 2 (2d) N. A shorter last chunk is filled
    up to a power of two."""
    rows = sum(count * (1 << (rows - 1).bit_length()) for rows, count in chunks(context, 16))
    return {"mixer.state": 2.0 * rows * cfg.inner_dim * int(cfg.ssm_state or 0)}


def interaction_core(cfg: ModelConfig, context: int, projections: int) -> dict[str, float]:
    """HGRN1 with GLTI: each of its projections mixes the n copies of each channel, 2 n n d a token."""
    return {"mixer.interact": 2.0 * projections * cfg.expand_ratio**2 * cfg.d_model * context}
