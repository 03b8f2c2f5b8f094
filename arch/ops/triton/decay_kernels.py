"""The kernels of `decay_attention`: the states before (and, backwards, their gradients after) every chunk, and the
outputs of a chunk. NOTES.md has the plan; decay_backward.py the gradients of a chunk.

MODE is the kind of decay: 0 none, 1 constant per head [H], 2 per step [B, T, H], natural logarithms either way. With
TURN, q and k are doubled to [x cos(t theta), x sin(t theta)] as they are read: the state has 2 DK rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOG2E, LOWEST, block_offsets, cosine, load_rows, product, store_rows, turns


@triton.jit
def clamped(log_decay):
    return tl.maximum(log_decay.to(tl.float32) * LOG2E, LOWEST)


@triton.jit
def row_decays(decay, token, head, H, rows, length, C: tl.constexpr, MODE: tl.constexpr):
    """log2 decays [C] from the chunk's start to each row, from each row to its end, and over the whole chunk."""
    if MODE == 2:
        pointers = decay + (token + rows) * H + head
        own = tl.where(rows < length, clamped(tl.load(pointers, mask=rows < length, other=0.0)), 0.0)
        later = (rows < C - 1) & (rows + 1 < length)
        after = tl.where(later, clamped(tl.load(pointers + H, mask=later, other=0.0)), 0.0)
        return tl.cumsum(own, 0), tl.cumsum(after, 0, reverse=True), tl.sum(own, 0)
    else:
        rate = clamped(tl.load(decay + head))
        whole = tl.minimum(length, C)
        return (rows + 1) * rate, tl.maximum(whole - 1 - rows, 0) * rate, whole * rate


@triton.jit
def pair_decays(decay, token, head, H, rows, length, C: tl.constexpr, MODE: tl.constexpr):
    """The decay from each row [C, 1] down to the others [1, C], 0 above the diagonal."""
    row, column = rows[:, None], rows[None, :]
    if MODE == 0:
        return tl.where(column <= row, 1.0, 0.0)
    elif MODE == 1:
        rate = clamped(tl.load(decay + head))
        return tl.where(column <= row, tl.exp2(tl.maximum(row - column, 0) * rate), 0.0)
    else:
        own = clamped(tl.load(decay + (token + rows) * H + head, mask=rows < length, other=0.0))
        own = tl.where((column < row) & (row < length), own[:, None], 0.0)
        return tl.where(column <= row, tl.exp2(tl.cumsum(own, 0)), 0.0)


@triton.jit(do_not_specialize=["T", "N", "PER_SEGMENT"])
def decay_states(
    x, v, decay, turn_high, turn_low, positions, starts, states, final, totals,
    T, H, G, N, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, START: tl.constexpr, STORE: tl.constexpr, SEGMENTS: tl.constexpr,
    MODE: tl.constexpr, TURN: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`gated_states` (which see) for scalar decays: x is k, with REVERSE q; G heads of x, H of v."""
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k0, v0 = tile % (WIDE // BK) * BK, tile // (WIDE // BK) * BV
    batch, head = bh // H, bh % H
    rows = tl.arange(0, C)
    block = block_offsets(k0, v0, DV, BK, BV)
    shared = head // (H // G)
    if TURN:
        channels = shared * DK + k0 % DK + tl.arange(0, BK)
        high = tl.load(turn_high + channels)[None, :]
        low = tl.load(turn_low + channels)[None, :]
        quarter = tl.where(k0 < DK, 0.0, 0.25)
    if START:
        state = tl.load(starts + (bh * SEGMENTS + segment) * WIDE * DV + block)
    else:
        state = tl.zeros([BK, BV], tl.float32)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        length = T - chunk * C
        inside = rows < length
        token = batch * T + chunk * C
        k = load_rows(x + (token * G + shared) * DK, rows, inside, G * DK, k0 % DK, BK)
        values = load_rows(v + (token * H + head) * DV, rows, inside, H * DV, v0, BV)
        if STORE:
            tl.store(states + (bh * N + chunk) * WIDE * DV + block, state.to(states.dtype.element_ty))
        if TURN:
            position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
            k = k * cosine(turns(position[:, None].to(tl.float32), high, low) - quarter, FAST)
        if MODE > 0:
            from_start, to_end, whole = row_decays(decay, token, head, H, rows, length, C, MODE)
            k = k * tl.exp2(from_start if REVERSE else to_end)[:, None]
            total += whole
            state = state * tl.exp2(whole)
        state += product(tl.trans(k), values, EXACT)
    if STORE:
        if segment == (0 if REVERSE else SEGMENTS - 1):
            tl.store(final + bh * WIDE * DV + block, state)
    else:
        tl.store(final + (bh * SEGMENTS + segment) * WIDE * DV + block, state)
        if v0 == 0:
            tl.store(
                totals + (bh * SEGMENTS + segment) * WIDE + k0 + tl.arange(0, BK), tl.zeros([BK], tl.float32) + total
            )


@triton.jit(do_not_specialize=["T", "N"])
def decay_output(
    q, k, v, decay, turn_high, turn_low, positions, states, out, T, H, G, N, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    MODE: tl.constexpr, TURN: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One [C, BV] tile of the outputs of a chunk."""
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    bh, chunk, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    length = T - chunk * C
    inside = rows < length
    token = batch * T + chunk * C
    keys, values = (token * G + shared) * DK, (token * H + head) * DV
    state_base = states + (bh * N + chunk) * WIDE * DV
    if TURN:
        position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
        position = position[:, None].to(tl.float32)
    score = tl.zeros([C, C], tl.float32)
    result = tl.zeros([C, BV], tl.float32)
    for k0 in range(0, DK, BK):
        query = load_rows(q + keys, rows, inside, G * DK, k0, BK)
        key = load_rows(k + keys, rows, inside, G * DK, k0, BK)
        if TURN:
            channels = shared * DK + k0 + tl.arange(0, BK)
            turn = turns(position, tl.load(turn_high + channels)[None, :], tl.load(turn_low + channels)[None, :])
            for half in tl.static_range(2):
                wave = cosine(turn - 0.25 * half, FAST)
                score += product(query * wave, tl.trans(key * wave), EXACT)
                state = tl.load(state_base + block_offsets(half * DK + k0, v0, DV, BK, BV))
                result += product(query * wave, state, EXACT)
        else:
            score += product(query, tl.trans(key), EXACT)
            state = tl.load(state_base + block_offsets(k0, v0, DV, BK, BV))
            result += product(query, state, EXACT)
    if MODE > 0:
        result *= tl.exp2(row_decays(decay, token, head, H, rows, length, C, MODE)[0])[:, None]
    score *= pair_decays(decay, token, head, H, rows, length, C, MODE)
    result += product(score, load_rows(v + values, rows, inside, H * DV, v0, BV), EXACT)
    store_rows(out + values, result, rows, inside, H * DV, v0, BV)
