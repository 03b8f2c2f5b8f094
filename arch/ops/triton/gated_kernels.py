"""The kernels of `gated_attention`: the states before (and, backwards, their gradients after) every chunk, and the
outputs of a chunk. NOTES.md has the plan; gated_backward.py the gradients of a chunk."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    ONLY,
    block_offsets,
    gates,
    load_rows,
    matrix,
    power,
    product,
    row_sums,
    store_rows,
    sums_after,
    sums_from_middle,
    sums_until,
)

REACH = tl.constexpr(-96.0)  # a half chunk's sum of log2 f down to which its rows may be referred to the middle


@triton.jit(do_not_specialize=["T", "H", "N", "PER_SEGMENT"])
def gated_states(
    x, gate, bound, reset, v, table, halves, starts, states, final, totals, T, H, N, PER_SEGMENT,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, START: tl.constexpr, STORE: tl.constexpr, SEGMENTS: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """S <- diag(f) S + k^T v from chunk to chunk, for one segment of chunks and one [BK, BV] tile of the state.

    STORE: every chunk's state before it to `states` [BH, N, DK, DV], and the last one to `final` [BH, DK, DV];
    otherwise the segment's state to `final` [BH, SEGMENTS, DK, DV] and its sums of log2 f to `totals`
    [BH, SEGMENTS, DK]. starts, with START: [BH, SEGMENTS, DK, DV], the states at the segments' starts.
    REVERSE runs backwards in time with x = q and v = dO: the gradients of the states after every chunk. Otherwise x
    is k (read with KEY), and the sums of log2 f over both halves of every chunk go to `halves` [BH, N, 2, DK].
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k0, v0 = tile % (DK // BK) * BK, tile // (DK // BK) * BV
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    columns = k0 + tl.arange(0, BK)
    block = block_offsets(k0, v0, DV, BK, BV)
    lower = tl.zeros([1, BK], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[None, :]
    if START:
        state = tl.load(starts + (bh * SEGMENTS + segment) * DK * DV + block)
    else:
        state = tl.zeros([BK, BV], tl.float32)
    total = tl.zeros([BK], tl.float32)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = chunk * C + rows < T
        token = batch * T + chunk * C
        cut = inside[:, None]
        if RESET:
            cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
        keys = (token * H + head) * DK
        offsets = rows[:, None] * (H * DK) + columns[None, :]
        log_f, k = gates(
            gate + keys, x + keys, lower, reset, offsets, inside[:, None], cut, LOGITS, KEY and not REVERSE, RESET, FAST
        )
        if REVERSE:
            k = tl.load(x + keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
        values = load_rows(v + (token * H + head) * DV, rows, inside, H * DV, v0, BV)
        if STORE:
            tl.store(states + (bh * N + chunk) * DK * DV + block, state.to(states.dtype.element_ty))
        if REVERSE:
            decayed = k * power(sums_until(table, log_f, C, EXACT), FAST)
        else:
            decayed = k * power(sums_after(table, log_f, C, EXACT), FAST)
        whole = tl.sum(log_f, 0)
        if STORE and not REVERSE:
            if v0 == 0:
                early = tl.sum(tl.where(rows[:, None] < C // 2, log_f, 0.0), 0)
                half = halves + (bh * N + chunk) * 2 * DK + columns
                tl.store(half, early)
                tl.store(half + DK, whole - early)
        total += whole
        state = state * tl.exp2(whole)[:, None] + product(tl.trans(decayed), values, EXACT)
    if STORE:
        if segment == (0 if REVERSE else SEGMENTS - 1):
            tl.store(final + bh * DK * DV + block, state)
    else:
        tl.store(final + (bh * SEGMENTS + segment) * DK * DV + block, state)
        if v0 == 0:
            tl.store(totals + (bh * SEGMENTS + segment) * DK + columns, total)


@triton.jit
def carry(
    states, totals, initial, SEGMENTS, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, START: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    """In place, from every segment's own state to the state at its start (REVERSE: at its end)."""
    k0, bh = tl.program_id(0) * BK, tl.program_id(1).to(tl.int64)
    block = block_offsets(k0, 0, DV, BK, DV)
    if START:
        state = tl.load(initial + bh * DK * DV + block)
    else:
        state = tl.zeros([BK, DV], tl.float32)
    for step in range(0, SEGMENTS):
        segment = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        own = tl.load(states + segment * DK * DV + block)
        decay = tl.exp2(tl.load(totals + segment * DK + k0 + tl.arange(0, BK)))
        tl.store(states + segment * DK * DV + block, state)
        state = decay[:, None] * state + own


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_output(
    q, key, v, gate, bound, reset, table, halves, states, out, scores, T, H, N,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr, MIDDLE: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The outputs of a chunk, [C, DV], and its scores [C, C] (kept for the backward).

    With MIDDLE and no half chunk's decay below 2^REACH, rows of q and k are referred to the chunk's middle: one product
    gives all pairs, factors above 1 on one side meet as small ones on the other. Else by halves: at each level one
    operand, the later rows' q and the earlier rows' k with their decays to the midpoint, times itself gives all pairs,
    for any decay.
    """
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    inside = chunk * C + rows < T
    token = batch * T + chunk * C
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    keys = (token * H + head) * DK
    values = (token * H + head) * DV
    score = tl.zeros([C, C], tl.float32)
    result = tl.zeros([C, DV], tl.float32)
    for k0 in range(0, DK, BK):
        columns = k0 + tl.arange(0, BK)
        offsets = row * (H * DK) + columns[None, :]
        lower = tl.zeros([1, BK], tl.float32)
        if LOGITS:
            lower = tl.load(bound + head * DK + columns)[None, :]
        half = halves + (bh * N + chunk) * 2 * DK + columns
        early, late = tl.load(half), tl.load(half + DK)
        log_f, k = gates(gate + keys, key + keys, lower, reset, offsets, inside[:, None], cut, LOGITS, KEY, RESET, FAST)
        query = tl.load(q + keys + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
        state = tl.load(states + (bh * N + chunk) * DK * DV + block_offsets(k0, 0, DV, BK, DV))
        near: tl.constexpr = ONLY
        if not ONLY:
            near = tl.min(tl.minimum(early, late), 0) > REACH
        if near:
            sums = sums_from_middle(table, log_f, early, C, EXACT)
            x = query * power(sums, FAST)
            score += product(x, tl.trans(k * power(-sums, FAST)), EXACT)
            result += product(x * power(early, FAST)[None, :], state, EXACT)
        else:
            score += tl.where(row == column, tl.sum(query * k, 1)[:, None], 0.0)
            for size in range(0, LEVELS):
                x = tl.where(((row >> size) & 1) == 1, query, k)
                x *= power(row_sums(matrix(table, 5 + size, C), log_f, EXACT), FAST)
                pairs = (row >> size) ^ (column >> size)
                score += tl.where(pairs == 1, product(x, tl.trans(x), EXACT), 0.0)
            result += product(query * power(sums_until(table, log_f, C, EXACT), FAST), state, EXACT)
    score = tl.where(column <= row, score, 0.0)
    tl.store(scores + (bh * N + chunk) * C * C + row * C + column, score.to(scores.dtype.element_ty))
    result += product(score, load_rows(v + values, rows, inside, H * DV, 0, DV), EXACT)
    store_rows(out + values, result, rows, inside, H * DV, 0, DV)
