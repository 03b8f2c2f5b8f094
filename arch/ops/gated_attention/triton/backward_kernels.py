"""The gradients of one chunk of `gated_attention`: of values and scores, then of one tile of its keys each."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import (
    LOWEST,
    accumulated,
    block_offsets,
    complement_of,
    documents,
    gate_gradients,
    gates_of,
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
    sums_from_own,
    time_sums,
    transposed,
)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_values(
    keys, reset, d_out, d_states, scores, d_v, T, H, N, VS, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dv of a chunk, [C, DV], to rows VS apart."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    inside = chunk * C + rows < T
    token, number = batch * T + chunk * C, bh * N + chunk
    first, values = (token * H + head) * DK, (token * H + head) * DV
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    d_values = product(tl.load(scores + number * C * C + rows[None, :] * C + rows[:, None]), d_rows, EXACT)
    for k0 in range(0, DK, BK):
        y = load_rows(keys + first, rows, inside, H * DK, k0, BK)
        if RESET:
            document, last = documents(reset, token, inside, C, RESET)
            y = tl.where((document == last)[:, None], y, 0.0)
        d_values += product(y, tl.load(d_states + number * DK * DV + block_offsets(k0, 0, DV, BK, DV)), EXACT)
    store_rows(d_v + token * VS + head * DV, d_values, rows, inside, VS, 0, DV)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_backward(
    q, key, v, gate, bound, reset, table, queries, keys, decays, d_out, states, d_states, d_q, d_key, d_gate, d_bound,
    T, H, N, S, VS, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, LOGITS: tl.constexpr,
    KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, SILU: tl.constexpr,
    PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dq (with SILU that of q before its silu), dk (with KEY), the gradient of the logits or of log f, and of the bound
    [B, N, H, DK] summed over the rows, each for BK channels of a chunk; those of far channels without what
    `far_gradients` adds. Rows of q, key, gate and their gradients lie S apart, those of v VS.

    The gradient of log f_t is the sum over all pairs of a row t or later with a row before t: from before the chunk to
    behind it, the products of the states with their gradients; else q dq less k dk summed over the rows from t on,
    where pairs of two such rows cancel, their products being of the same numbers, and what k gives to behind the chunk
    counts for the rows after it.

    Everything is [BK, C]: a warp has channels of its own, so their sums over time need no other warp.
    """
    k0, bh, chunk = tl.program_id(0) * BK, tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, head = bh // H, bh % H
    token, number = batch * T + chunk * C, bh * N + chunk
    rows, columns, by_value = tl.arange(0, C), k0 + tl.arange(0, BK), tl.arange(0, DV)
    inside = (chunk * C + rows < T)[None, :]
    offsets = (token * H + head) * DK + columns[:, None] + rows[None, :] * (H * DK)
    given = token * S + head * DK + columns[:, None] + rows[None, :] * S
    value_offsets = (token * H + head) * DV + by_value[:, None] + rows[None, :] * (H * DV)
    block = number * DK * DV + columns[:, None] * DV + by_value[None, :]
    # all of it is asked for before any of it is used: a program waits for memory once
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
    identity, behind = matrix(table, 3, C), transposed(table, 1, C)
    lower, cut = tl.zeros([BK, 1], tl.float32), inside
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[:, None]
    if RESET:
        cut = tl.load(reset + token + rows[None, :], mask=inside, other=0) != 0
    late = tl.load(decays + number * 3 * DK + DK + columns)
    through = tl.load(decays + number * 3 * DK + 2 * DK + columns)
    logits = load_gates(gate, given, inside, LOGITS)
    # the gradient of the scores, a column a row of theirs. A row with itself has no decay, and no part in the gradient
    # of one; unrounded: strong decays leave little else
    d_score = product(tl.trans(v_rows), d_rows, EXACT)
    own = tl.sum(tl.where(rows[:, None] == rows[None, :], d_score, 0.0), 1)[None, :]
    d_score = tl.where(rows[:, None] < rows[None, :], d_score, 0.0)
    if RESET:
        document, last = documents(reset, token, chunk * C + rows < T, C, RESET)
        d_score = tl.where(document[:, None] == document[None, :], d_score, 0.0)
    d_score = operand(d_score, EXACT)
    # of the gates only what the sums need; the rest again, later: kept it costs registers
    logits = accumulated(logits, identity, EXACT)
    log_f, k = gates_of(logits, lower, cut, LOGITS, RESET, FAST)
    if gate.dtype.element_ty == tl.bfloat16 and not EXACT:
        logits = packed(logits)
    behind_them = time_sums(log_f, behind, EXACT)
    # through is 0 where late is not: far channels are referred to the chunk's start and end, the others to its middle
    until, after = (late + through)[:, None] - behind_them, behind_them - late[:, None]
    if EXACT:  # far channels' as sums of their own terms; in bf16 the difference is less than a rounding of operands
        until = tl.where((through < 0)[:, None], time_sums(log_f, transposed(table, 0, C), EXACT), until)
    dx, dy = product(state, d_rows, EXACT), product(d_state, v_rows, EXACT)
    within = tl.arange(0, BK)
    carried = product(state, tl.trans(d_state), EXACT)  # wanted is its diagonal: by products, for registers
    carried = tl.sum(tl.where(within[:, None] == within[None, :], carried, 0.0), 1)
    carried *= power(through, FAST)
    if RESET:
        dx = tl.where((document == 0)[None, :], dx, 0.0)
        dy = tl.where((document == last)[None, :], dy, 0.0)
        carried = tl.where(last == 0, carried, 0.0)
    # with PRODUCTS into the layout of products' results by another, exact one: through memory each takes eight barriers
    wide_y = product(y, identity, EXACT) if PRODUCTS else y.to(tl.float32)
    carried += tl.sum(wide_y * dy, 1)
    dx += product(y, d_score, EXACT)
    dy += product(x, tl.trans(d_score), EXACT)
    flow = (product(x, identity, EXACT) if PRODUCTS else x.to(tl.float32)) * dx - wide_y * dy
    logits, query = logits.to(tl.float32), product(query, identity, EXACT) if PRODUCTS else query.to(tl.float32)
    if KEY:
        k = key_rows.to(tl.float32)
    elif LOGITS:
        _, down = sigmoids(logits, FAST)
        k = (1.0 - lower) * down
    else:
        k = complement_of(logits)
    dk = dy * power(after, FAST)
    dq = dx * power(until, FAST) + own * k
    if SILU:  # this late, for registers
        query, slope_q = silu(laid_as(dq, query, FAST), FAST)
    dk += own * query
    if SILU:
        dq *= slope_q
    tl.store(d_q + given, dq.to(d_q.dtype.element_ty), mask=inside)
    d_log = sums_from_own(flow, behind, EXACT) + carried[:, None]
    if not LOGITS:
        d_log = tl.where(log_f > LOWEST, d_log, 0.0)
    if RESET:
        d_log = tl.where(cut, 0.0, d_log)
    d_gates, d_lower = gate_gradients(d_log, dk, logits, lower, LOGITS, KEY, FAST)
    if LOGITS:
        tl.store(d_bound + ((batch * N + chunk) * H + head) * DK + columns, tl.sum(d_lower, 1))
    tl.store(d_gate + given, d_gates.to(d_gate.dtype.element_ty), mask=inside)
    if KEY:
        tl.store(d_key + given, dk.to(d_key.dtype.element_ty), mask=inside)
