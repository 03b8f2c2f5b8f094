r"""Kernels of `gated_delta` with decays by head, in chunks of C rows (docs/research/kernels-gated-delta.md).

With g_i the decay from the chunk's start to row i, e_i that from row i to its end, w the whole chunk's, D_ij that from
row j to row i, and S the state before the chunk, the rows R that a chunk writes, its outputs and the state behind it
are

    (I + A) R = diag(b) (V - diag(g) K S),  A_ij = b_i D_ij k_i k_j^T for j < i
    O = diag(g) Q S + P R,  P_ij = D_ij q_i k_j^T for j <= i;    S' = w S + K^T diag(e) R

With M = (I + A)^-1 and Z = M^T (P^T dO + diag(e) K dS'), the gradients are those of the right side, diag(b) Z of V, and

    dS = w dS' + Q^T diag(g) dO - K^T diag(g b) Z,  dA = -Z R^T,  dP = dO R^T

`delta_operands` makes of each chunk what does not depend on the state. The two runs through time have the state alone
left: it lies on its side in registers, [columns of the values, keys], as the left operand of all products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, LOWEST, load_rows, load_tile, operand, power, product, store_rows


@triton.jit
def finely(a, b, EXACT: tl.constexpr):
    """a @ b of fp32 to more digits than bf16's."""
    return tl.dot(a, b, input_precision="tf32x3" if EXACT else "tf32")


@triton.jit
def many_products(a, b, EXACT: tl.constexpr):
    """a @ b of several matrices, fp32, of operands of `operand`."""
    if EXACT:
        return tl.dot(a, b, input_precision="tf32x3")
    else:
        return tl.dot(a, b)


@triton.jit
def on_diagonal(x, COUNT: tl.constexpr, SUB: tl.constexpr):
    """[COUNT SUB, COUNT SUB] with the blocks x [COUNT, SUB, SUB] on its diagonal."""
    number = tl.arange(0, COUNT)
    own = number[:, None, None, None] == number[None, None, :, None]
    return tl.reshape(tl.where(own, x[:, :, None, :], 0.0), [COUNT * SUB, COUNT * SUB])


@triton.jit
def diagonal_of(x, COUNT: tl.constexpr, SUB: tl.constexpr):
    """The blocks [COUNT, SUB, SUB] on the diagonal of x."""
    number = tl.arange(0, COUNT)
    own = number[:, None, None, None] == number[None, None, :, None]
    return tl.sum(tl.where(own, tl.reshape(x, [COUNT, SUB, COUNT, SUB]), 0.0), 2)


@triton.jit
def joins(rows, columns, level: tl.constexpr):
    """Where a lower block of 2^level rows joins it to the block before it, of pairs of blocks."""
    return ((rows >> level) == (columns >> level) + 1) & ((rows >> level) % 2 == 1)


