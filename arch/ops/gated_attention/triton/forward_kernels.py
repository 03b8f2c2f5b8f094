"""The forward kernels of `gated_attention`: operands with their decays, the states at every chunk (and, backwards,
their gradients), and the outputs of a chunk. docs/research/kernels-gated-attention.md has the plan; backward_kernels.py
the gradients of a chunk."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import (
    LOWEST,
    accumulated,
    block_offsets,
    documents,
    gates_of,
    load_gates,
    load_rows,
    matrix,
    power,
    product,
    silu,
    store_rows,
    time_sums,
    transposed,
)
from .far_channels import REACH, far_count


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_operands(
    q, key, gate, bound, reset, table, queries, keys, decays, ways, T, H, N, S,
    C: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr, SILU: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """q (with SILU its silu) and k with the decays from and to a reference, [B, T, H, DK], and the decays between
    references in log2, [BH, N, 3, DK]: from the chunk's start to q's, from k's to the chunk's end, from q's to k's.
    Rows of q, key and gate lie S apart, here and below. With PRODUCTS q comes into the layout of products' results by
    one, exact, and not through shared memory.

    Where no half chunk's decay is below 2^REACH the reference of both is the chunk's middle: factors above 1 on one
    side meet small ones on the other. Else q's is the chunk's start and k's its end, with factors of at most 1: such
    channels are counted in `ways` [BH, N, DK / BK], and far_channels.py adds the scores of their pairs.
    """
    k0, bh, chunk = tl.program_id(0) * BK, tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, head = bh // H, bh % H
    rows, columns = tl.arange(0, C), k0 + tl.arange(0, BK)
    inside = (chunk * C + rows < T)[None, :]
    token = batch * T + chunk * C
    offsets = (token * H + head) * DK + columns[:, None] + rows[None, :] * (H * DK)
    given = token * S + head * DK + columns[:, None] + rows[None, :] * S
    if not PRODUCTS:
        logits = load_gates(gate, given, inside, LOGITS)
    identity = matrix(table, 3, C)
    query = tl.load(q + given, mask=inside, other=0.0)
    sums = transposed(table, 2, C)
    cut = inside
    if RESET:
        cut = tl.load(reset + token + rows[None, :], mask=inside, other=0) != 0
    lower = tl.zeros([BK, 1], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[:, None]
    if PRODUCTS:  # the last of the loads: the compiler waits for them here
        logits = load_gates(gate, given, inside, LOGITS)
    log_f, k = gates_of(accumulated(logits, identity, EXACT), lower, cut, LOGITS, RESET, FAST)
    if KEY:
        k = tl.load(key + given, mask=inside, other=0.0).to(tl.float32)
    decay = decays + (bh * N + chunk) * 3 * DK + columns
    # the sums of the halves are made of those to the middle: in bf16 both then hold the same roundings of their terms
    until = time_sums(log_f, sums, EXACT)
    early = tl.sum(tl.where(rows[None, :] == 0, log_f - until, 0.0), 1)
    late = tl.sum(tl.where(rows[None, :] == C - 1, until, 0.0), 1)
    near = tl.minimum(early, late) > REACH
    tl.store(decay, tl.where(near, early, 0.0))
    tl.store(decay + DK, tl.where(near, late, 0.0))
    tl.store(decay + 2 * DK, tl.where(near, 0.0, early + late))
    tl.store(ways + (bh * N + chunk) * (DK // BK) + tl.program_id(0), tl.sum(tl.where(near, 0, 1), 0))
    to_start, to_end = tl.where(near, 0.0, early)[:, None], tl.where(near, 0.0, late)[:, None]
    y = k * power(to_end - until, FAST)
    if EXACT:  # far channels' exponents as sums of their own terms alone
        y = tl.where(near[:, None], y, k * power(time_sums(log_f, transposed(table, 1, C), EXACT), FAST))
    tl.store(keys + offsets, y.to(keys.dtype.element_ty), mask=inside)
    query = product(query, identity, EXACT) if PRODUCTS else query.to(tl.float32)
    if SILU:
        query, _ = silu(query, FAST)
    x = query * power(to_start + until, FAST)
    if EXACT:
        x = tl.where(near[:, None], x, query * power(time_sums(log_f, transposed(table, 0, C), EXACT), FAST))
    tl.store(queries + offsets, x.to(queries.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "H", "N", "PER_SEGMENT"])
def gated_states(
    x, v, reset, decays, starts, states, final, totals, T, H, N, VS, PER_SEGMENT,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, START: tl.constexpr, STORE: tl.constexpr, SEGMENTS: tl.constexpr, RESET: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """The state at q's reference of every chunk, and on: S <- diag(from q's to k's) S + k^T v, then to the next one's;
    for one segment of chunks and one [BK, BV] tile of the state.

    x: the keys; decays: as `gated_operands` gives them; v: of rows VS apart, here and below. STORE: the states to
    `states` [BH, N, DK, DV], and the last one to `final` [BH, DK, DV]; otherwise the segment's state to `final`
    [BH, SEGMENTS, DK, DV] and its sums of log2 of all factors to `totals` [BH, SEGMENTS, DK]. starts, with START:
    [BH, SEGMENTS, DK, DV], the states left by the segments before. REVERSE runs backwards in time with x = the queries
    and v = dO: the gradients of the states at k's references.
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k0, v0 = tile % (DK // BK) * BK, tile // (DK // BK) * BV
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    columns = k0 + tl.arange(0, BK)
    block = block_offsets(k0, v0, DV, BK, BV)
    if START:
        state = tl.load(starts + (bh * SEGMENTS + segment) * DK * DV + block)
    else:
        state = tl.zeros([BK, BV], tl.float32)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    # decays between chunks are loaded a step ahead: the loop has nothing else to wait for
    decay = decays + bh * N * 3 * DK + columns
    now = last - 1 if REVERSE else first
    entry, exit = 0, DK
    if REVERSE:
        entry, exit = DK, 0
    entering, leaving = tl.load(decay + now * 3 * DK + entry), tl.load(decay + now * 3 * DK + exit)
    through = tl.load(decay + now * 3 * DK + 2 * DK)
    total = tl.zeros([BK], tl.float32)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = chunk * C + rows < T
        token = batch * T + chunk * C
        enter, cross, leave = tl.exp2(entering), tl.exp2(through), tl.exp2(leaving)
        total += entering + through + leaving
        ahead = decay + tl.maximum(chunk - 1 if REVERSE else tl.minimum(chunk + 1, N - 1), 0) * 3 * DK
        entering, leaving = tl.load(ahead + entry), tl.load(ahead + exit)
        through = tl.load(ahead + 2 * DK)
        operand = load_rows(x + (token * H + head) * DK, rows, inside, H * DK, k0, BK)
        values = load_rows(v + token * VS + head * DV, rows, inside, VS, v0, BV)
        if RESET:
            document, newest = documents(reset, token, inside, C, RESET)
            values = tl.where((document == (0 if REVERSE else newest))[:, None], values, 0.0)
            cross = tl.where(newest > 0, 0.0, cross)
            total += tl.where(newest > 0, 2 * LOWEST, 0.0)
        state *= enter[:, None]
        if STORE:
            tl.store(states + (bh * N + chunk) * DK * DV + block, state.to(states.dtype.element_ty))
        state = state * cross[:, None] + product(tl.trans(operand), values, EXACT)
        state *= leave[:, None]  # by itself: both decays in one factor could underflow
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
    v, reset, queries, keys, ways, states, out, scores, T, H, N, VS, C: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The outputs of a chunk, [C, DV], and its scores [C, C] (kept for the backward), which hold those of far channels
    already."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    inside = chunk * C + rows < T
    token, number = batch * T + chunk * C, bh * N + chunk
    first = (token * H + head) * DK
    document, _ = documents(reset, token, inside, C, RESET)
    score = tl.zeros([C, C], tl.float32)
    result = tl.zeros([C, DV], tl.float32)
    for k0 in range(0, DK, BK):
        x = load_rows(queries + first, rows, inside, H * DK, k0, BK)
        score += product(x, tl.trans(load_rows(keys + first, rows, inside, H * DK, k0, BK)), EXACT)
        if RESET:
            x = tl.where((document == 0)[:, None], x, 0.0)
        result += product(x, tl.load(states + number * DK * DV + block_offsets(k0, 0, DV, BK, DV)), EXACT)
    score = tl.where((column <= row) & (document[:, None] == document[None, :]), score, 0.0)
    own = scores + number * C * C + row * C + column
    if far_count(ways + number * TILES, TILES) > 0:
        score += tl.load(own).to(tl.float32)
    tl.store(own, score.to(scores.dtype.element_ty))
    result += product(score, load_rows(v + token * VS + head * DV, rows, inside, VS, 0, DV), EXACT)
    store_rows(out + (token * H + head) * DV, result, rows, inside, H * DV, 0, DV)
