"""The kernels of `decay_attention` with angles: keys and queries doubled by cosines and sines as they are read.

The states before every chunk are written once (bf16), by the only kernel that goes through time; outputs and gradients
of all chunks are then computed side by side. The gradient of the values is the output backwards in time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_kernels import anchored, load_columns, pair_decays, waves
from .tiles import load_rows, power, product, store_rows


@triton.jit
def turns(turn_high, turn_low, channel, first, BK: tl.constexpr):
    """theta / 2 pi of BK channels in two parts."""
    channels = channel + first + tl.arange(0, BK)
    return tl.load(turn_high + channels), tl.load(turn_low + channels)


@triton.jit
def doubled(x, cos, sin, EXACT: tl.constexpr):
    """x cos and x sin [C, BK] as an operand of products, [C, 2 BK]: eight channels' cosines, then their sines, and so
    on. In the layout of a product's result a thread has a channel's two numbers and needs no other's."""
    if EXACT:
        both = tl.join(x * cos, x * sin)
    else:
        both = tl.join((x * cos).to(tl.bfloat16), (x * sin).to(tl.bfloat16))
    both = tl.permute(tl.reshape(both, [x.shape[0], x.shape[1] // 8, 8, 2]), [0, 1, 3, 2])
    return tl.reshape(both, [x.shape[0], 2 * x.shape[1]])


@triton.jit
def halves(x):
    """The cosines' and the sines' columns, each [C, BK], of [C, 2 BK]."""
    both = tl.permute(tl.reshape(x, [x.shape[0], x.shape[1] // 16, 2, 8]), [0, 1, 3, 2])
    return tl.split(tl.reshape(both, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def as_half(x, EXACT: tl.constexpr):
    """x in fp32, as one of the `halves` of a product that is exact: of x and the unit matrix, whose columns stand there
    twice. In any other layout, even an equal one by another name, the compiler computes angles a second time."""
    if EXACT:
        return x
    else:
        rows, columns = tl.arange(0, x.shape[1]), tl.arange(0, 2 * x.shape[1])
        unit = (rows[:, None] == (columns // 16 * 8 + columns % 8)[None, :]).to(tl.bfloat16)
        half, _ = halves(tl.dot(x, unit))
        return half


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def turned_states(
    x, y, table, turn_high, turn_low, positions, initial, sums, totals, states, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    START: tl.constexpr, STORE: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The states before (REVERSE: their gradients after) every chunk of a segment, states [BH, N, DV, 2 DK] with columns
    as `doubled` has them, and the last one of all, final [BH, 2 DK, DV], fp32. A program has BK channels' cosines and sines and BV values.

    x: k (REVERSE: q) [B, T, G, DK]; y: v (dO) [B, T, H, DV]. The first state is initial [BH, 2 DK, DV] with START. Not
    STORE: what each segment alone adds, sums [BH, SEGMENTS, 2 DK, DV], fp32, and the log2 of its whole decay, totals
    [BH, SEGMENTS]; of the segments but the one that comes last. With STORE a segment starts from the sums before it.
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
    block = (k0 + columns // 16 * 8 + columns % 8 + columns // 8 % 2 * DK)[None, :] * DV + (v0 + tl.arange(0, BV))[:, None]
    high, low = turns(turn_high, turn_low, shared * DK, k0, BK)
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
        key = load_rows(x + (token * G + shared) * DK, rows, inside, G * DK, k0, BK)
        value = load_columns(y + (token * H + head) * DV, rows, inside, H * DV, v0, BV)
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
def turned_output(
    q, k, v, table, turn_high, turn_low, positions, states, out, T, H, G, N, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """out [B, T, H, DV]; q, k [B, T, G, DK]; v [B, T, H, DV]; states [BH, N, DV, 2 DK]."""
    WIDE: tl.constexpr = 2 * DK
    chunk, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
    inner = (token * G + shared) * DK
    start = states + (bh * N + chunk) * DV * WIDE
    result = tl.zeros([C, DV], tl.float32)
    score = tl.zeros([C, C], tl.float32)
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        x = load_rows(q + inner, rows, inside, G * DK, first, BK)
        y = load_rows(k + inner, rows, inside, G * DK, first, BK)
        state = tl.load(start + tl.arange(0, DV)[None, :] * WIDE + 2 * first + tl.arange(0, 2 * BK)[:, None])
        high, low = turns(turn_high, turn_low, shared * DK, first, BK)
        _, cos, sin = waves(position, high, low, FAST)
        x, y = (doubled(anchored(x, inside), cos, sin, EXACT), doubled(anchored(y, inside), cos, sin, EXACT))
        score += product(x, tl.trans(y), EXACT)
        result += product(x, state, EXACT)
    table_size = tl.num_programs(1).to(tl.int64) * N * C
    decays = table + (bh * N + chunk) * C
    score *= pair_decays(decays, table_size, C, DECAY, False, EXACT, FAST)
    if DECAY:
        result *= power(tl.load(decays + table_size + rows), FAST)[:, None]
    value = load_rows(v + (token * H + head) * DV, rows, inside, H * DV, 0, DV)
    result += product(score, value, EXACT)
    store_rows(out + (token * H + head) * DV, result, rows, inside, H * DV, 0, DV)


@triton.jit(do_not_specialize=["T", "N", "POSITION_STRIDE"])
def turned_backward(
    q, k, v, d_out, table, turn_high, turn_low, positions, states, d_states, d_q, d_k, d_v, d_turn, d_decay,
    T, H, G, N, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr,
    LEARNED: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """d_q and d_k [B, T, H, DK], d_v [B, T, H, DV], and a chunk's part of the angles' gradient, d_turn [BH, N, DK].

    LEARNED: gradient of the log-decays, d_decay [B, T, H]. That of a_t is the sum over all pairs of a row t or later
    with a row before t. Nothing is carried from chunk to chunk: pairs that enter a chunk, that leave it and that span
    it are summed from the states, those inside it are counted where they begin less where they end.
    """
    WIDE: tl.constexpr = 2 * DK
    chunk, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    places = positions + batch * POSITION_STRIDE + chunk * C + rows
    inner, outer = (token * G + shared) * DK, (token * H + head) * DV
    start = (bh * N + chunk) * DV * WIDE
    table_size = tl.num_programs(1).to(tl.int64) * N * C
    decays = table + (bh * N + chunk) * C
    gradient = load_rows(d_out + outer, rows, inside, H * DV, 0, DV)
    value = load_rows(v + outer, rows, inside, H * DV, 0, DV)
    weights = product(gradient, tl.trans(value), EXACT)
    weights *= pair_decays(decays, table_size, C, DECAY, False, EXACT, FAST)
    across = tl.trans(weights)
    scores = tl.zeros([C, C], tl.float32)  # rows are keys
    of_value = tl.zeros([C, DV], tl.float32)
    if LEARNED:
        entering, leaving, through = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), 0.0
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        x = load_rows(q + inner, rows, inside, G * DK, first, BK)
        y = load_rows(k + inner, rows, inside, G * DK, first, BK)
        place = start + tl.arange(0, DV)[:, None] * WIDE + 2 * first + tl.arange(0, 2 * BK)[None, :]
        state, d_state = tl.load(states + place), tl.load(d_states + place)
        high, low = turns(turn_high, turn_low, shared * DK, first, BK)
        position, cos, sin = waves(tl.load(places, mask=inside, other=0), high, low, FAST)
        x, y = as_half(x, EXACT), as_half(y, EXACT)
        x_turned, y_turned = doubled(x, cos, sin, EXACT), doubled(y, cos, sin, EXACT)
        scores += product(y_turned, tl.trans(x_turned), EXACT)
        of_value += product(y_turned, tl.trans(d_state), EXACT)
        result = product(gradient, state, EXACT)
        if DECAY:
            result *= power(tl.load(decays + table_size + rows), FAST)[:, None]
        if LEARNED:
            entering += tl.sum(x_turned * result, 1)
        result += product(weights, y_turned, EXACT)
        upper, lower = halves(result)
        angles = x * (lower * cos - upper * sin)
        store_rows(d_q + (token * H + head) * DK, upper * cos + lower * sin, rows, inside, H * DK, first, BK)
        result = product(value, d_state, EXACT)
        if DECAY:
            result *= power(tl.load(decays + 2 * table_size + rows), FAST)[:, None]
        if LEARNED:
            leaving += tl.sum(y_turned * result, 1)
            through += tl.sum(state.to(tl.float32) * d_state)
        result += product(across, x_turned, EXACT)
        upper, lower = halves(result)
        angles += y * (lower * cos - upper * sin)
        store_rows(d_k + (token * H + head) * DK, upper * cos + lower * sin, rows, inside, H * DK, first, BK)
        tl.store(d_turn + (bh * N + chunk) * DK + first + tl.arange(0, BK), tl.sum(angles * position, 0))
    if LEARNED:
        pairs = tl.where(rows[:, None] < rows[None, :], scores * across, 0.0)  # [s, t], s before t
        opened = tl.sum(pairs, 1) - tl.sum(pairs, 0) + leaving  # pairs that begin at a row, less those that end there
        total = tl.cumsum(opened, 0) - opened + tl.cumsum(entering, 0, reverse=True)
        total += through * tl.exp2(tl.load(decays + table_size + C - 1))
        tl.store(d_decay + (token + rows) * H + head, total, mask=inside)
    scores *= pair_decays(decays, table_size, C, DECAY, True, EXACT, FAST)
    if DECAY:
        of_value *= power(tl.load(decays + 2 * table_size + rows), FAST)[:, None]
    of_value += product(scores, gradient, EXACT)
    store_rows(d_v + outer, of_value, rows, inside, H * DV, 0, DV)
