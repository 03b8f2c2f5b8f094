"""The gradients of one chunk of `gated_attention`: of values and scores, then of one tile of its keys each."""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOG2E, LOWEST, block_offsets, gates_of, inverse, load_rows, power, product, rounded, store_rows


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_values(
    keys, v, d_out, d_states, scores, d_scores, d_own, d_v, T, H, N,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dv, and the gradient of the scores [C, C], symmetric: above the diagonal its transpose; its diagonal unrounded to
    `d_own` [BH, N, C]: with strong decays little else counts."""
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    row, column = rows[:, None], rows[None, :]
    inside = chunk * C + rows < T
    token, number = batch * T + chunk * C, bh * N + chunk
    first, values = (token * H + head) * DK, (token * H + head) * DV
    square = number * C * C
    v_rows = load_rows(v + values, rows, inside, H * DV, 0, DV)
    d_rows = load_rows(d_out + values, rows, inside, H * DV, 0, DV)
    d_score = product(d_rows, tl.trans(v_rows), EXACT)
    d_score = tl.where(column <= row, d_score, product(v_rows, tl.trans(d_rows), EXACT))
    tl.store(d_scores + square + row * C + column, d_score.to(d_scores.dtype.element_ty))
    tl.store(d_own + number * C + rows, tl.sum(tl.where(row == column, d_score, 0.0), 1))
    d_values = product(tl.load(scores + square + column * C + row), d_rows, EXACT)
    for k0 in range(0, DK, BK):
        y = load_rows(keys + first, rows, inside, H * DK, k0, BK)
        d_values += product(y, tl.load(d_states + number * DK * DV + block_offsets(k0, 0, DV, BK, DV)), EXACT)
    store_rows(d_v + values, d_values, rows, inside, H * DV, 0, DV)


@triton.jit
def _sums(x, table, number, C: tl.constexpr, EXACT: tl.constexpr):
    """Sums of the columns of x, for each column those that matrix `number` of the table tells."""
    columns = tl.arange(0, C)
    which = tl.load(table + number * C * C + columns[None, :] * C + columns[:, None])
    if EXACT:
        return tl.dot(x, which, input_precision="tf32x3")
    else:
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(high, which, tl.dot(low, which))


@triton.jit
def _by_halves(query, k, log_f, table, d_scores, C: tl.constexpr, LEVELS: tl.constexpr, EXACT: tl.constexpr,
               FAST: tl.constexpr):  # fmt: skip
    """dq, dk and q dq less k dk of the pairs of two rows of a chunk, for any decay, [BK, C]: at every level a row is in
    the later block, and gives its step to dq, or in the earlier one, and gives it to dk."""
    rows = tl.arange(0, C)
    d_score = tl.load(d_scores + rows[:, None] * C + rows[None, :])
    dq, dk, flow = tl.zeros_like(k), tl.zeros_like(k), tl.zeros_like(k)
    for size in range(0, LEVELS):
        late = ((rows[None, :] >> size) & 1) == 1
        decay = power(_sums(log_f, table, 5 + size, C, EXACT), FAST)
        x = rounded(tl.where(late, query, k) * decay, EXACT)
        pairs = ((rows[:, None] >> size) ^ (rows[None, :] >> size)) == 1
        dx = product(x, tl.where(pairs, d_score, 0.0), EXACT)
        flow += tl.where(late, dx, -dx) * x
        dx *= decay
        dq += tl.where(late, dx, 0.0)
        dk += tl.where(late, 0.0, dx)
    return dq, dk, flow


@triton.jit
def _tile(
    q, key, v, gate, bound, table, queries, keys, links, d_out, states, d_states, d_scores, d_own, d_q, d_key, d_gate,
    d_bound, cut, inside, H, head, k0, NEAR: tl.constexpr, MIDDLE: tl.constexpr, C: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr, LOGITS: tl.constexpr, KEY: tl.constexpr,
    RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradients of BK channels from k0 on, all of them referred to the middle with NEAR; pointers are the chunk's.

    Everything is [BK, C]: a warp has channels of its own, so their sums over time need no other warp.
    """
    rows, columns = tl.arange(0, C), k0 + tl.arange(0, BK)
    offsets = columns[:, None] + rows[None, :] * (H * DK)
    here, by_value = inside[None, :], tl.arange(0, DV)
    value_offsets = by_value[:, None] + rows[None, :] * (H * DV)
    lower = tl.zeros([BK, 1], tl.float32)
    if LOGITS:
        lower = tl.load(bound + head * DK + columns)[:, None]
    block = columns[:, None] * DV + by_value[None, :]
    state, d_state = tl.load(states + block), tl.load(d_states + block)
    through = tl.load(links + 2 * DK + columns)
    carried = tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1)
    if not NEAR:
        carried *= power(through, FAST)
    dx = product(state, tl.load(d_out + value_offsets, mask=here, other=0.0), EXACT)
    dy = product(d_state, tl.load(v + value_offsets, mask=here, other=0.0), EXACT)
    x, y = tl.load(queries + offsets, mask=here, other=0.0), tl.load(keys + offsets, mask=here, other=0.0)
    carried += tl.sum(y * dy, 1)
    if NEAR:
        d_score = tl.load(d_scores + rows[:, None] * C + rows[None, :])
        dx += product(y, tl.where(rows[:, None] < rows[None, :], d_score, 0.0), EXACT)
        dy += product(x, tl.where(rows[:, None] > rows[None, :], d_score, 0.0), EXACT)
    flow = x * dx - y * dy
    # the gates come late, for registers; by an exact product with 1 they come in the layout of the others
    logits = tl.load(gate + offsets, mask=here, other=0.0)
    if gate.dtype.element_ty == tl.bfloat16 and not EXACT:
        finite = tl.minimum(tl.maximum(logits.to(tl.float32), -1e30), 1e30).to(tl.bfloat16)
        logits = tl.dot(finite, (rows[:, None] == rows[None, :]).to(tl.bfloat16))
    logits = logits.to(tl.float32)
    log_f, k = gates_of(logits, key, lower, offsets, here, cut[None, :], LOGITS, KEY, RESET, FAST)
    until = _sums(log_f, table, 4 if NEAR else 0, C, EXACT)
    if NEAR:
        after = -until
    elif MIDDLE:
        until -= tl.load(links + columns)[:, None]
        after = through[:, None] - until
    else:
        after = _sums(log_f, table, 1, C, EXACT)
    # a row with itself has no decay, and no part in the gradient of one
    own = tl.load(d_own + rows)[None, :]
    query = tl.load(q + offsets, mask=here, other=0.0).to(tl.float32)
    dq = dx * power(until, FAST) + own * k
    dk = dy * power(after, FAST) + own * query
    if not NEAR:
        more_q, more_k, more = _by_halves(query, k, log_f, table, d_scores, C, LEVELS, EXACT, FAST)
        dq += more_q
        dk += more_k
        flow += more
    tl.store(d_q + offsets, dq.to(d_q.dtype.element_ty), mask=here)
    d_log = _sums(flow, table, 3, C, EXACT) + carried[:, None]
    if RESET or not LOGITS:
        d_log = tl.where(log_f > LOWEST, d_log, 0.0)
    if LOGITS:
        up = inverse(1.0 + power(-logits * LOG2E, FAST), FAST)  # anew: kept from the gates it costs registers
        slope = (1.0 - lower) * up
        d_f = d_log * inverse(tl.maximum(lower + slope, 1e-30), FAST)
        d_lower = tl.where(lower > 0, d_f, 0.0)
        if KEY:
            down = inverse(1.0 + power(logits * LOG2E, FAST), FAST)
        else:
            d_f -= dk
            d_lower -= dk
            down = k * inverse(1.0 - lower, FAST)
        d_gates = d_f * slope * down
        tl.store(d_bound + columns, tl.sum(tl.where(here, d_lower * down, 0.0), 1))
    else:
        d_gates = d_log
        if not KEY:
            d_gates -= dk * tl.exp(tl.maximum(logits, -100.0))
    tl.store(d_gate + offsets, d_gates.to(d_gate.dtype.element_ty), mask=here)
    if KEY:
        tl.store(d_key + offsets, dk.to(d_key.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gated_backward(
    q, key, v, gate, bound, reset, table, queries, keys, links, d_out, states, d_states, d_scores, d_own, d_q, d_key,
    d_gate, d_bound, T, H, N, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
    LEVELS: tl.constexpr, MIDDLE: tl.constexpr,
    LOGITS: tl.constexpr, KEY: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """dq, dk (with KEY), the gradient of the logits or of log f, and of the bound [BH, N, DK] summed over the
    rows, each for BK channels: by one product where all are referred to the middle, else by halves.

    The gradient of log f_t is the sum over all pairs of a row t or later with a row before t: from before the chunk to
    behind it, the products of the states with their gradients; else q dq less k dk summed over the rows from t on,
    where pairs of two such rows cancel, their products being of the same numbers, and what k gives to behind the chunk
    counts for the rows after it.
    """
    bh, chunk, k0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BK
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    inside = chunk * C + rows < T
    token, number = batch * T + chunk * C, bh * N + chunk
    cut = inside
    if RESET:
        cut = tl.load(reset + token + rows, mask=inside, other=0) != 0
    first, values = (token * H + head) * DK, (token * H + head) * DV
    q, key, gate, queries, keys = q + first, key + first, gate + first, queries + first, keys + first
    d_q, d_key, d_gate, d_bound = d_q + first, d_key + first, d_gate + first, d_bound + number * DK
    v, d_out, d_own, d_scores = v + values, d_out + values, d_own + number * C, d_scores + number * C * C
    states, d_states = states + number * DK * DV, d_states + number * DK * DV
    links += number * 3 * DK
    near = False
    if MIDDLE:
        near = tl.min(tl.load(links + 2 * DK + k0 + tl.arange(0, BK)), 0) == 0
    if near:
        _tile(
            q, key, v, gate, bound, table, queries, keys, links, d_out, states, d_states, d_scores, d_own, d_q, d_key,
            d_gate, d_bound, cut, inside, H, head, k0, True, MIDDLE, C, DK, DV, BK, LEVELS, LOGITS, KEY, RESET, EXACT,
            FAST,
        )  # fmt: skip
    else:
        _tile(
            q, key, v, gate, bound, table, queries, keys, links, d_out, states, d_states, d_scores, d_own, d_q, d_key,
            d_gate, d_bound, cut, inside, H, head, k0, False, MIDDLE, C, DK, DV, BK, LEVELS, LOGITS, KEY, RESET, EXACT,
            FAST,
        )  # fmt: skip
