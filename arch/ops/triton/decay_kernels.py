"""The parts of `decay_attention`'s kernels: scalar decays inside a chunk, the doubling by angles, and the sum that a
segment of chunks adds to the state.

MODE is the kind of decay: 0 none, 1 constant per head [H], 2 per step [B, T, H], natural logarithms either way. REVERSE
goes backwards in time, from the gradient of the last state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOG2E, LOWEST, block_offsets, cosine, load_rows, product, turns


@triton.jit
def clamped(log_decay):
    return tl.maximum(log_decay.to(tl.float32) * LOG2E, LOWEST)


@triton.jit
def row_decays(decay, token, head, H, rows, length, C: tl.constexpr, MODE: tl.constexpr, EXACT: tl.constexpr):
    """log2 decays [C] from the chunk's start to each row, from each row to its end, and over the whole chunk."""
    if MODE == 2:
        pointers = decay + (token + rows) * H + head
        own = tl.where(rows < length, clamped(tl.load(pointers, mask=rows < length, other=0.0)), 0.0)
        whole, from_start = tl.sum(own, 0), tl.cumsum(own, 0)
        if EXACT:
            later = (rows < C - 1) & (rows + 1 < length)
            after = tl.where(later, clamped(tl.load(pointers + H, mask=later, other=0.0)), 0.0)
            to_end = tl.cumsum(after, 0, reverse=True)
        else:
            to_end = tl.minimum(whole - from_start, 0.0)
        return from_start, to_end, whole
    else:
        rate = clamped(tl.load(decay + head))
        whole = tl.minimum(length, C)
        return (rows + 1) * rate, tl.maximum(whole - 1 - rows, 0) * rate, whole * rate


@triton.jit
def pair_decays(
    decay, token, head, H, rows, length, from_start, C: tl.constexpr, MODE: tl.constexpr, REVERSE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """The decay between two rows [C, C]: from each down to the earlier ones (REVERSE: up to the later ones), else 0."""
    if REVERSE:
        later, earlier = rows[None, :], rows[:, None]
    else:
        later, earlier = rows[:, None], rows[None, :]
    if MODE == 0:
        return tl.where(earlier <= later, 1.0, 0.0)
    elif MODE == 1:
        rate = clamped(tl.load(decay + head))
        return tl.where(earlier <= later, tl.exp2(tl.maximum(later - earlier, 0) * rate), 0.0)
    elif EXACT:  # sums outward from each row: no difference of two sums
        own = clamped(tl.load(decay + (token + rows) * H + head, mask=rows < length, other=0.0))
        row, column = rows[:, None], rows[None, :]
        sums = tl.cumsum(tl.where((column < row) & (row < length), own[:, None], 0.0), 0)
        return tl.where(earlier <= later, tl.exp2(tl.trans(sums) if REVERSE else sums), 0.0)
    else:
        if REVERSE:
            between = from_start[None, :] - from_start[:, None]
        else:
            between = from_start[:, None] - from_start[None, :]
        return tl.where(earlier <= later, tl.exp2(tl.minimum(between, 0.0)), 0.0)


@triton.jit
def waves(positions, inside, rows, high, low, FAST: tl.constexpr):
    """Positions [C, 1] and the cosines and sines of their angles [C, BK]."""
    position = tl.load(positions + rows, mask=inside, other=0)[:, None].to(tl.float32)
    turn = turns(position, high[None, :], low[None, :])
    return position, cosine(turn, FAST), cosine(turn - 0.25, FAST)


@triton.jit(do_not_specialize=["T", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def decay_sums(
    x, y, decay, turn_high, turn_low, positions, sums, totals, T, H, G, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, MODE: tl.constexpr,
    TURN: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """What each segment of PER_SEGMENT chunks alone adds to the state after it (REVERSE: to the gradient before it),
    sums [BH, SEGMENTS, d_k, DV], fp32, and the log2 of its whole decay, totals [BH, SEGMENTS].

    x: k (REVERSE: q) [B, T, G, DK]; y: v (dO) [B, T, H, DV]; with TURN, d_k is 2 DK. Of the segments but the one that
    comes last, whose sum nothing reads.
    """
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    tile, bh = tl.program_id(0), tl.program_id(2).to(tl.int64)
    segment = tl.program_id(1) + (1 if REVERSE else 0)
    k0, v0 = tile % (WIDE // BK) * BK, tile // (WIDE // BK) * BV
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    if TURN:
        channels = shared * DK + k0 % DK + tl.arange(0, BK)
        high, low = tl.load(turn_high + channels), tl.load(turn_low + channels)
    state = tl.zeros([BK, BV], tl.float32)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, tl.cdiv(T, C))
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        length = T - chunk * C
        inside = rows < length
        token = batch * T + chunk * C
        key = load_rows(x + (token * G + shared) * DK, rows, inside, G * DK, k0 % DK, BK)
        value = load_rows(y + (token * H + head) * DV, rows, inside, H * DV, v0, BV)
        if TURN:
            _, cos, sin = waves(positions + batch * POSITION_STRIDE + chunk * C, inside, rows, high, low, FAST)
            key = key * tl.where(k0 < DK, cos, sin)
        if MODE > 0:
            from_start, to_end, whole = row_decays(decay, token, head, H, rows, length, C, MODE, EXACT)
            value = value * tl.exp2(from_start if REVERSE else to_end)[:, None]
            total += whole
            state = state * tl.exp2(whole)
        state += product(tl.trans(key), value, EXACT)
    tl.store(sums + (bh * SEGMENTS + segment) * WIDE * DV + block_offsets(k0, v0, DV, BK, BV), state)
    if tile == 0:
        tl.store(totals + bh * SEGMENTS + segment, total)
