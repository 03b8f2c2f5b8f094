"""Channels of a chunk of `gated_attention` that are not referred to its middle, for their decays are too strong.

Their references are the chunk's start (q) and its end (k), so that what passes between chunks is right; products of
two rows of the chunk then hold a factor of 2^REACH at most, which is nothing. What is missing are the scores of the
chunk's own pairs and their gradients: those channels, a few of a head's as a rule, are gathered from wherever they lie,
a few at a time, and these kernels do them alone.

Pairs of two rows of a chunk have references of their own: the middles of its halves, or, where a half's own halves
forget too much for that, at every level of halving the middle of a block, with factors of at most 1.
Exponents are sums of their own terms alone: a difference of two sums keeps the rounding of what both hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import (
    LOWEST,
    documents,
    gate_gradients,
    gates_of,
    load_gates,
    load_rows,
    matrix,
    operand,
    power,
    product,
    rounded,
    row_sums,
    silu,
)

REACH = tl.constexpr(
    -100.0
)  # log2 of the strongest decay between a row and a reference that is not behind all its pairs
GROUP, FEW = tl.constexpr(16), tl.constexpr(8)  # channels at a time, of scores and of gradients


@triton.jit
def some_far(ways, first, last):
    """Whether any of the tiles from number `first` to before `last` has far channels; ways: of `gated_operands`."""
    most = 0
    for at in range(first, last, 128):
        tiles = at + tl.arange(0, 128)
        most = tl.maximum(most, tl.max(tl.load(ways + tiles, mask=tiles < last, other=0), 0))
    return most > 0


@triton.jit
def far_count(ways, TILES: tl.constexpr):
    """How many channels of a chunk are far; ways: of its first tile."""
    count = tl.load(ways)
    for tile in tl.static_range(1, TILES):
        count += tl.load(ways + tile)
    return count


@triton.jit
def far_places(decays, DK: tl.constexpr):
    """For every channel its number among the far ones, -1 for another, and how many these are; decays: the chunk's."""
    far = (tl.load(decays + 2 * DK + tl.arange(0, DK)) < 0).to(tl.int32)
    return tl.where(far == 1, tl.cumsum(far, 0) - 1, -1), tl.sum(far, 0)


@triton.jit
def _far_columns(places, first, DK: tl.constexpr, COUNT: tl.constexpr):
    """The columns [COUNT] of the far channels from number `first` on."""
    numbers = first + tl.arange(0, COUNT)
    return tl.sum(tl.where(places[None, :] == numbers[:, None], tl.arange(0, DK)[None, :], 0), 1)


