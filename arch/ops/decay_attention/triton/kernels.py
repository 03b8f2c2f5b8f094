"""The parts of `decay_attention`'s kernels, with angles and without: scalar decays inside a chunk, and what a segment
of chunks adds to the state.

REVERSE goes backwards in time, from the gradient of the last state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, LOWEST, block_offsets, load_rows, power, product, silu


@triton.jit(do_not_specialize=["T", "N"])
def decay_rows(
    decay, gain, table, T, H, N, C: tl.constexpr, PER_STEP: tl.constexpr, GAIN: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """table [3, BH, N, C]: log2 of every row's decay, at least LOWEST, and their sums from the chunk's start to each
    row and behind each row to the chunk's end; 0 beyond T. decay: [B, T, H], or, not PER_STEP, [H]; natural logarithms.
    GAIN: two more, the sums to each row less log2 of its gain [B, T, H] (EXACT: this log2 alone), and those behind it
    with it.
    """
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tl.arange(0, C)
    own = row_decays(decay, bh, chunk, 0, T, H, rows, C, PER_STEP)
    place = table + (bh * N + chunk) * C + rows
    size = tl.num_programs(0).to(tl.int64) * N * C
    until = tl.cumsum(own, 0)
    behind = tl.cumsum(row_decays(decay, bh, chunk, 1, T, H, rows, C, PER_STEP), 0, reverse=True)
    tl.store(place, own)
    tl.store(place + size, until)
    tl.store(place + 2 * size, behind)
    if GAIN:
        index = chunk * C + rows
        more = tl.log2(tl.load(gain + (bh // H * T + index) * H + bh % H, mask=index < T, other=1.0))
        tl.store(place + 3 * size, more if EXACT else until - more)
        tl.store(place + 4 * size, behind + more)


@triton.jit
def activate(
    q, k, active_q, active_k, SIZE, QS, KS, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """silu of q into active_q and of k into active_k, SIZE numbers each; BLOCK by a program, of a grid [.., 2]. Rows of
    WIDTH lie QS apart in q, KS in k."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        x, y, apart = q, active_q, QS
    else:
        x, y, apart = k, active_k, KS
    active, _ = silu(tl.load(x + at + at // WIDTH * (apart - WIDTH), mask=at < SIZE), FAST)
    tl.store(y + at, active.to(y.dtype.element_ty), mask=at < SIZE)


@triton.jit(do_not_specialize=["N"])
def add_heads(
    d_q, d_k, q_shares, k_shares, N, G, QS, KS, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Sums of shares [N, HEADS, WIDTH] into d_q and d_k, ROWS of the N by a program, of a grid [.., 2]. The N are G
    groups of each token, and tokens lie QS apart in d_q, KS in d_k."""
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)[None, :]
    if tl.program_id(1) == 0:
        shares, out, apart = q_shares, d_q, QS
    else:
        shares, out, apart = k_shares, d_k, KS
    inside = (row < N)[:, None]
    place = shares + row.to(tl.int64)[:, None] * (HEADS * WIDTH) + columns
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for head in range(HEADS):
        total += tl.load(place + head * WIDTH, mask=inside, other=0.0).to(tl.float32)
    token = (row // G).to(tl.int64) * apart + row % G * WIDTH
    tl.store(out + token[:, None] + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def row_decays(decay, bh, chunk, ahead, T, H, rows, C: tl.constexpr, PER_STEP: tl.constexpr):
    """log2 of the decays [C] of a chunk's rows, or of those `ahead` of them in the chunk; 0 beyond its end."""
    index = chunk * C + rows + ahead
    inside = (index < T) & (rows + ahead < C)
    if PER_STEP:
        own = tl.load(decay + (bh // H * T + index) * H + bh % H, mask=inside, other=0.0).to(tl.float32)
    else:
        own = tl.load(decay + bh % H).to(tl.float32)
    return tl.where(inside, tl.maximum(own * LOG2E, LOWEST), 0.0)


@triton.jit
def pair_decays(
    table, size, C: tl.constexpr, DECAY: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
    GAIN: tl.constexpr = False,
):  # fmt: skip
    """The decay between two rows [C, C]: from each down to the earlier ones (REVERSE: up to the later ones), else 0.
    GAIN: times the earlier one's.

    table: of `decay_rows`, at the chunk; with EXACT sums outward from each row, else differences of two sums.
    """
    rows = tl.arange(0, C)
    if REVERSE:
        later, earlier = rows[None, :], rows[:, None]
    else:
        later, earlier = rows[:, None], rows[None, :]
    if not DECAY:
        return tl.where(earlier <= later, 1.0, 0.0)
    elif EXACT:
        row, column = rows[:, None], rows[None, :]
        sums = tl.cumsum(tl.where(column < row, tl.load(table + rows)[:, None], 0.0), 0)
        sums = tl.trans(sums) if REVERSE else sums
        if GAIN:
            sums += tl.load(table + 3 * size + earlier)
        return tl.where(earlier <= later, power(sums, FAST), 0.0)
    else:
        between = tl.load(table + size + later) - tl.load(table + (3 if GAIN else 1) * size + earlier)
        return power(tl.where(earlier <= later, between, -float("inf")), FAST)


@triton.jit
def load_columns(pointer, rows, inside, stride, first, WIDTH: tl.constexpr):
    """`load_rows`, transposed: [WIDTH, C]. A tile that is an operand of two products is loaded as both take it."""
    columns = first + tl.arange(0, WIDTH)
    return tl.load(pointer + columns[:, None] + rows[None, :] * stride, mask=inside[None, :], other=0.0)


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def decay_sums(
    x, y, table, sums, totals, T, H, G, N, SEGMENTS, PER_SEGMENT, XS, YS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, GAIN: tl.constexpr = False,
):  # fmt: skip
    """What each segment of PER_SEGMENT chunks alone adds to the state after it (REVERSE: to the gradient before it),
    sums [BH, SEGMENTS, DK, DV], fp32, and the log2 of its whole decay, totals [BH, SEGMENTS].

    x: k (REVERSE: q) [B, T, G, DK]; y: v (dO) [B, T, H, DV], of rows XS and YS apart. Of the segments but the one that
    comes last, whose sum nothing reads.
    """
    tile, bh = tl.program_id(0), tl.program_id(2).to(tl.int64)
    segment = tl.program_id(1) + (1 if REVERSE else 0)
    k0, v0 = tile % (DK // BK) * BK, tile // (DK // BK) * BV
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = tl.num_programs(2).to(tl.int64) * N * C
    state = tl.zeros([BK, BV], tl.float32)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = rows < T - chunk * C
        token = batch * T + chunk * C
        value = load_rows(y + token * YS + head * DV, rows, inside, YS, v0, BV)
        key = load_columns(x + token * XS + shared * DK, rows, inside, XS, k0, BK)
        if DECAY:
            decays = table + (bh * N + chunk) * C
            leave = power(tl.load(decays + (1 if REVERSE else 4 if GAIN else 2) * size + rows), FAST)
            whole = tl.load(decays + size + C - 1)
            value = value * leave[:, None]
            total += whole
            state = state * tl.exp2(whole)
        state += product(key, value, EXACT)
    tl.store(sums + (bh * SEGMENTS + segment) * DK * DV + block_offsets(k0, v0, DV, BK, BV), state)
    if tile == 0:
        tl.store(totals + bh * SEGMENTS + segment, total)
