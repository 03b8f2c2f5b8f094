"""The kernels of `decay_attention` with angles: keys and queries doubled by cosines and sines as they are read.

The states before every chunk are written once (bf16), by the only kernel that goes through time; outputs and gradients
of all chunks are then computed side by side. The gradient of the values is the output backwards in time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import load_rows, power, product, silu, store_rows
from .kernels import load_columns, pair_decays
from .rotary_angles import anchored, as_half, doubled, halves, load_theta, state_rows, waves


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def rotary_states(
    x, y, table, theta_high, theta_low, positions, initial, sums, totals, states, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE, XS, YS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    START: tl.constexpr, STORE: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The states before (REVERSE: their gradients after) every chunk of a segment, states [BH, N, DV, 2 DK] with the
    columns of `doubled`, and the last one of all, final [BH, 2 DK, DV], fp32. A program has BK channels, cosines and
    sines, and BV values.

    x: k (REVERSE: q) [B, T, G, DK]; y: v (dO) [B, T, H, DV], of rows XS and YS apart. The first state is initial
    [BH, 2 DK, DV] with START. Not STORE: what each segment alone adds, sums [BH, SEGMENTS, 2 DK, DV], fp32, and the
    log2 of its whole decay, totals [BH, SEGMENTS]; of the segments but the one that comes last. With STORE a segment
    starts from the sums before it.
    """
    WIDE: tl.constexpr = 2 * DK
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if REVERSE and not STORE:
        segment += 1
    k0, v0 = tile % (DK // BK) * BK, tile // (DK // BK) * BV
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    size = WIDE * DV
    columns = tl.arange(0, 2 * BK)
    block = state_rows(k0, DK, BK)[None, :] * DV
    block += (v0 + tl.arange(0, BV))[:, None]
    high, low = load_theta(theta_high, theta_low, shared * DK, k0, BK)
    if START and STORE:
        state = tl.load(initial + bh * size + block)
    else:
        state = tl.zeros([BV, 2 * BK], tl.float32)
    if STORE:
        for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
            other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
            whole = tl.exp2(tl.load(totals + other)) if DECAY else 1.0
            state = state * whole + tl.load(sums + other * size + block)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    table_size = tl.num_programs(2).to(tl.int64) * N * C
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = rows < T - chunk * C
        token = batch * T + chunk * C
        position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
        key = load_rows(x + token * XS + shared * DK, rows, inside, XS, k0, BK)
        value = load_columns(y + token * YS + head * DV, rows, inside, YS, v0, BV)
        if STORE:
            place = states + (bh * N + chunk) * size + (v0 + tl.arange(0, BV))[:, None] * WIDE
            tl.store(place + 2 * k0 + columns[None, :], state.to(states.dtype.element_ty))
        _, cos, sin = waves(position, high, low, FAST)
        key = anchored(key, inside)
        if DECAY:
            decays = table + (bh * N + chunk) * C
            whole = tl.load(decays + table_size + C - 1)
            total += whole
            state *= tl.exp2(whole)
            leave = power(tl.load(decays + (1 if REVERSE else 2) * table_size + rows), FAST)[:, None]
            cos, sin = cos * leave, sin * leave
        state += product(value, doubled(key, cos, sin, EXACT), EXACT)
    if STORE:
        if segment == (0 if REVERSE else SEGMENTS - 1):
            tl.store(final + bh * size + block, state)
    else:
        tl.store(sums + (bh * SEGMENTS + segment) * size + block, state)
        if tile == 0:
            tl.store(totals + bh * SEGMENTS + segment, total)


@triton.jit(do_not_specialize=["T", "N", "POSITION_STRIDE"])
def rotary_output(
    q, k, v, table, theta_high, theta_low, positions, states, out, T, H, G, N, POSITION_STRIDE, QS, KS, VS, OUT_S,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The outputs [B, T, H, DV] of q, k [B, T, G, DK], v [B, T, H, DV], of rows QS, KS, VS and OUT_S apart; a program
    has a chunk."""
    value_rows(
        q, k, v, table, theta_high, theta_low, positions, states, out, T, H, G, N, POSITION_STRIDE, QS, KS, VS, OUT_S,
        tl.program_id(0), tl.program_id(1).to(tl.int64), C, DK, DV, BK, STAGES, DECAY, False, EXACT, FAST,
    )  # fmt: skip


@triton.jit
def value_rows(
    a, b, c, table, theta_high, theta_low, positions, states, out, T, H, G, N, POSITION_STRIDE, AS, BS, CS, OUT_S,
    chunk, bh,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
    REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """A chunk of the outputs of (q, k, v) and states, or, REVERSE, of d_v of (k, q, d_out) and d_states. Rows of a, b,
    c and out lie AS, BS, CS and OUT_S apart."""
    WIDE: tl.constexpr = 2 * DK
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
    start = states + (bh * N + chunk) * DV * WIDE
    result = tl.zeros([C, DV], tl.float32)
    score = tl.zeros([C, C], tl.float32)
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        x = load_rows(a + token * AS + shared * DK, rows, inside, AS, first, BK)
        y = load_rows(b + token * BS + shared * DK, rows, inside, BS, first, BK)
        state = tl.load(start + tl.arange(0, DV)[None, :] * WIDE + 2 * first + tl.arange(0, 2 * BK)[:, None])
        high, low = load_theta(theta_high, theta_low, shared * DK, first, BK)
        _, cos, sin = waves(position, high, low, FAST)
        x, y = doubled(anchored(x, inside), cos, sin, EXACT), doubled(anchored(y, inside), cos, sin, EXACT)
        score += product(x, tl.trans(y), EXACT)
        result += product(x, state, EXACT)
    table_size = tl.num_programs(1).to(tl.int64) * N * C
    decays = table + (bh * N + chunk) * C
    score *= pair_decays(decays, table_size, C, DECAY, REVERSE, EXACT, FAST)
    if DECAY:
        result *= power(tl.load(decays + (2 if REVERSE else 1) * table_size + rows), FAST)[:, None]
    z = load_rows(c + token * CS + head * DV, rows, inside, CS, 0, DV)
    result += product(score, z, EXACT)
    store_rows(out + token * OUT_S + head * DV, result, rows, inside, OUT_S, 0, DV)


@triton.jit(do_not_specialize=["T", "N", "POSITION_STRIDE"])
def rotary_backward(
    q, k, given_q, given_k, v, d_out, table, theta_high, theta_low, positions, states, d_states, d_q, d_k, d_v,
    d_angles, d_decay, T, H, G, N, POSITION_STRIDE, QS, KS, GIVEN_QS, GIVEN_KS, VS, DO_S, DQ_S, DK_S,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    VALUE_BK: tl.constexpr, VALUE_STAGES: tl.constexpr, DECAY: tl.constexpr, LEARNED: tl.constexpr,
    SILU: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """d_q, d_k [B, T, H, DK], d_v [B, T, H, DV]: a chunk has a program for each, side by side, so that what they share
    is read from DRAM once. d_q and d_k are of given_q and given_k: q and k, or, SILU, what these are silu of. Rows lie
    QS, KS, GIVEN_QS, GIVEN_KS, DO_S (d_out), DQ_S, DK_S and VS (v and d_v) apart.

    d_angles [2, BH, N, DK]: d_q's and d_k's parts of the angles' gradient, summed over a chunk's rows.
    LEARNED: their parts of the log-decays' gradient, d_decay [2, B, T, H]. That of a_t is the sum over all pairs of a
    row t or later with a row before t. Nothing is carried from chunk to chunk: pairs that enter a chunk, that leave it
    and that span it are summed from the states, those inside it are counted where they begin less where they end.
    """
    chunk, bh = tl.program_id(0) // 3, tl.program_id(1).to(tl.int64)
    kind = tl.program_id(0) % 3
    if kind == 0:
        key_gradient(
            d_out, v, k, given_q, table, theta_high, theta_low, positions, states, states, d_q, d_angles, d_decay,
            T, H, G, N, POSITION_STRIDE, DO_S, VS, KS, GIVEN_QS, DQ_S, chunk, bh, C, DK, DV, BK, STAGES, DECAY,
            LEARNED, False, SILU, EXACT, FAST,
        )  # fmt: skip
    elif kind == 1:
        key_gradient(
            v, d_out, q, given_k, table, theta_high, theta_low, positions, d_states, states, d_k, d_angles, d_decay,
            T, H, G, N, POSITION_STRIDE, VS, DO_S, QS, GIVEN_KS, DK_S, chunk, bh, C, DK, DV, BK, STAGES, DECAY,
            LEARNED, True, SILU, EXACT, FAST,
        )  # fmt: skip
    else:
        value_rows(
            k, q, d_out, table, theta_high, theta_low, positions, d_states, d_v, T, H, G, N, POSITION_STRIDE,
            KS, QS, DO_S, VS, chunk, bh, C, DK, DV, VALUE_BK, VALUE_STAGES, DECAY, True, EXACT, FAST,
        )  # fmt: skip


@triton.jit
def key_gradient(
    a, b, c, own, table, theta_high, theta_low, positions, states, before, out, d_angles, d_decay,
    T, H, G, N, POSITION_STRIDE, AS, BS, CS, OWN_S, OUT_S, chunk, bh,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
    LEARNED: tl.constexpr, REVERSE: tl.constexpr, SILU: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradient `out` of `own`, given_q or given_k: (a, b, c, states) = (d_out, v, k, states), or, REVERSE, (v,
    d_out, q, d_states). before: the states before every chunk. Rows of the first four and of out lie AS, BS, CS, OWN_S
    and OUT_S apart."""
    WIDE: tl.constexpr = 2 * DK
    side = 1 if REVERSE else 0
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    places = positions + batch * POSITION_STRIDE + chunk * C + rows
    start = (bh * N + chunk) * DV * WIDE
    count = tl.num_programs(1).to(tl.int64)
    table_size = count * N * C
    decays = table + (bh * N + chunk) * C
    x = load_rows(a + token * AS + head * DV, rows, inside, AS, 0, DV)
    weights = product(x, tl.trans(load_rows(b + token * BS + head * DV, rows, inside, BS, 0, DV)), EXACT)
    weights *= pair_decays(decays, table_size, C, DECAY, REVERSE, EXACT, FAST)
    if LEARNED:
        scores, crossing, through = tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32), 0.0
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        primal = load_rows(own + token * OWN_S + shared * DK, rows, inside, OWN_S, first, BK)
        z = load_rows(c + token * CS + shared * DK, rows, inside, CS, first, BK)
        place = start + tl.arange(0, DV)[:, None] * WIDE + 2 * first + tl.arange(0, 2 * BK)[None, :]
        state = tl.load(states + place)
        high, low = load_theta(theta_high, theta_low, shared * DK, first, BK)
        result = product(x, state, EXACT)
        position, cos, sin = waves(tl.load(places, mask=inside, other=0), high, low, FAST)
        if DECAY:
            result *= power(tl.load(decays + (2 if REVERSE else 1) * table_size + rows), FAST)[:, None]
        z = doubled(as_half(z, EXACT), cos, sin, EXACT)
        primal = as_half(primal, EXACT)
        if SILU:
            primal, slope = silu(primal, FAST)
        if LEARNED:
            rotated = doubled(primal, cos, sin, EXACT)
            crossing += tl.sum(rotated * result, 1)
            if REVERSE:
                scores += product(rotated, tl.trans(z), EXACT)
                through += tl.sum(state.to(tl.float32) * tl.load(before + place))
        result += product(weights, z, EXACT)
        upper, lower = halves(result)
        angles = primal * (lower * cos - upper * sin) * position
        tl.store(d_angles + ((side * count + bh) * N + chunk) * DK + first + tl.arange(0, BK), tl.sum(angles, 0))
        gradient = upper * cos + lower * sin
        if SILU:
            gradient *= slope
        store_rows(out + token * OUT_S + head * DK, gradient, rows, inside, OUT_S, first, BK)
    if LEARNED:
        if REVERSE:
            pairs = tl.where(rows[:, None] < rows[None, :], scores * weights, 0.0)  # [s, t], s before t
            opened = tl.sum(pairs, 1) - tl.sum(pairs, 0) + crossing  # pairs that begin at a row, less those that end
            total = tl.cumsum(opened, 0) - opened + through * tl.exp2(tl.load(decays + table_size + C - 1))
        else:
            total = tl.cumsum(crossing, 0, reverse=True)
        tl.store(d_decay + (side * (count // H) * T + token + rows) * H + head, total, mask=inside)
