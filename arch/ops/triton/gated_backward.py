"""The gradients of one chunk of `gated_attention`: of values and scores, then of one tile of its keys each."""

from __future__ import annotations

import triton
import triton.language as tl

from .gated_kernels import REACH
from .tiles import (
    LOWEST,
    ONLY,
    TABLE,
    block_offsets,
    gates,
    inverse,
    load_rows,
    matrix,
    power,
    product,
    rounded,
    row_sums,
    sigmoids,
    store_rows,
    sums_after,
    sums_from_middle,
    sums_until,
)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_values(
    key, v, gate, bound, reset, table, d_out, d_states, scores, d_scores, d_v, T, H, N,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """dv, and the gradient of the scores [C, C], symmetric: above the diagonal its transpose."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    inside = chunk * C + rows < T
    token = batch * T + chunk * C
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    keys, values = (token * H + head) * DK, (token * H + head) * DV
    square = (bh * N + chunk) * C * C
    v_rows = load_rows(v + values, rows, inside, H * DV, 0, DV)
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    d_score = product(d_rows, tl.trans(v_rows), EXACT)
    d_score = tl.where(column <= row, d_score, product(v_rows, tl.trans(d_rows), EXACT))
    tl.store(d_scores + square + row * C + column, d_score.to(d_scores.dtype.element_ty))
    d_values = product(tl.load(scores + square + column * C + row), d_rows, EXACT)
    for k0 in range(0, DK, BK):
        columns = k0 + tl.arange(0, BK)
        offsets = row * (H * DK) + columns[None, :]
        lower = tl.zeros([1, BK], tl.float32)
        if LOGITS:
            lower = tl.load(bound + head * DK + columns)[None, :]
        log_f, k = gates(gate + keys, key + keys, lower, reset, offsets, inside[:, None], cut, LOGITS, KEY, RESET, FAST)
        d_state = tl.load(d_states + (bh * N + chunk) * DK * DV + block_offsets(k0, 0, DV, BK, DV))
        d_values += product(k * power(sums_after(table, log_f, C, EXACT), FAST), d_state, EXACT)
    store_rows(d_v + values, d_values, rows, inside, H * DV, 0, DV)


@triton.jit
def _middle(query, k, log_f, table, early, late, d_score, d_rows, v_rows, state, d_state, C: tl.constexpr,
            EXACT: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """dq, dk and, but for the products of the states, the gradient of log f by rows referred to the chunk's middle.

    q dq less k dk of all pairs, summed over the later rows, is the gradient of log f: of a pair inside, both terms are
    the same products of the same rounded numbers. What k gives to behind the chunk counts for the rows after it.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    sums = sums_from_middle(table, log_f, early, C, EXACT)
    grow, shrink = power(sums, FAST), power(-sums, FAST)
    x, y = query * grow, k * shrink
    start, end = power(early, FAST)[None, :], power(late, FAST)[None, :]
    read = product(d_rows, state, EXACT)
    flow = rounded(x * start, EXACT) * read
    dx = product(tl.where(column <= row, d_score, 0.0), y, EXACT)
    flow += rounded(x, EXACT) * dx
    dq = (dx + start * read) * grow
    read = product(v_rows, d_state, EXACT)
    leaving = rounded(y * end, EXACT) * read
    dy = product(tl.where(column >= row, d_score, 0.0), x, EXACT)
    flow -= rounded(y, EXACT) * dy + leaving
    dk = (dy + end * read) * shrink
    if EXACT or TABLE:
        d_log = row_sums(matrix(table, 3, C), flow, EXACT)
    else:
        d_log = tl.sum(flow, 0)[None, :] - tl.cumsum(flow, 0) + flow
    return dq, dk, d_log + tl.sum(leaving, 0)[None, :]


@triton.jit
def _halves(query, k, log_f, table, d_score, d_own, d_rows, v_rows, state, d_state, C: tl.constexpr,
            LEVELS: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """The same for any decay, by halves: at every level a row is in the later block, and gives its step to dq, or in
    the earlier one, and gives it to dk."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    dq, dk = d_own * k, d_own * query
    flow = tl.zeros_like(dq)
    for size in range(0, LEVELS):
        late = ((row >> size) & 1) == 1
        decay = power(row_sums(matrix(table, 5 + size, C), log_f, EXACT), FAST)
        x = rounded(tl.where(late, query, k) * decay, EXACT)
        pairs = ((row >> size) ^ (column >> size)) == 1
        dx = product(tl.where(pairs, d_score, 0.0), x, EXACT)
        flow += tl.where(late, dx, -dx) * x
        dx *= decay
        dq += tl.where(late, dx, 0.0)
        dk += tl.where(late, 0.0, dx)
    decay = power(sums_until(table, log_f, C, EXACT), FAST)
    read = product(d_rows, state, EXACT)
    dq += read * decay
    flow += rounded(query * decay, EXACT) * read
    d_log = row_sums(matrix(table, 3, C), flow, EXACT)
    decay = power(sums_after(table, log_f, C, EXACT), FAST)
    read = product(v_rows, d_state, EXACT)
    dk += read * decay
    return dq, dk, d_log + row_sums(matrix(table, 2, C), rounded(k * decay, EXACT) * read, EXACT)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_backward(
    q, key, v, gate, bound, reset, table, halves, d_out, states, d_states, d_scores, d_q, d_key, d_gate, d_bound,
    T, H, N, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    MIDDLE: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """dq, dk (with KEY), the gradient of the logits or of log f, and of the bound [BH, N, DK] summed over the
    rows, each for BK channels.

    The gradient of log f_t is the sum over all pairs of a row t or later with a row before t. From before the chunk to
    behind it: the products of the states with their gradients. From before it to its rows, and from its rows to behind
    it: sums of q * dq and k * dk. Inside it, q * dq less k * dk, whose products are the same numbers.
    """
    bh, chunk, k0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BK
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    inside = chunk * C + rows < T
    token = batch * T + chunk * C
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    keys, values = (token * H + head) * DK, (token * H + head) * DV
    square = d_scores + (bh * N + chunk) * C * C
    columns = k0 + tl.arange(0, BK)
    offsets = row * (H * DK) + columns[None, :]
    lower = tl.zeros([1, BK], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[None, :]
    half = halves + (bh * N + chunk) * 2 * DK + columns
    early, late = tl.load(half), tl.load(half + DK)
    log_f, k = gates(gate + keys, key + keys, lower, reset, offsets, inside[:, None], cut, LOGITS, KEY, RESET, FAST)
    query = tl.load(q + keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    block = columns[None, :] * DV + tl.arange(0, DV)[:, None]
    state = tl.load(states + (bh * N + chunk) * DK * DV + block)
    d_state = tl.load(d_states + (bh * N + chunk) * DK * DV + block)
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    v_rows = load_rows(v + values, rows, inside, H * DV, 0, DV)
    d_score = tl.load(square + row * C + column)
    near: tl.constexpr = ONLY
    if not ONLY:
        near = tl.min(tl.minimum(early, late), 0) > REACH
    if near:
        dq, dk, d_log = _middle(
            query, k, log_f, table, early, late, d_score, d_rows, v_rows, state, d_state, C, EXACT, FAST
        )
    else:
        d_own = tl.load(square + rows * (C + 1)).to(tl.float32)[:, None]
        dq, dk, d_log = _halves(
            query, k, log_f, table, d_score, d_own, d_rows, v_rows, state, d_state, C, LEVELS, EXACT, FAST
        )
    # and those of what came before the chunk with what follows
    carried = tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 0)
    d_log += (carried * power(early + late, FAST))[None, :]
    if RESET or not LOGITS:
        d_log = tl.where(log_f > LOWEST, d_log, 0.0)
    store_rows(d_q + keys, dq, rows, inside, H * DK, k0, BK)
    x = tl.load(gate + keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    if LOGITS:
        up, down = sigmoids(x, FAST)
        slope = (1.0 - lower) * up * down
        inverse_f = inverse(tl.maximum(lower + (1.0 - lower) * up, 1e-30), FAST)
        d_gates = d_log * (slope * inverse_f)
        d_lower = tl.where(lower > 0, d_log * (down * inverse_f), 0.0)
        if not KEY:
            d_gates -= dk * slope
            d_lower -= dk * down
        d_lower = tl.sum(tl.where(inside[:, None], d_lower, 0.0), 0)
        tl.store(d_bound + (bh * N + chunk) * DK + columns, d_lower)
    else:
        d_gates = d_log
        if not KEY:
            d_gates -= dk * tl.exp(tl.maximum(x, -100.0))
    store_rows(d_gate + keys, d_gates, rows, inside, H * DK, k0, BK)
    if KEY:
        store_rows(d_key + keys, dk, rows, inside, H * DK, k0, BK)
