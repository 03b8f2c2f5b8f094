"""Outputs and gradients of the values of one chunk, with keys and queries turned: the same, but backwards in time.

A state is stored before (REVERSE: after) every block of INTERVAL chunks, 1 or 2. It knows nothing of the block's rows:
one half of a block of two takes the other's in itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_kernels import pair_decays
from .tiles import load_rows, operand, power, product, store_rows
from .turned_angles import doubled, entering, turns, waves


@triton.jit
def placed(BEGIN, KINDS: tl.constexpr, ORDER: tl.constexpr):
    """A program's kind of KINDS, chunk, from BEGIN on, and sequence and head, of a grid [KINDS chunks, BH]. ORDER 0: a
    sequence's chunks follow one another; 1, -1: all sequences side by side, from the first, from the last chunk on."""
    if ORDER == 0:
        number, bh = tl.program_id(0), tl.program_id(1)
        return number % KINDS, BEGIN + number // KINDS, bh.to(tl.int64)
    else:
        number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        chunk = number // KINDS // tl.num_programs(1)
        if ORDER < 0:
            chunk = tl.num_programs(0) // KINDS - 1 - chunk
        return number % KINDS, BEGIN + chunk, (number // KINDS % tl.num_programs(1)).to(tl.int64)


@triton.jit
def other_half(chunk, N, INTERVAL: tl.constexpr, REVERSE: tl.constexpr):
    """Whether chunk is the later (REVERSE: the earlier) of the two of a block, whose state knows nothing of the other,
    chunk - 1 (chunk + 1)."""
    if REVERSE:
        return (INTERVAL == 2) and (chunk % 2 == 0) & (chunk + 1 < N)
    else:
        return (INTERVAL == 2) and (chunk % 2 == 1)


@triton.jit
def score_place(scores, bh, number, N, INTERVAL: tl.constexpr, C: tl.constexpr):
    """Of one of a sequence's matrices [C, C] of kept scores: those of the N chunks, and behind them, of every whole
    block of two, those of the later chunk's rows with the earlier one's."""
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return scores + (bh * (N + (N // 2 if INTERVAL == 2 else 0)) + number) * C * C + rows * C + columns


@triton.jit
def value_rows(
    a, b, c, table, turn_high, turn_low, positions, states, scores, out, T, H, G, N, POSITION_STRIDE, chunk, bh,
    INTERVAL: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, DECAY: tl.constexpr, KEPT: tl.constexpr, REVERSE: tl.constexpr,
    ACTIVATION: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """A chunk of the outputs of (q, k, v) and states, or, REVERSE, of d_v of (k, q, d_out) and d_states."""
    if other_half(chunk, N, INTERVAL, REVERSE):
        value_half(
            a, b, c, table, turn_high, turn_low, positions, states, scores, out, T, H, G, N, POSITION_STRIDE, chunk, bh,
            True, INTERVAL, C, DK, DV, BK, STAGES, DECAY, KEPT, REVERSE, ACTIVATION, EXACT, FAST,
        )  # fmt: skip
    else:
        value_half(
            a, b, c, table, turn_high, turn_low, positions, states, scores, out, T, H, G, N, POSITION_STRIDE, chunk, bh,
            False, INTERVAL, C, DK, DV, BK, STAGES, DECAY, KEPT, REVERSE, ACTIVATION, EXACT, FAST,
        )  # fmt: skip


@triton.jit
def value_half(
    a, b, c, table, turn_high, turn_low, positions, states, scores, out, T, H, G, N, POSITION_STRIDE, chunk, bh,
    OTHER: tl.constexpr, INTERVAL: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, STAGES: tl.constexpr, DECAY: tl.constexpr, KEPT: tl.constexpr, REVERSE: tl.constexpr,
    ACTIVATION: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`value_rows`; OTHER: with the other half of the block, whole."""
    WIDE: tl.constexpr = 2 * DK
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
    inner = (token * G + shared) * DK
    start = states + (bh * tl.cdiv(N, INTERVAL) + chunk // INTERVAL) * DV * WIDE
    result = tl.zeros([C, DV], tl.float32)
    score = tl.zeros([C, C], tl.float32)
    if OTHER:
        move = C if REVERSE else -C
        near = rows + move < T - chunk * C
        step = tl.load(positions + batch * POSITION_STRIDE + chunk * C + move + rows, mask=near, other=0)
        across = tl.zeros([C, C], tl.float32)
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        x = load_rows(a + inner, rows, inside, G * DK, first, BK)
        y = load_rows(b + inner, rows, inside, G * DK, first, BK)
        state = tl.load(start + tl.arange(0, DV)[None, :] * WIDE + 2 * first + tl.arange(0, 2 * BK)[:, None])
        high, low = turns(turn_high, turn_low, shared * DK, first, BK)
        _, cos, sin = waves(position, high, low, FAST)
        x = doubled(entering(x, inside, ACTIVATION, FAST), cos, sin, EXACT)
        y = doubled(entering(y, inside, ACTIVATION, FAST), cos, sin, EXACT)
        score += product(x, tl.trans(y), EXACT)
        result += product(x, state, EXACT)
        if OTHER:
            y = load_rows(b + inner + move * G * DK, rows, near, G * DK, first, BK)
            _, cos, sin = waves(step, high, low, FAST)
            y = doubled(entering(y, near, ACTIVATION, FAST), cos, sin, EXACT)
            across += product(x, tl.trans(y), EXACT)
    table_size = tl.num_programs(1).to(tl.int64) * N * C
    decays = table + (bh * N + chunk) * C
    score *= pair_decays(decays, table_size, C, DECAY, REVERSE, EXACT, FAST)
    if DECAY:
        result *= power(tl.load(decays + (2 if REVERSE else 1) * table_size + rows), FAST)[:, None]
    if KEPT:
        tl.store(score_place(scores, bh, chunk, N, INTERVAL, C), operand(score, EXACT))
        if OTHER:
            tl.store(score_place(scores, bh, N + chunk // 2, N, INTERVAL, C), operand(across, EXACT))
    z = load_rows(c + (token * H + head) * DV, rows, inside, H * DV, 0, DV)
    result += product(score, z, EXACT)
    if OTHER:
        z = load_rows(c + (token * H + head) * DV + move * H * DV, rows, near, H * DV, 0, DV)
        result += product(across, z, EXACT)
    store_rows(out + (token * H + head) * DV, result, rows, inside, H * DV, 0, DV)


@triton.jit
def value_gradient(
    k, d_out, table, turn_high, turn_low, positions, d_states, scores, d_v, T, H, G, N, POSITION_STRIDE, chunk, bh,
    INTERVAL: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, DECAY: tl.constexpr, ACTIVATION: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """A chunk of d_v by the scores that the forward kept."""
    WIDE: tl.constexpr = 2 * DK
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    inside = rows < T - chunk * C
    token = batch * T + chunk * C
    position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
    start = d_states + (bh * tl.cdiv(N, INTERVAL) + chunk // INTERVAL) * DV * WIDE
    result = tl.zeros([C, DV], tl.float32)
    for first in tl.range(0, DK, BK, num_stages=STAGES):
        x = load_rows(k + (token * G + shared) * DK, rows, inside, G * DK, first, BK)
        state = tl.load(start + tl.arange(0, DV)[None, :] * WIDE + 2 * first + tl.arange(0, 2 * BK)[:, None])
        high, low = turns(turn_high, turn_low, shared * DK, first, BK)
        _, cos, sin = waves(position, high, low, FAST)
        result += product(doubled(entering(x, inside, ACTIVATION, FAST), cos, sin, EXACT), state, EXACT)
    if DECAY:
        leave = tl.load(table + (2 * tl.num_programs(1).to(tl.int64) * N + bh * N + chunk) * C + rows)
        result *= power(leave, FAST)[:, None]
    outer = (token * H + head) * DV
    score = tl.load(score_place(scores, bh, chunk, N, INTERVAL, C))
    result += product(tl.trans(score), load_rows(d_out + outer, rows, inside, H * DV, 0, DV), EXACT)
    if other_half(chunk, N, INTERVAL, True):
        score = tl.load(score_place(scores, bh, N + chunk // 2, N, INTERVAL, C))
        z = load_rows(d_out + outer + C * H * DV, rows, rows + C < T - chunk * C, H * DV, 0, DV)
        result += product(tl.trans(score), z, EXACT)
    store_rows(d_v + outer, result, rows, inside, H * DV, 0, DV)
