"""The gradients of one chunk of `gated_attention`: of values and scores, then of one tile of its keys each."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    LOWEST,
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
        d_values += product(k * power(row_sums(matrix(table, 1, C), log_f, EXACT), FAST), d_state, EXACT)
    store_rows(d_v + values, d_values, rows, inside, H * DV, 0, DV)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_backward(
    q, key, v, gate, bound, reset, table, d_out, states, d_states, d_scores, d_q, d_key, d_gate, d_bound, T, H, N,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """dq, dk (with KEY), the gradient of the logits or of log f, and of the bound [BH, N, DK] summed over the
    rows, each for BK channels.

    The gradient of log f_t is the sum over all pairs of a row t or later with a row before t. From before the chunk to
    behind it: the products of the states with their gradients. From before it to its rows, and from its rows to behind
    it: sums of q * dq and k * dk. Inside it, q * dq less k * dk of the levels, whose products are the same numbers.
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
    square = (bh * N + chunk) * C * C
    d_own = tl.load(d_scores + square + rows * (C + 1)).to(tl.float32)[:, None]
    columns = k0 + tl.arange(0, BK)
    offsets = row * (H * DK) + columns[None, :]
    lower = tl.zeros([1, BK], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[None, :]
    log_f, k = gates(gate + keys, key + keys, lower, reset, offsets, inside[:, None], cut, LOGITS, KEY, RESET, FAST)
    query = tl.load(q + keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    # pairs inside the chunk: at every level a row is in the later block, and gives its step to dq, or in the
    # earlier one, and gives it to dk; `both` is dq + dk, `apart` dq - dk
    both = tl.zeros([C, BK], tl.float32)
    apart = tl.zeros([C, BK], tl.float32)
    flow = tl.zeros([C, BK], tl.float32)
    for size in range(0, LEVELS):
        late = ((row >> size) & 1) == 1
        sign = tl.where(late, 1.0, -1.0)
        decay = power(row_sums(matrix(table, 4 + size, C), log_f, EXACT), FAST)
        x = rounded(tl.where(late, query, k) * decay, EXACT)
        pairs = ((row >> size) ^ (column >> size)) == 1
        d_score = tl.load(d_scores + square + row * C + column)
        dx = product(tl.where(pairs, d_score, 0.0), x, EXACT)
        signed = dx * sign
        both += dx * decay
        apart += signed * decay
        flow += signed * x
    dq = d_own * k + 0.5 * (both + apart)
    dk = d_own * query + 0.5 * (both - apart)
    # pairs of a row with what came before the chunk, and with what follows
    block = block_offsets(k0, 0, DV, BK, DV)
    state = tl.load(states + (bh * N + chunk) * DK * DV + block)
    d_state = tl.load(d_states + (bh * N + chunk) * DK * DV + block)
    decay = power(row_sums(matrix(table, 0, C), log_f, EXACT), FAST)
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    read = product(d_rows, tl.trans(state), EXACT)
    dq += read * decay
    flow += rounded(query * decay, EXACT) * read
    d_log = row_sums(matrix(table, 3, C), flow, EXACT)
    decay = power(row_sums(matrix(table, 1, C), log_f, EXACT), FAST)
    v_rows = load_rows(v + values, rows, inside, H * DV, 0, DV)
    read = product(v_rows, tl.trans(d_state), EXACT)
    dk += read * decay
    d_log += row_sums(matrix(table, 2, C), rounded(k * decay, EXACT) * read, EXACT)
    # and those of what came before with what follows
    carried = tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1)
    d_log += (carried * tl.exp2(tl.sum(log_f, 0)))[None, :]
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