@triton.jit
def inverse_of(
    lower, blocks, rows, C: tl.constexpr, SUB: tl.constexpr, LEVELS: tl.constexpr, SUBLEVELS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """(I + lower)^-1 of a strictly lower triangular matrix [C, C], fp32, whose own blocks on the diagonal are `blocks`
    [C / SUB, SUB, SUB]: of blocks of 1, 2, 4, .. rows, joined in pairs by M - M lower M, of which what joins a pair's
    blocks counts."""
    row, column = tl.arange(0, SUB)[None, :, None], tl.arange(0, SUB)[None, None, :]
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(joins(row, column, 0), blocks, 0.0)
    for level in tl.static_range(1, SUBLEVELS):
        below = tl.dot(inverse, tl.where(joins(row, column, level), blocks, 0.0), input_precision="tf32x3")
        inverse -= tl.dot(below, inverse, input_precision="tf32x3")
    inverse = on_diagonal(inverse, C // SUB, SUB)
    for level in tl.static_range(SUBLEVELS, LEVELS):
        below = finely(inverse, tl.where(joins(rows[:, None], rows[None, :], level), lower, 0.0), EXACT)
        inverse -= finely(below, inverse, EXACT)
    return inverse


@triton.jit
def chunk_tile(
    x, batch, row, column, rows, T, STRIDE, C: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """[C, WIDTH] of x [B, T, ..], whose rows lie STRIDE apart, or of its descriptor; 0 for rows beyond T."""
    if TMA:
        return load_tile(x, batch, row, column, C, WIDTH)
    else:
        place = x + (batch.to(tl.int64) * T + row) * STRIDE + column
        return load_rows(place, rows, rows < T - row, STRIDE, 0, WIDTH)


@triton.jit
def own_tile(
    x, index, row, column, HEIGHT: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """[ROWS, WIDTH] of the matrix `index` of x [.., HEIGHT, FULL], or of its descriptor."""
    if TMA:
        return load_tile(x, index.to(tl.int32), row, column, ROWS, WIDTH)
    else:
        places = (row + tl.arange(0, ROWS))[:, None] * FULL + column + tl.arange(0, WIDTH)[None, :]
        return tl.load(x + index * HEIGHT * FULL + places)


@triton.jit
def store_own(
    x, y, index, row, HEIGHT: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Whole rows of the matrix `index` of x [.., HEIGHT, FULL]."""
    if TMA:
        x.store([index.to(tl.int32), row, 0], tl.reshape(y.to(x.dtype), [1, ROWS, FULL]))
    else:
        places = (row + tl.arange(0, ROWS))[:, None] * FULL + tl.arange(0, FULL)[None, :]
        tl.store(x + index * HEIGHT * FULL + places, y.to(x.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "N"])
def delta_operands(
    q, k, leaving, v, beta, log_decay, table, lower, w, u, scores, keys, through, T, H, N, QS, KS, VS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SUB: tl.constexpr,
    LEVELS: tl.constexpr, SUBLEVELS: tl.constexpr, DECAY: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Of a chunk: w = M diag(b g) K and keys = M^T diag(e) K [B H, N, C, DK], u = (M diag(b) V)^T [.., DV, C], scores P
    and through = P M [.., C, C]; with DECAY table [4, B H, N, C], fp32: sums of log2 decays up to each row, of whole
    numbers and of the rest, then g and e. CHANNEL: scores and lower, A, are given; k is diag(g) K and leaving
    diag(e) K."""
    bh, chunk = tl.program_id(0), tl.program_id(1)
    batch, head = bh // H, bh % H
    index = bh.to(tl.int64) * N + chunk
    rows = tl.arange(0, C)
    row = chunk * C
    inside = rows < T - row
    vector = (batch.to(tl.int64) * T + row + rows) * H + head
    b = tl.load(beta + vector, mask=inside, other=0.0)
    counted = rows[:, None] >= rows[None, :]
    if CHANNEL:
        below = own_tile(lower, index, 0, 0, C, C, C, C, False)
        near = diagonal_of(below, C // SUB, SUB)
        score = own_tile(scores, index, 0, 0, C, C, C, C, False)
    else:
        if DECAY:
            x = tl.maximum(tl.load(log_decay + vector, mask=inside, other=0.0) * LOG2E, LOWEST)
            whole = tl.floor(x + 0.5)
            rest = tl.cumsum(x - whole, 0)
            whole = tl.cumsum(whole, 0)
            last = rows == C - 1
            end = tl.sum(tl.where(last, whole, 0.0)) - whole + (tl.sum(tl.where(last, rest, 0.0)) - rest)
            enter, leave = power(whole + rest, FAST), power(tl.minimum(end, 0.0), FAST)
            size = tl.num_programs(0).to(tl.int64) * N * C
            place = table + index * C + rows
            tl.store(place, whole)
            tl.store(place + size, rest)
            tl.store(place + 2 * size, enter)
            tl.store(place + 3 * size, leave)
            sums = (whole[:, None] - whole[None, :]) + (rest[:, None] - rest[None, :])
            weights = tl.where(counted, power(tl.minimum(sums, 0.0), FAST), 0.0)
        else:
            weights = tl.where(counted, 1.0, 0.0)
        same, score = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
        near = tl.zeros([C // SUB, SUB, SUB], tl.float32)
        for first in tl.static_range(0, DK, BK):
            x = chunk_tile(k, batch, row, head * DK + first, rows, T, KS, C, BK, False)
            same += product(x, tl.trans(x), EXACT)
            blocks = tl.reshape(operand(x, EXACT), [C // SUB, SUB, BK])
            near += many_products(blocks, tl.permute(blocks, (0, 2, 1)), EXACT)
            y = chunk_tile(q, batch, row, head * DK + first, rows, T, QS, C, BK, False)
            score += product(y, tl.trans(x), EXACT)
        score = operand(score * weights, EXACT)
        store_own(scores, score, index, 0, C, C, C, False)
        below = tl.where(rows[:, None] > rows[None, :], same * weights * b[:, None], 0.0)
        near *= tl.reshape(b, [C // SUB, SUB])[:, :, None]
        if DECAY:
            wholes, rests = tl.reshape(whole, [C // SUB, SUB]), tl.reshape(rest, [C // SUB, SUB])
            sums = (wholes[:, :, None] - wholes[:, None, :]) + (rests[:, :, None] - rests[:, None, :])
            near *= power(tl.minimum(sums, 0.0), FAST)
        within = tl.arange(0, SUB)
        near = tl.where(within[None, :, None] > within[None, None, :], near, 0.0)
    solved = inverse_of(below, near, rows, C, SUB, LEVELS, SUBLEVELS, EXACT)
    store_own(through, product(score, solved, EXACT), index, 0, C, C, C, False)
    given = solved * b[None, :]
    for first in tl.static_range(0, DV, BV):
        y = chunk_tile(v, batch, row, head * DV + first, rows, T, VS, C, BV, False)
        store_own(u, product(tl.trans(y), tl.trans(given), EXACT), index, first, DV, C, BV, False)
    if DECAY:
        given *= enter[None, :]
        solved *= leave[:, None]
    places = rows[:, None] * DK + tl.arange(0, BK)[None, :]
    for first in tl.static_range(0, DK, BK):
        if CHANNEL or DK > BK:
            x = chunk_tile(k, batch, row, head * DK + first, rows, T, KS, C, BK, False)
        to = index * C * DK + first + places
        tl.store(w + to, product(given, x, EXACT).to(w.dtype.element_ty))
        if CHANNEL:
            x = chunk_tile(leaving, batch, row, head * DK + first, rows, T, KS, C, BK, False)
        tl.store(keys + to, product(tl.trans(solved), x, EXACT).to(keys.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "N"])
def delta_run(
    q, k, w, u, scores, table, initial, states, written, out, final, T, H, N, QS, KS, OS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr,
    CHANNEL: tl.constexpr, START: tl.constexpr, EXACT: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """TILE columns of out [B, T, H, DV]; states [B H, N, DV, DK] before every chunk; written R^T [B H, N, DV, C], which
    may be u; final [B H, DK, DV], as initial, with START. CHANNEL: q is diag(g) Q, k diag(e) K, and table has w
    [B H, N, DK]."""
    tile, bh = tl.program_id(0), tl.program_id(1)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    rows, first = tl.arange(0, C), tile * TILE
    # states lie in memory as [DK, DV] at the ends, here they are [TILE, DK]
    block = tl.arange(0, DK)[None, :] * DV + (first + tl.arange(0, TILE))[:, None]
    if START:
        state = tl.load(initial + bh * DK * DV + block)
    else:
        state = tl.zeros([TILE, DK], tl.float32)
    if DECAY:
        # a chunk's decays are loaded a chunk ahead, so that nothing waits for them
        decays = table + (2 * tl.num_programs(1).to(tl.int64) + bh) * N * C
        leaves = decays + tl.num_programs(1).to(tl.int64) * N * C
        next_enter, next_leave, next_decay = tl.load(decays + rows), tl.load(leaves + rows), tl.load(decays + C - 1)
    if CHANNEL:
        decays = table + bh * N * DK + tl.arange(0, DK)
        next_decay = tl.load(decays)
    for chunk in range(0, N):
        index, row = bh * N + chunk, chunk * C
        if DECAY:
            enter, leave, decay = next_enter, next_leave, next_decay
            ahead = tl.minimum(chunk + 1, N - 1) * C
            next_enter, next_leave = tl.load(decays + ahead + rows), tl.load(leaves + ahead + rows)
            next_decay = tl.load(decays + ahead + C - 1)
        if CHANNEL:
            decay = next_decay
            next_decay = tl.load(decays + tl.minimum(chunk + 1, N - 1) * DK)
        kept = operand(state, EXACT)
        store_own(states, kept, index, first, DV, DK, TILE, TMA)
        x = own_tile(w, index, 0, 0, C, DK, C, DK, TMA)
        added = own_tile(u, index, first, 0, DV, C, TILE, C, TMA).to(tl.float32) - product(kept, tl.trans(x), EXACT)
        right = operand(added, EXACT)
        # a store waits until the one before it has left: each stands behind another product
        store_own(written, right, index, first, DV, C, TILE, TMA)
        y = chunk_tile(q, batch, row, head * DK, rows, T, QS, C, DK, TMA)
        result = product(kept, tl.trans(y), EXACT)
        if DECAY:
            result *= enter[None, :]
        z = own_tile(scores, index, 0, 0, C, C, C, C, TMA)
        result += product(right, tl.trans(z), EXACT)
        if TMA:
            out.store([batch, row, head * DV + first], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
        else:
            place = out + (batch.to(tl.int64) * T + row) * OS + head * DV
            store_rows(place, tl.trans(result), rows, rows < T - row, OS, first, TILE)
        if DECAY:
            state *= decay
            right = operand(added * leave[None, :], EXACT)
        if CHANNEL:
            state *= decay[None, :]
        x = chunk_tile(k, batch, row, head * DK, rows, T, KS, C, DK, TMA)
        state += product(right, x, EXACT)
    tl.store(final + bh * DK * DV + block, state)


@triton.jit(do_not_specialize=["T", "N"])
def delta_run_back(
    q, k, d_out, keys, through, beta, table, d_final, d_states, solved, d_initial, T, H, N, QS, KS, OS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr,
    CHANNEL: tl.constexpr, START: tl.constexpr, EXACT: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Backwards in time: d_states [B H, N, DV, DK], the gradients of the states behind every chunk, and solved, Z^T
    [B H, N, DV, C]; from d_final [B H, DK, DV], with START, to d_initial. CHANNEL: q is diag(g) Q, k diag(g) K, and
    table has w [B H, N, DK]."""
    tile, bh = tl.program_id(0), tl.program_id(1)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    rows, first = tl.arange(0, C), tile * TILE
    block = tl.arange(0, DK)[None, :] * DV + (first + tl.arange(0, TILE))[:, None]
    if START:
        state = tl.load(d_final + bh * DK * DV + block)
    else:
        state = tl.zeros([TILE, DK], tl.float32)
    vectors = batch.to(tl.int64) * T * H + head  # of beta
    ahead = (N - 1) * C
    next_b = tl.load(beta + vectors + (ahead + rows).to(tl.int64) * H, mask=rows < T - ahead, other=0.0)
    if DECAY:
        decays = table + (2 * tl.num_programs(1).to(tl.int64) + bh) * N * C
        next_enter, next_decay = tl.load(decays + ahead + rows), tl.load(decays + ahead + C - 1)
    if CHANNEL:
        decays = table + bh * N * DK + tl.arange(0, DK)
        next_decay = tl.load(decays + (N - 1) * DK)
    for step in range(0, N):
        chunk = N - 1 - step
        index, row = bh * N + chunk, chunk * C
        b = next_b
        ahead = tl.maximum(row - C, 0)
        next_b = tl.load(beta + vectors + (ahead + rows).to(tl.int64) * H, mask=rows < T - ahead, other=0.0)
        if DECAY:
            enter, decay = next_enter, next_decay
            next_enter, next_decay = tl.load(decays + ahead + rows), tl.load(decays + ahead + C - 1)
        if CHANNEL:
            decay = next_decay
            next_decay = tl.load(decays + tl.maximum(chunk - 1, 0) * DK)
        kept = operand(state, EXACT)
        store_own(d_states, kept, index, first, DV, DK, TILE, TMA)
        y = tl.trans(chunk_tile(d_out, batch, row, head * DV + first, rows, T, OS, C, TILE, TMA))
        z = own_tile(through, index, 0, 0, C, C, C, C, TMA)
        x = own_tile(keys, index, 0, 0, C, DK, C, DK, TMA)
        solution = product(y, z, EXACT) + product(kept, tl.trans(x), EXACT)
        store_own(solved, operand(solution, EXACT), index, first, DV, C, TILE, TMA)
        if DECAY:
            b *= enter
            y = operand(y.to(tl.float32) * enter[None, :], EXACT)
            state *= decay
        if CHANNEL:
            state *= decay[None, :]
        x = chunk_tile(q, batch, row, head * DK, rows, T, QS, C, DK, TMA)
        state += product(y, x, EXACT)
        x = chunk_tile(k, batch, row, head * DK, rows, T, KS, C, DK, TMA)
        state -= product(operand(solution * b[None, :], EXACT), x, EXACT)
    tl.store(d_initial + bh * DK * DV + block, state)
