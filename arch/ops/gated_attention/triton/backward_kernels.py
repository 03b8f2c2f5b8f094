"""The gradients of one chunk of `gated_attention`: of values and scores, then of one tile of its keys each."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import (
    LOWEST,
    accumulated,
    block_offsets,
    complement_of,
    gates_of,
    inverse,
    laid_as,
    load_gates,
    load_rows,
    matrix,
    operand,
    packed,
    power,
    product,
    sigmoids,
    silu,
    store_rows,
    time_sums,
    transposed,
)
from .far_channels import ANY, HALVES, WHOLE, half_sums, outward, some_tile
from .far_gradients import by_halves, middles_of_halves


@triton.jit
def _values(
    keys, d_out, d_states, scores, d_v, T, H, N, VS, chunk,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0).to(tl.int64)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    inside = chunk * C + rows < T
    token, number = batch * T + chunk * C, bh * N + chunk
    first, values = (token * H + head) * DK, (token * H + head) * DV
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    d_values = product(tl.load(scores + number * C * C + rows[None, :] * C + rows[:, None]), d_rows, EXACT)
    for k0 in range(0, DK, BK):
        y = load_rows(keys + first, rows, inside, H * DK, k0, BK)
        d_values += product(y, tl.load(d_states + number * DK * DV + block_offsets(k0, 0, DV, BK, DV)), EXACT)
    store_rows(d_v + token * VS + head * DV, d_values, rows, inside, VS, 0, DV)


@triton.jit(do_not_specialize=["T", "H", "N", "PER"])
def gated_values(
    keys, ways, d_out, d_states, scores, d_v, T, H, N, VS, PER,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, FAR: tl.constexpr,
    TILES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """dv of a chunk, [C, DV], to rows VS apart; with FAR of those of PER chunks that `gated_output` made so."""
    first = tl.program_id(1) * PER
    last = tl.minimum(first + PER, N)
    if not FAR:
        _values(keys, d_out, d_states, scores, d_v, T, H, N, VS, first, C, DK, DV, BK, EXACT)
    else:
        bh = tl.program_id(0).to(tl.int64)
        if some_tile(ways, bh, first, last, N, HALVES, TILES, TILES, MOST):
            for chunk in tl.range(first, last, disable_licm=True):
                if some_tile(ways, bh, chunk, chunk + 1, N, HALVES, TILES, TILES, 1):
                    _values(keys, d_out, d_states, scores, d_v, T, H, N, VS, chunk, C, DK, DV, BK, EXACT)


@triton.jit
def _tile(
    q, key, v, gate, bound, reset, table, queries, keys, decays, d_out, states, d_states, d_q, d_key, d_gate,
    d_bound, T, H, N, S, VS, chunk, WAY: tl.constexpr, MIDDLE: tl.constexpr, C: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr, LOGITS: tl.constexpr, KEY: tl.constexpr,
    RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, SILU: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """The gradients of BK channels of a chunk, of a tile of this WAY.

    Everything is [BK, C]: a warp has channels of its own, so their sums over time need no other warp.
    """
    bh, k0 = tl.program_id(1).to(tl.int64), tl.program_id(0) * BK
    batch, head = bh // H, bh % H
    token, number = batch * T + chunk * C, bh * N + chunk
    rows, columns, by_value = tl.arange(0, C), k0 + tl.arange(0, BK), tl.arange(0, DV)
    inside = (chunk * C + rows < T)[None, :]
    offsets = (token * H + head) * DK + columns[:, None] + rows[None, :] * (H * DK)
    given = token * S + head * DK + columns[:, None] + rows[None, :] * S
    value_offsets = (token * H + head) * DV + by_value[:, None] + rows[None, :] * (H * DV)
    block = number * DK * DV + columns[:, None] * DV + by_value[None, :]
    if WAY == WHOLE:  # all of it is asked for before any of it is used: a program waits for memory once
        state, d_state = tl.load(states + block), tl.load(d_states + block)
        x = tl.load(queries + offsets, mask=inside, other=0.0)
        y = tl.load(keys + offsets, mask=inside, other=0.0)
    d_rows = tl.load(d_out + value_offsets, mask=inside, other=0.0)
    v_rows = tl.load(
        v + token * VS + head * DV + by_value[:, None] + rows[None, :] * VS, mask=inside, other=0.0
    )  # fmt: skip
    query = tl.load(q + given, mask=inside, other=0.0)
    if KEY:
        key_rows = tl.load(key + given, mask=inside, other=0.0)
    one, behind = matrix(table, 5, C), transposed(table, 3, C)
    lower, cut = tl.zeros([BK, 1], tl.float32), inside
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[:, None]
    if RESET:
        cut = tl.load(reset + token + rows[None, :], mask=inside, other=0) != 0
    if WAY == WHOLE:
        late = tl.load(decays + number * 3 * DK + DK + columns)
    else:
        through = tl.load(decays + number * 3 * DK + 2 * DK + columns)
    logits = load_gates(gate, given, inside, LOGITS)
    # the gradient of the scores, a column a row of theirs. A row with itself has no decay, and no part in the gradient
    # of one; unrounded: strong decays leave little else
    d_score = product(tl.trans(v_rows), d_rows, EXACT)
    own = tl.sum(tl.where(rows[:, None] == rows[None, :], d_score, 0.0), 1)[None, :]
    d_score = operand(tl.where(rows[:, None] < rows[None, :], d_score, 0.0), EXACT)
    # of the gates only what the sums need; the rest again, later: kept it costs registers
    logits = accumulated(logits, one, EXACT)
    log_f, k = gates_of(logits, lower, cut, LOGITS, RESET, FAST)
    if gate.dtype.element_ty == tl.bfloat16 and not EXACT:
        logits = packed(logits)
    if WAY != WHOLE:
        wide, later = query.to(tl.float32), rows[None, :] >= C // 2
        if KEY:
            k = key_rows.to(tl.float32)
        if SILU:
            wide, _ = silu(wide, FAST)
        if WAY == HALVES:
            inner = time_sums(log_f, transposed(table, 7, C), EXACT)
            x, y = operand(wide * power(inner, FAST), EXACT), operand(k * power(-inner, FAST), EXACT)
        else:  # pairs of rows first, while there are registers
            pairs_q, pairs_k, flow = by_halves(wide, k, log_f, table, d_score, C, LEVELS, EXACT, FAST)
            x = tl.load(queries + offsets, mask=inside, other=0.0)
            y = tl.load(keys + offsets, mask=inside, other=0.0)
        state, d_state = tl.load(states + block), tl.load(d_states + block)
    if WAY == WHOLE:
        until = late[:, None] - time_sums(log_f, behind, EXACT) + log_f
        after = -until
    elif WAY == HALVES:
        until, after = inner, -inner
    elif MIDDLE:
        early, late = half_sums(log_f, later, 1)
        until, after = outward(
            time_sums(log_f, transposed(table, 4, C), EXACT), time_sums(log_f, transposed(table, 6, C), EXACT),
            early[:, None], late[:, None], later, (through == 0)[:, None],
        )  # fmt: skip
    else:
        until = time_sums(log_f, transposed(table, 0, C), EXACT)
        after = time_sums(log_f, transposed(table, 1, C), EXACT)
    dx, dy = product(state, d_rows, EXACT), product(d_state, v_rows, EXACT)
    within = tl.arange(0, BK)
    carried = product(state, tl.trans(d_state), EXACT)  # wanted is its diagonal: by products, for registers
    carried = tl.sum(tl.where(within[:, None] == within[None, :], carried, 0.0), 1)
    if WAY != WHOLE:
        carried *= power(through, FAST)
    if WAY == HALVES:
        to_middle, from_middle, to_chunk, from_chunk = middles_of_halves(log_f, through == 0, C, FAST)
        dx *= to_middle
        dy *= from_middle
    # with PRODUCTS into the layout of products' results by another, exact one: through memory each takes eight barriers
    wide_y = product(y, one, EXACT) if PRODUCTS else y.to(tl.float32)
    carried += tl.sum(wide_y * dy, 1)
    if WAY == HALVES:  # pairs across the chunk's middle
        pairs = later & (rows[:, None] < C // 2)
        d_pairs = tl.where(pairs, d_score, 0.0)
        # one factor after the other: both in one could underflow, where the rows beside the middle forget little
        across_x = to_chunk * product(y, d_pairs, EXACT)
        across_y = from_chunk * product(x, tl.trans(d_pairs), EXACT)
        dx += from_chunk * across_x
        dy += to_chunk * across_y
        d_score = tl.where(pairs, 0.0, d_score)
    if WAY != ANY:
        dx += product(y, d_score, EXACT)
        dy += product(x, tl.trans(d_score), EXACT)
    outside = (product(x, one, EXACT) if PRODUCTS else x.to(tl.float32)) * dx - wide_y * dy
    flow = flow + outside if WAY == ANY else outside
    logits, query = logits.to(tl.float32), product(query, one, EXACT) if PRODUCTS else query.to(tl.float32)
    if LOGITS:
        up, down = sigmoids(logits, FAST)
        c = (1.0 - lower) * down
    else:
        c = complement_of(logits)
    k = key_rows.to(tl.float32) if KEY else c
    dk = dy * power(after, FAST)
    dq = dx * power(until, FAST) + own * k
    if SILU:  # this late, for registers
        query, slope_q = silu(laid_as(dq, query, FAST), FAST)
    dk += own * query
    if WAY == ANY:
        dq += pairs_q
        dk += pairs_k
    if SILU:
        dq *= slope_q
    tl.store(d_q + given, dq.to(d_q.dtype.element_ty), mask=inside)
    d_log = time_sums(flow, behind, EXACT) + carried[:, None]
    if RESET or not LOGITS:
        d_log = tl.where(log_f > LOWEST, d_log, 0.0)
    if LOGITS:
        slope = (1.0 - lower) * up
        d_f = d_log * inverse(tl.maximum(lower + slope, 1e-30), FAST)
        d_lower = tl.where(lower > 0, d_f, 0.0)
        if not KEY:
            d_f -= dk
            d_lower -= dk
        d_gates = d_f * slope * down
        tl.store(d_bound + ((batch * N + chunk) * H + head) * DK + columns, tl.sum(d_lower * down, 1))
    else:
        d_gates = d_log
        if not KEY:
            d_gates -= dk * tl.exp(tl.maximum(logits, -100.0))
    tl.store(d_gate + given, d_gates.to(d_gate.dtype.element_ty), mask=inside)
    if KEY:
        tl.store(d_key + given, dk.to(d_key.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "H", "N", "PER"])
def gated_backward(
    q, key, v, gate, bound, reset, table, queries, keys, decays, ways, d_out, states, d_states, d_q, d_key, d_gate,
    d_bound, T, H, N, S, VS, PER, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
    LEVELS: tl.constexpr, WAY: tl.constexpr, MIDDLE: tl.constexpr, TILES: tl.constexpr, MOST: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
    SILU: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dq (with SILU that of q before its silu), dk (with KEY), the gradient of the logits or of log f, and of the bound
    [B, N, H, DK] summed over the rows, each for BK channels. Rows of q, key, gate and their gradients lie S apart,
    those of v VS.

    Of tiles of this WAY, the other ways' being other kernels' for their registers: WHOLE and, without MIDDLE, ANY of
    one chunk, else of those of PER chunks.

    The gradient of log f_t is the sum over all pairs of a row t or later with a row before t: from before the chunk to
    behind it, the products of the states with their gradients; else q dq less k dk summed over the rows from t on,
    where pairs of two such rows cancel, their products being of the same numbers, and what k gives to behind the chunk
    counts for the rows after it.
    """
    first = tl.program_id(2) * PER
    last = tl.minimum(first + PER, N)
    bh = tl.program_id(1).to(tl.int64)
    ways += tl.program_id(0) * TILES // (DK // BK)  # of tiles at least as wide as these
    if WAY == WHOLE or not MIDDLE:
        if WAY == WHOLE and tl.load(ways + (bh * N + first) * TILES) != WHOLE:
            return
        _tile(
            q, key, v, gate, bound, reset, table, queries, keys, decays, d_out, states, d_states, d_q, d_key, d_gate,
            d_bound, T, H, N, S, VS, first, WAY, MIDDLE, C, DK, DV, BK, LEVELS, LOGITS, KEY, RESET, EXACT, FAST,
            SILU, PRODUCTS and WAY == WHOLE,
        )  # fmt: skip
    elif some_tile(ways, bh, first, last, N, WAY, TILES, 1, MOST):
        for chunk in tl.range(first, last, disable_licm=True):
            if tl.load(ways + (bh * N + chunk) * TILES) == WAY:
                _tile(
                    q, key, v, gate, bound, reset, table, queries, keys, decays, d_out, states, d_states, d_q,
                    d_key, d_gate, d_bound, T, H, N, S, VS, chunk, WAY, MIDDLE, C, DK, DV, BK, LEVELS, LOGITS,
                    KEY, RESET, EXACT, FAST, SILU, PRODUCTS and WAY == HALVES,
                )  # fmt: skip
