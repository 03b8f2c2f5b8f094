"""The kernel of `decay_attention` without angles for Hopper: `decay_attend`, with other instructions and copies.

    out_i = sum over j <= i (REVERSE: j >= i) of decay(i, j) gain(the earlier row) (a_i . b_j) c_j

is the output for (a, b, c) = (q, k, v), dq for (dO, v, k), and backwards in time dv for (k, q, dO) and dk for
(v, dO, q): four runs of one sequential kernel whose state, the sum of c_j^T b_j, stays in registers. State and outputs
lie on their side, [columns of c, ..]: the state is then the left operand of its product, which Hopper's matrix
instructions read from registers, and everything on the right is what was loaded, in shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import block_offsets, in_registers, load_rows, load_tile, power, product, silu
from .kernels import pair_decays


@triton.jit
def constant_decays(rate, rows, left, C: tl.constexpr):
    """Sums of a chunk's log-decays, `rate` in each row that is `left`: of all, and up to and behind each [C]."""
    whole = rate * tl.minimum(left, C)
    until = rate * (rows + 1)
    return whole, until, tl.minimum(whole - until, 0.0)


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def decay_attend_hopper(
    a, b, c, own, table, skip, initial, sums, totals, states, entering, out, final, d_decay, d_gain, d_skip,
    T, H, G, N, SEGMENTS, PER_SEGMENT, OWN_S,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr,
    CONSTANT: tl.constexpr, KEYS: tl.constexpr, REVERSE: tl.constexpr, START: tl.constexpr, FINAL: tl.constexpr,
    LEARNED: tl.constexpr, GAIN: tl.constexpr, SKIP: tl.constexpr, STAGES: tl.constexpr, SILU: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One segment of PER_SEGMENT chunks, TILE columns of `out` [B, T, H, width].

    KEYS: whether out has the keys' width (dq, dk) or the values'. Then a and b are [B, T, H, DV] and c [B, T, G, DK];
    else a and b [B, T, G, DK], c [B, T, H, DV]. They and out are descriptors for Hopper's copy engine, of
    [B, T, columns] in blocks of [1, C, DV or DK or TILE]. own, read with LEARNED: what `out` is the gradient of.
    SILU, with CONSTANT: q and k are silu of what is given, own [B, T, G, DK], whose gradients dq and dk are; its rows
    lie OWN_S apart.
    CONSTANT: a head's decays are the same at every step: the first is read, and those between two rows of a chunk stay
    in registers.
    The state at the start is that of initial [BH, DK, DV] and of the segments before, from `decay_sums`; with FINAL
    the last one is written to final [BH, DK, DV].
    LEARNED, with KEYS and TILE = C: gradient of the log-decays, d_decay [DK / TILE, B, T, H], by every tile's channels.
    That of a_t is the sum over all pairs of a row t or later with a row before t. Nothing is carried from chunk to
    chunk: pairs that enter a chunk, that leave it and that span it are summed from the states, those inside it are
    counted where they begin less where they end. dq's run leaves the entering ones in `entering` [DK / TILE, B, T, H]
    and the states before every chunk in `states`, a descriptor of [BH N, DK, DV] in blocks of [1, TILE, DV]; dk's does
    the rest.
    GAIN, with DECAY and without CONSTANT: dk's run leaves the gradient of the log of each row's gain in d_gain, laid as
    d_decay.
    SKIP: what has the values' width has skip [H] times c of its row as well; dq's run leaves skip's gradient in d_skip
    [BH, SEGMENTS].
    """
    INNER: tl.constexpr = DV if KEYS else DK  # of a and b
    OUTER: tl.constexpr = DK if KEYS else DV  # of c and out
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    if KEYS:
        inner_column, outer_column = head * INNER, shared * OUTER + tile * TILE
    else:
        inner_column, outer_column = shared * INNER, head * OUTER + tile * TILE
    rows = tl.arange(0, C)
    inner, outer = tl.arange(0, INNER), tile * TILE + tl.arange(0, TILE)
    # states lie in memory as [DK, DV], here they are [TILE, INNER]
    if KEYS:
        block = outer[:, None] * DV + inner[None, :]
    else:
        block = inner[None, :] * DV + outer[:, None]
    size = DK * DV
    if START:
        state = tl.load(initial + bh * size + block)
    else:
        state = tl.zeros([TILE, INNER], tl.float32)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * SEGMENTS + (SEGMENTS - 1 - step if REVERSE else step)
        whole = tl.exp2(tl.load(totals + other)) if DECAY else 1.0
        state = state * whole + tl.load(sums + other * size + block)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    table_size = tl.num_programs(2).to(tl.int64) * N * C
    decays = table + table_size + bh * N * C  # sums from each chunk's start
    early = 2 * table_size  # from there on, those less a gain's logarithm
    if REVERSE:
        counted = rows[:, None] <= rows[None, :]
    else:
        counted = rows[:, None] >= rows[None, :]
    if CONSTANT:
        rate = tl.load(decays - table_size)
        steps = tl.abs(rows[:, None] - rows[None, :])
        weights = power(tl.where(counted, rate * steps, -float("inf")), FAST)
    elif DECAY:
        # a chunk's decays are loaded a chunk ahead, so that nothing waits for them
        ahead = decays + (last - 1 if REVERSE else first) * C
        next_whole, next_until, next_down = tl.load(ahead + C - 1), tl.load(ahead + rows), tl.load(ahead + rows)
        if GAIN and REVERSE:
            next_down = tl.load(ahead + early + rows)
        elif GAIN:
            next_origin = tl.load(ahead + early + rows)
    if SKIP:
        factor, same = tl.load(skip + head), 0.0
    # a number of stages given here (with LEARNED) has all loads made ahead, not only those of products' operands
    for step in tl.range(0, last - first, num_stages=STAGES):
        chunk = last - 1 - step if REVERSE else first + step
        row = chunk * C
        x = load_tile(a, batch, row, inner_column, C, INNER)
        y = load_tile(b, batch, row, inner_column, C, INNER)
        z = load_tile(c, batch, row, outer_column, C, TILE)
        if LEARNED:
            primal = load_tile(own, batch, row, shared * DK + tile * TILE, C, TILE)
            if REVERSE:
                kept = load_tile(states, (bh * N + chunk).to(tl.int32), tile * TILE, 0, TILE, INNER)
                through = tl.sum(state * kept.to(tl.float32))
            else:
                kept = state.to(states.dtype)
                states.store([(bh * N + chunk).to(tl.int32), tile * TILE, 0], tl.reshape(kept, [1, TILE, INNER]))
        if KEYS and SILU:
            place = own + (batch.to(tl.int64) * T + row) * OWN_S + shared * DK
            given = load_rows(place, rows, rows < T - row, OWN_S, tile * TILE, TILE)
        score = product(in_registers(x, EXACT), tl.trans(y), EXACT)
        # across the chunk's start (REVERSE: end)
        result = product(state, tl.trans(x), EXACT)
        if SKIP and KEYS and not REVERSE:  # noqa: SIM102 (apart, as it is known when the kernel is compiled)
            if tile == 0:
                same += tl.sum(tl.where(rows[:, None] == rows[None, :], score, 0.0))
        if CONSTANT:
            whole, until, behind = constant_decays(rate, rows, T - row, C)
            score *= weights
        elif DECAY:
            ahead = decays + (tl.maximum(chunk - 1, 0) if REVERSE else tl.minimum(chunk + 1, N - 1)) * C
            whole, until, down = next_whole, next_until, next_down
            next_whole, next_until, next_down = tl.load(ahead + C - 1), tl.load(ahead + rows), tl.load(ahead + rows)
            if GAIN and REVERSE:
                origin = tl.load(decays + early + row + rows)  # loaded a chunk ahead it slows this run down
                next_down = tl.load(ahead + early + rows)
            elif GAIN:
                origin, next_origin = next_origin, tl.load(ahead + early + rows)
            else:
                origin = until
            if EXACT:
                behind = tl.load(decays + (3 if GAIN else 1) * table_size + row + rows)
                score *= pair_decays(decays - table_size + row, table_size, C, DECAY, REVERSE, EXACT, FAST, GAIN)
            else:
                behind = whole - origin if GAIN else tl.minimum(whole - until, 0.0)
                between = until[None, :] - down[:, None] if REVERSE else down[:, None] - origin[None, :]
                score *= power(tl.where(counted, between, -float("inf")), FAST)
        else:
            score = tl.where(counted, score, 0.0)
        if DECAY:
            result *= power(behind if REVERSE else until, FAST)[None, :]
        if LEARNED:
            place = ((tile * (tl.num_programs(2) // H) + batch) * T + row + rows) * H + head
            crossing = tl.trans(primal) * result
            if REVERSE:
                # pairs that begin at a row, less those that end; a row with itself cancels
                pairs = product(primal, tl.trans(z), EXACT) * score
                if GAIN:
                    begun = tl.sum(pairs, 1) + tl.sum(crossing, 0)
                    tl.store(d_gain + place, begun, mask=rows < T - row)
                    opened = begun - tl.sum(pairs, 0)
                else:
                    opened = tl.sum(pairs, 1) + tl.sum(crossing - pairs, 0)
                gradient = tl.cumsum(opened, 0) - opened
                entered = tl.load(entering + place, mask=rows < T - row, other=0.0)
                gradient += tl.cumsum(entered, 0, reverse=True)
                gradient += through * tl.exp2(whole)
                tl.store(d_decay + place, gradient, mask=rows < T - row)
            else:
                tl.store(entering + place, tl.sum(crossing, 0), mask=rows < T - row)
        # inside it
        result += product(tl.trans(z), tl.trans(score), EXACT)
        # to the next chunk
        if DECAY:
            state *= tl.exp2(whole)
            if CONSTANT or EXACT:
                leave = until if REVERSE else behind
            else:
                # again, as an operand of a product wants it
                leave = tl.load(decays + (early if GAIN and not REVERSE else 0) + row + rows)
                if GAIN and not REVERSE:
                    leave = whole - leave
                else:
                    leave = leave if REVERSE else tl.minimum(whole - leave, 0.0)
            weighted = tl.trans(z) * power(leave, FAST)[None, :]
        else:
            weighted = in_registers(tl.trans(z), EXACT)
        state += product(weighted, y, EXACT)
        if KEYS and SILU:
            result *= silu(tl.trans(given), FAST)[1]
        if SKIP and not KEYS:
            result += factor * tl.trans(z).to(tl.float32)
        out.store([batch, row, head * OUTER + tile * TILE], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
    if SKIP and KEYS and not REVERSE:
        tl.store(d_skip + bh * SEGMENTS + segment, same, mask=tile == 0)
    if FINAL and segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * size + block, state)


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def decay_sums_hopper(
    x, y, table, sums, totals, T, H, G, N, SEGMENTS, PER_SEGMENT,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr,
    CONSTANT: tl.constexpr, REVERSE: tl.constexpr, GAIN: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """What each segment of PER_SEGMENT chunks alone adds to the state after it (REVERSE: to the gradient before it),
    sums [BH, SEGMENTS, DK, DV], fp32, and the log2 of its whole decay, totals [BH, SEGMENTS].

    x: k (REVERSE: q), y: v (dO), descriptors in blocks of [1, C, TILE] and [1, C, DV]. Of the segments but the one that
    comes last, whose sum nothing reads.
    """
    tile, bh = tl.program_id(0), tl.program_id(2)
    segment = tl.program_id(1) + (1 if REVERSE else 0)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    shared = head // (H // G)
    rows = tl.arange(0, C)
    table_size = tl.num_programs(2).to(tl.int64) * N * C
    decays = table + table_size + bh * N * C
    state = tl.zeros([TILE, DV], tl.float32)
    total = 0.0
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    if CONSTANT:
        rate = tl.load(decays - table_size)
    elif DECAY:
        next_whole = tl.load(decays + (last - 1 if REVERSE else first) * C + C - 1)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        row = chunk * C
        weighted = tl.trans(load_tile(x, batch, row, shared * DK + tile * TILE, C, TILE))
        value = load_tile(y, batch, row, head * DV, C, DV)
        if CONSTANT:
            whole, until, behind = constant_decays(rate, rows, T - row, C)
            leave = until if REVERSE else behind
        elif DECAY:
            ahead = decays + (tl.maximum(chunk - 1, 0) if REVERSE else tl.minimum(chunk + 1, N - 1)) * C
            whole, next_whole = next_whole, tl.load(ahead + C - 1)
            leave = tl.load(decays + (0 if REVERSE else (3 if GAIN else 1) * table_size) + row + rows)
        if DECAY:
            weighted = weighted * power(leave, FAST)[None, :]
            state *= tl.exp2(whole)
            total += whole
        state += product(weighted, value, EXACT)
    place = (bh * SEGMENTS + segment) * DK * DV
    tl.store(sums + place + block_offsets(tile * TILE, 0, DV, TILE, DV), state)
    if tile == 0:
        tl.store(totals + bh * SEGMENTS + segment, total)