@triton.jit
def _gathered(
    q, key, gate, bound, reset, columns, offsets, mask, LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """q as it is given, k and log2 f, fp32 [C, columns], of these columns; logits or log f, and the bound. reset,
    with RESET: [C, 1]."""
    lower = tl.zeros([1, columns.shape[0]], tl.float32)
    if LOGITS:
        lower = tl.load(bound + columns)[None, :]
    logits = load_gates(gate, offsets, mask, LOGITS).to(tl.float32)
    log_f, k = gates_of(logits, lower, reset & mask, LOGITS, RESET, FAST)
    if KEY:
        k = tl.load(key + offsets, mask=mask, other=0.0).to(tl.float32)
    return tl.load(q + offsets, mask=mask, other=0.0).to(tl.float32), k, log_f, logits, lower


@triton.jit
def _from_row(log_f, until, row, table, number, C: tl.constexpr, EXACT: tl.constexpr):
    """Sums of log_f [C, channels] from behind row number `row` [C] of each to it, negative ones of the rows between
    where it is before that. until: sums up to each row; EXACT: by matrix `number` of the table, of their own terms
    alone, and not as a difference of two sums, which in bf16 is less than a rounding of operands."""
    if EXACT:
        return row_sums(matrix(table, number, C), log_f, EXACT)
    else:
        return until - tl.gather(until, tl.broadcast_to(row[:, None], until.shape), 0)


@triton.jit
def _to_midpoint(log_f, until, late, rows, size, table, C: tl.constexpr, EXACT: tl.constexpr):
    """Sums between each row and the midpoint of its pair of blocks of 2^size rows; late [C, 1]: behind it."""
    between = _from_row(log_f, until, ((rows >> size) | 1) * (1 << size) - 1, table, 5 + size, C, EXACT)
    return between if EXACT else tl.where(late, between, -between)


@triton.jit
def _scores(score, query, k, log_f, table, C: tl.constexpr, LEVELS: tl.constexpr, EXACT: tl.constexpr,
            FAST: tl.constexpr):  # fmt: skip
    """score [C, C] and, on and below its diagonal, those of channels with any decay; query, k, log_f [C, channels]."""
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    score += tl.where(row == column, tl.sum(query * k, 1)[:, None], 0.0)
    lowest = 0
    until = tl.cumsum(log_f, 0)
    inner = _from_row(log_f, until, (rows // (C // 2)) * (C // 2) + C // 4 - 1, table, 4, C, EXACT)
    if tl.max(tl.max(tl.abs(inner), 1), 0) < -REACH:
        pairs = product(query * power(inner, FAST), tl.trans(k * power(-inner, FAST)), EXACT)
        score += tl.where(((row >= C // 2) == (column >= C // 2)) & (column < row), pairs, 0.0)
        lowest = LEVELS - 1
    for size in tl.range(lowest, LEVELS, disable_licm=True):
        # one operand, the later rows' q and the earlier rows' k, times itself gives all pairs
        late = ((row >> size) & 1) == 1
        x = tl.where(late, query, k) * power(_to_midpoint(log_f, until, late, rows, size, table, C, EXACT), FAST)
        pairs = ((row >> size) ^ (column >> size)) == 1
        score += tl.where(pairs & (column < row), product(x, tl.trans(x), EXACT), 0.0)
    return score


@triton.jit
def _pair_gradients(query, k, log_f, table, d_score, C: tl.constexpr, LEVELS: tl.constexpr, EXACT: tl.constexpr,
                    FAST: tl.constexpr):  # fmt: skip
    """dq, dk and q dq less k dk [C, channels] of the pairs of two rows of a chunk, for any decay; d_score [C, C]: the
    gradient of their score, on both sides of the diagonal."""
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    dq, dk, flow = tl.zeros_like(k), tl.zeros_like(k), tl.zeros_like(k)
    lowest = 0
    until = tl.cumsum(log_f, 0)
    inner = _from_row(log_f, until, (rows // (C // 2)) * (C // 2) + C // 4 - 1, table, 4, C, EXACT)
    if tl.max(tl.max(tl.abs(inner), 1), 0) < -REACH:
        to, back = power(inner, FAST), power(-inner, FAST)
        x, y = rounded(query * to, EXACT), rounded(k * back, EXACT)
        own = (row >= C // 2) == (column >= C // 2)
        dx = product(tl.where(own & (column < row), d_score, 0.0), y, EXACT)
        dy = product(tl.where(own & (column > row), d_score, 0.0), x, EXACT)
        dq, dk, flow = dx * to, dy * back, x * dx - y * dy
        lowest = LEVELS - 1
    for size in tl.range(lowest, LEVELS, disable_licm=True):
        # a row is in the later block, and gives its step to dq, or in the earlier one, and gives it to dk
        late = ((row >> size) & 1) == 1
        decay = power(_to_midpoint(log_f, until, late, rows, size, table, C, EXACT), FAST)
        x = rounded(tl.where(late, query, k) * decay, EXACT)
        pairs = ((row >> size) ^ (column >> size)) == 1
        dx = product(tl.where(pairs, d_score, 0.0), x, EXACT)
        flow += tl.where(late, dx, -dx) * x
        dx *= decay
        dq += tl.where(late, dx, 0.0)
        dk += tl.where(late, 0.0, dx)
    return dq, dk, flow


@triton.jit(do_not_specialize=["T", "H", "N"])
def far_scores(
    q, key, gate, bound, reset, table, decays, ways, scores, T, H, N, S, C: tl.constexpr,
    DK: tl.constexpr, LEVELS: tl.constexpr, TILES: tl.constexpr, LOGITS: tl.constexpr, KEY: tl.constexpr,
    RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Of chunks with far channels: these channels' part of the scores [BH, N, C, C] of every row with itself and
    those before it."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, rows = bh // H, bh % H, tl.arange(0, C)
    number, token = bh * N + chunk, batch * T + chunk * C
    if far_count(ways + number * TILES, TILES) == 0:
        return
    inside = chunk * C + rows < T
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    given = token * S + head * DK
    places, count = far_places(decays + number * 3 * DK, DK)
    score = tl.zeros([C, C], tl.float32)
    for group in tl.range(0, count, GROUP, disable_licm=True):
        columns = _far_columns(places, group, DK, GROUP)
        mask = inside[:, None] & (group + tl.arange(0, GROUP) < count)[None, :]
        query, k, log_f, _logits, _lower = _gathered(
            q + given, key + given, gate + given, bound + head * DK if LOGITS else bound, cut, columns,
            rows[:, None] * S + columns[None, :], mask, LOGITS, KEY, RESET, FAST,
        )  # fmt: skip
        if SILU:
            query, _ = silu(query, FAST)
        score = _scores(score, query, k, log_f, table, C, LEVELS, EXACT, FAST)
    at = rows[:, None] * C + rows[None, :]
    if RESET:
        document, _ = documents(reset, token, inside, C, RESET)
        score = tl.where(document[:, None] == document[None, :], score, 0.0)
    tl.store(scores + number * C * C + at, score.to(scores.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "H", "N"])
def far_gradients(
    q, key, v, gate, bound, reset, table, decays, ways, d_out, d_q, d_key, d_gate, d_bound, T, H, N, S, VS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, LEVELS: tl.constexpr, TILES: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """Adds what pairs of two rows of a chunk give to the gradients of far channels; the rest is there, by
    `gated_backward`."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, rows = bh // H, bh % H, tl.arange(0, C)
    number, token = bh * N + chunk, batch * T + chunk * C
    if far_count(ways + number * TILES, TILES) == 0:
        return
    inside = chunk * C + rows < T
    cut = inside[:, None]
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0)[:, None] != 0
    given = token * S + head * DK
    places, count = far_places(decays + number * 3 * DK, DK)
    d_rows = load_rows(d_out + (token * H + head) * DV, rows, inside, H * DV, 0, DV)
    v_rows = load_rows(v + token * VS + head * DV, rows, inside, VS, 0, DV)
    d_score = product(d_rows, tl.trans(v_rows), EXACT)
    d_score = tl.where(rows[:, None] > rows[None, :], d_score, 0.0)
    if RESET:
        document, _ = documents(reset, token, inside, C, RESET)
        d_score = tl.where(document[:, None] == document[None, :], d_score, 0.0)
    d_score = operand(d_score + tl.trans(d_score), EXACT)
    for group in tl.range(0, count, FEW, disable_licm=True):
        columns = _far_columns(places, group, DK, FEW)
        exist = group + tl.arange(0, FEW) < count
        at, mask = rows[:, None] * S + columns[None, :], inside[:, None] & exist[None, :]
        query, k, log_f, logits, lower = _gathered(
            q + given, key + given, gate + given, bound + head * DK if LOGITS else bound, cut, columns, at,
            mask, LOGITS, KEY, RESET, FAST,
        )  # fmt: skip
        slope = tl.zeros_like(query)
        if SILU:
            query, slope = silu(query, FAST)
        dq, dk, flow = _pair_gradients(query, k, log_f, table, d_score, C, LEVELS, EXACT, FAST)
        if SILU:
            dq *= slope
        d_log = tl.cumsum(flow, 0, reverse=True)
        if not LOGITS:
            d_log = tl.where(log_f > LOWEST, d_log, 0.0)
        if RESET:
            d_log = tl.where(cut, 0.0, d_log)
        d_gates, d_lower = gate_gradients(d_log, dk, logits, lower, LOGITS, KEY, FAST)
        _add(d_q + given + at, dq, mask)
        _add(d_gate + given + at, d_gates, mask)
        if KEY:
            _add(d_key + given + at, dk, mask)
        if LOGITS:
            _add(d_bound + ((batch * N + chunk) * H + head) * DK + columns, tl.sum(d_lower, 0), exist)


@triton.jit
def _add(pointers, x, mask):
    x += tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    tl.store(pointers, x.to(pointers.dtype.element_ty), mask=mask)
