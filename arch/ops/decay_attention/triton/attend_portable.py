"""The kernel of `decay_attention` without angles for any GPU and width, which also computes all its gradients.

    out_i = sum over j <= i (REVERSE: j >= i) of decay(i, j) gain(the earlier row) (a_i . b_j) c_j

is the output for (a, b, c) = (q, k, v), dq for (dO, v, k), and backwards in time dv for (k, q, dO) and dk for
(v, dO, q): four runs of one sequential kernel whose state, the sum of b_j^T c_j, stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import load_rows, power, product, store_rows
from .kernels import load_columns, pair_decays


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def decay_attend(
    a, b, c, own, table, skip, initial, sums, totals, states, entering, out, final, d_decay, d_gain, d_skip,
    T, H, G, N, SEGMENTS, PER_SEGMENT, AS, BS, CS, OWN_S, OUT_S,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr, KEYS: tl.constexpr,
    REVERSE: tl.constexpr, START: tl.constexpr, FINAL: tl.constexpr, LEARNED: tl.constexpr, GAIN: tl.constexpr,
    SKIP: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE columns of `out` [B, T, H, width].

    KEYS: whether out has the keys' width (dq, dk) or the values'. Then a and b are [B, T, H, DV] and c [B, T, G, DK];
    else a and b [B, T, G, DK], c [B, T, H, DV]. own, read with LEARNED: what `out` is the gradient of, q or k. Rows of
    these five lie AS, BS, CS, OWN_S and OUT_S apart.
    The state at the start is that of initial [BH, DK, DV] and of the segments before, from `decay_sums`; with FINAL
    the last one is written to final [BH, DK, DV].
    LEARNED, with KEYS: gradient of the log-decays, d_decay [DK / TILE, B, T, H], by every tile's channels. That of a_t
    is the sum over all pairs of a row t or later with a row before t. Nothing is carried from chunk to chunk: pairs
    that enter a chunk, that leave it and that span it are summed from the states, those inside it are counted where
    they begin less where they end. dq's run leaves the entering ones in `entering` [DK / TILE, B, T, H] and the states
    before every chunk in `states` [BH, N, DV, DK]; dk's does the rest.
    GAIN, with DECAY: dk's run leaves the gradient of the log of each row's gain in d_gain, laid as d_decay.
    SKIP: what has the values' width has skip [H] times c of its row as well; dq's run leaves skip's gradient in d_skip
    [BH, SEGMENTS].
    """
    INNER: tl.constexpr = DV if KEYS else DK  # of a and b
    OUTER: tl.constexpr = DK if KEYS else DV  # of c and out
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_column = tile * TILE
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    if KEYS:
        inner_head, outer_head = head, shared
    else:
        inner_head, outer_head = shared, head
    rows = tl.arange(0, C)
    inner, outer = tl.arange(0, INNER), first_column + tl.arange(0, TILE)
    # states lie in memory as [DK, DV], here they are [INNER, TILE]
    if KEYS:
        block = outer[None, :] * DV + inner[:, None]
    else:
        block = inner[:, None] * DV + outer[None, :]
    size = DK * DV
    if START:
        state = tl.load(initial + bh * size + block)
    else:
        state = tl.zeros([INNER, TILE], tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        whole = tl.exp2(tl.load(totals + other)) if DECAY else 1.0
        state = state * whole + tl.load(sums + other * size + block)
    table_size = tl.num_programs(2).to(tl.int64) * N * C
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    if DECAY:
        # a chunk's own decay is loaded a chunk ahead, so that nothing waits for it
        ahead = last - 1 if REVERSE else first
        next_whole = tl.load(table + table_size + (bh * N + ahead) * C + C - 1)
    if SKIP:
        factor, same = tl.load(skip + head), 0.0
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        ahead = tl.maximum(chunk - 1, 0) if REVERSE else tl.minimum(chunk + 1, N - 1)
        inside = rows < T - chunk * C
        token = batch * T + chunk * C
        # The order of the loads and the place of the store are for the compiler: operands that it reads from shared
        # memory before a barrier would wait behind it in registers.
        x = load_rows(a + token * AS + inner_head * INNER, rows, inside, AS, 0, INNER)
        if LEARNED:
            primal = load_rows(own + token * OWN_S + shared * DK, rows, inside, OWN_S, first_column, TILE)
        if LEARNED:
            kept = states + ((bh * N + chunk) * DV + inner[:, None]) * DK + outer[None, :]
            if REVERSE:
                through = tl.sum(state * tl.load(kept).to(tl.float32))
            else:
                tl.store(kept, state.to(states.dtype.element_ty))
        # across the chunk's start (REVERSE: end)
        result = product(x, state, EXACT)
        y = load_columns(b + token * BS + inner_head * INNER, rows, inside, BS, 0, INNER)
        score = product(x, y, EXACT)
        decays = table + (bh * N + chunk) * C
        if SKIP and KEYS and not REVERSE:
            same += tl.sum(tl.where(rows[:, None] == rows[None, :], score, 0.0))
        score *= pair_decays(decays, table_size, C, DECAY, REVERSE, EXACT, FAST, GAIN)
        if DECAY:
            whole = next_whole
            next_whole = tl.load(table + table_size + (bh * N + ahead) * C + C - 1)
            if EXACT or GAIN or not REVERSE:
                reach = tl.load(decays + (1 if not REVERSE else 4 if GAIN else 2) * table_size + rows)
            else:
                reach = tl.minimum(whole - tl.load(decays + table_size + rows), 0.0)
            reach = power(reach, FAST)[:, None]
            leave = power(tl.load(decays + (1 if REVERSE else 4 if GAIN else 2) * table_size + rows), FAST)
            whole = tl.exp2(whole)
            result *= reach
        if LEARNED:
            crossing = tl.sum(primal * result, 1)
        # inside it
        z = load_rows(c + token * CS + outer_head * OUTER, rows, inside, CS, first_column, TILE)
        result += product(score, z, EXACT)
        if LEARNED:
            place = ((tile * (tl.num_programs(2) // H) + batch) * T + chunk * C + rows) * H + head
            if REVERSE:
                pairs = product(primal, tl.trans(z), EXACT)
                pairs = tl.where(rows[:, None] < rows[None, :], pairs * score, 0.0)  # [s, t], s before t
                # pairs that begin at a row, less those that end
                opened = tl.sum(pairs, 1) - tl.sum(pairs, 0) + crossing
                before = tl.load(entering + place, mask=inside, other=0.0)
                gradient = tl.cumsum(opened, 0) - opened + tl.cumsum(before, 0, reverse=True) + through * whole
                tl.store(d_decay + place, gradient, mask=inside)
                if GAIN:
                    tl.store(d_gain + place, tl.sum(primal * result, 1), mask=inside)
            else:
                tl.store(entering + place, crossing, mask=inside)
        # to the next chunk
        if DECAY:
            state *= whole
            y = y * leave[None, :]
        state += product(y, z, EXACT)
        if SKIP and not KEYS:
            result += factor * z
        store_rows(out + token * OUT_S + head * OUTER, result, rows, inside, OUT_S, first_column, TILE)
    if SKIP and KEYS and not REVERSE:
        tl.store(d_skip + bh * SEGMENTS + segment, same, mask=tile == 0)
    if FINAL and segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * size + block, state)
