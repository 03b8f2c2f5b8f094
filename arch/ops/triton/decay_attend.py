"""The kernel of `decay_attention`, which also computes all its gradients.

    out_i = sum over j <= i (REVERSE: j >= i) of decay(i, j) (a_i . b_j) c_j

is the output for (a, b, c) = (q, k, v), dq for (dO, v, k), and backwards in time dv for (k, q, dO) and dk for
(v, dO, q): four runs of one sequential kernel whose state, the sum of b_j^T c_j, stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_kernels import load_columns, pair_decays, waves
from .tiles import load_rows, product, row_sums, store_rows


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def decay_attend(
    a, b, c, own, table, turn_high, turn_low, positions, initial, sums, totals, states, entering, out, final, d_turn,
    d_decay, T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr, TURN: tl.constexpr,
    KEYS: tl.constexpr, REVERSE: tl.constexpr, START: tl.constexpr, FINAL: tl.constexpr, LEARNED: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE columns of `out` [B, T, H, width].

    KEYS: whether out has the keys' width (dq, dk) or the values'. Then a and b are [B, T, H, DV] and c [B, T, G, DK];
    else a and b [B, T, G, DK], c [B, T, H, DV]. With TURN whatever has DK columns is doubled by cosines and sines as it
    is read. own, read with KEYS: what `out` is the gradient of, q or k.
    The state at the start is that of initial [BH, d_k, DV] and of the segments before, from `decay_sums`; with FINAL
    the last one is written to final [BH, d_k, DV]. d_turn [BH, SEGMENTS, DK], with TURN and KEYS: this kernel's part of
    the angles' gradient, summed over rows.
    LEARNED, with KEYS: gradient of the log-decays, d_decay [DK / TILE, B, T, H], by every tile's channels. That of a_t
    is the sum over all pairs of a row t or later with a row before t, inside the chunk, across its ends, and over the
    whole of it: sums alone, no differences. Pairs that enter the chunk are summed by dq's run, which leaves them in
    `entering`, and the states before every chunk, [BH, N, DV, d_k], in `states`; the rest by dk's.
    """
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    INNER: tl.constexpr = DV if KEYS else DK  # of a and b
    OUTER: tl.constexpr = DK if KEYS else DV  # of c and out
    INSIDE: tl.constexpr = TURN and not KEYS
    OUTSIDE: tl.constexpr = TURN and KEYS
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_column = tile * TILE
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    if KEYS:
        inner_heads, inner_head, outer_heads, outer_head = H, head, G, shared
    else:
        inner_heads, inner_head, outer_heads, outer_head = G, shared, H, head
    rows = tl.arange(0, C)
    inner, outer = tl.arange(0, INNER), first_column + tl.arange(0, TILE)
    # states lie in memory as [d_k, DV], here they are [INNER, TILE]
    if KEYS:
        block = outer[None, :] * DV + inner[:, None]
    else:
        block = inner[:, None] * DV + outer[None, :]
    second = DK * DV  # that of the sines
    size = WIDE * DV
    if TURN:
        if KEYS:
            channels = shared * DK + outer
        else:
            channels = shared * DK + inner
        high, low = tl.load(turn_high + channels), tl.load(turn_low + channels)
    if START:
        state = tl.load(initial + bh * size + block)
        if TURN:
            sines = tl.load(initial + bh * size + second + block)
    else:
        state = tl.zeros([INNER, TILE], tl.float32)
        if TURN:
            sines = tl.zeros([INNER, TILE], tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        whole = tl.exp2(tl.load(totals + other)) if DECAY else 1.0
        state = state * whole + tl.load(sums + other * size + block)
        if TURN:
            sines = sines * whole + tl.load(sums + other * size + second + block)
    table_size = tl.num_programs(2).to(tl.int64) * N * C
    if OUTSIDE:
        angles = tl.zeros([C, TILE], tl.float32)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        inside = rows < T - chunk * C
        token = batch * T + chunk * C
        # The order of the loads and the place of the store are for the compiler: operands that it reads from shared
        # memory before a barrier would wait behind it in registers.
        inner_rows = (token * inner_heads + inner_head) * INNER
        x = load_rows(a + inner_rows, rows, inside, inner_heads * INNER, 0, INNER)
        if KEYS and (TURN or LEARNED):
            primal = load_rows(own + (token * G + shared) * DK, rows, inside, G * DK, first_column, TILE)
        if INSIDE:
            y = load_rows(b + inner_rows, rows, inside, inner_heads * INNER, 0, INNER)
            _, cos, sin = waves(positions + batch * POSITION_STRIDE + chunk * C, inside, rows, high, low, FAST)
            x_cos, x_sin, y_cos, y_sin = x * cos, x * sin, tl.trans(y * cos), tl.trans(y * sin)
        if LEARNED:
            kept = states + ((bh * N + chunk) * DV + inner[:, None]) * WIDE + outer[None, :]
            if REVERSE:
                through = tl.sum(state * tl.load(kept).to(tl.float32))
                if TURN:
                    through += tl.sum(sines * tl.load(kept + DK).to(tl.float32))
            else:
                tl.store(kept, state.to(states.dtype.element_ty))
                if TURN:
                    tl.store(kept + DK, sines.to(states.dtype.element_ty))
        # across the chunk's start (REVERSE: end)
        if INSIDE:
            result = product(x_cos, state, EXACT)
            score = product(x_cos, y_cos, EXACT)
            result += product(x_sin, sines, EXACT)
            score += product(x_sin, y_sin, EXACT)
        else:
            result = product(x, state, EXACT)
            if OUTSIDE:
                turned = product(x, sines, EXACT)
            y = load_columns(b + inner_rows, rows, inside, inner_heads * INNER, 0, INNER)
            score = product(x, y, EXACT)
        decays = table + (bh * N + chunk) * C
        score *= pair_decays(decays, table_size, C, DECAY, REVERSE, EXACT)
        if DECAY:
            reach = tl.exp2(tl.load(decays + (2 if REVERSE else 1) * table_size + rows))[:, None]
            leave = tl.exp2(tl.load(decays + (1 if REVERSE else 2) * table_size + rows))[:, None]
            whole = tl.exp2(tl.load(decays + table_size + C - 1))
            result *= reach
            if OUTSIDE:
                turned *= reach
        if OUTSIDE:
            position, cos, sin = waves(positions + batch * POSITION_STRIDE + chunk * C, inside, rows, high, low, FAST)
        if LEARNED:
            if OUTSIDE:
                crossing = tl.sum(primal * (result * cos + turned * sin), 1)
            else:
                crossing = tl.sum(primal * result, 1)
        # inside it
        z = load_rows(
            c + (token * outer_heads + outer_head) * OUTER, rows, inside, outer_heads * OUTER, first_column, TILE
        )
        if OUTSIDE:
            z_cos, z_sin = z * cos, z * sin
            result += product(score, z_cos, EXACT)
            turned += product(score, z_sin, EXACT)
            angles += primal * (turned * cos - result * sin) * position
            result = result * cos + turned * sin
        else:
            result += product(score, z, EXACT)
        if LEARNED:
            place = ((tile * (tl.num_programs(2) // H) + batch) * T + chunk * C + rows) * H + head
            if REVERSE:
                # pairs[s, t], s before t; ending[s, r]: those of s with r or later
                if OUTSIDE:
                    pairs = product(primal * cos, tl.trans(z_cos), EXACT)
                    pairs += product(primal * sin, tl.trans(z_sin), EXACT)
                else:
                    pairs = product(primal, tl.trans(z), EXACT)
                row, column = rows[:, None], rows[None, :]
                pairs = tl.where(row < column, pairs * score, 0.0)
                ending = row_sums_right(pairs, tl.where(row >= column, 1.0, 0.0), EXACT)
                before = tl.load(entering + place, mask=inside, other=0.0)
                gradient = tl.sum(tl.where(row < column, ending + crossing[:, None], before[:, None]), 0)
                tl.store(d_decay + place, gradient + through * whole, mask=inside)
            else:
                tl.store(entering + place, crossing, mask=inside)
        # to the next chunk
        if DECAY:
            state *= whole
            if TURN:
                sines *= whole
        if INSIDE:
            if DECAY:
                z = z * leave
            state += product(y_cos, z, EXACT)
            sines += product(y_sin, z, EXACT)
        elif OUTSIDE:
            if DECAY:
                z_cos, z_sin = z_cos * leave, z_sin * leave
            state += product(y, z_cos, EXACT)
            sines += product(y, z_sin, EXACT)
        else:
            if DECAY:
                z = z * leave
            state += product(y, z, EXACT)
        store_rows(out + (token * H + head) * OUTER, result, rows, inside, H * OUTER, first_column, TILE)
    if OUTSIDE:
        tl.store(d_turn + (bh * SEGMENTS + segment) * DK + outer, tl.sum(angles, 0))
    if FINAL and segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * size + block, state)
        if TURN:
            tl.store(final + bh * size + second + block, sines)


@triton.jit
def row_sums_right(x, which, EXACT: tl.constexpr):
    """x @ which for a matrix of 0 and 1 (see `row_sums`)."""
    return tl.trans(row_sums(tl.trans(which).to(tl.float32 if EXACT else tl.bfloat16), tl.trans(x), EXACT))
