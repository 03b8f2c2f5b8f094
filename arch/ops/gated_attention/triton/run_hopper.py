"""The passes over time of `gated_attention` for Hopper: the states at every chunk and what is made of them in one
kernel: forward the outputs, backwards in time the gradients of the values.

State and results lie on their side, [columns of the values, ..]: the state is then the left operand of its product,
which Hopper's matrix instructions read from registers, and everything on the right is what was loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import documents, in_registers, load_tile, operand, product
from .far_channels import far_count, some_far


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def gated_run(
    a, b, c, reset, decays, ways, scores, starts, states, out, final, T, H, N, SEGMENTS, PER_SEGMENT,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    FAR: tl.constexpr, REVERSE: tl.constexpr, START: tl.constexpr, RESET: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """out_i = a_i S + sum over j <= i (REVERSE: j >= i) of a chunk of (a_i . b_j) c_j, and S of every chunk as
    `gated_states` has it: for one segment of PER_SEGMENT chunks and TILE columns of c and out.

    (a, b, c): queries and keys with their decays, and v; REVERSE: the keys, the queries and dO, whose S are the
    gradients of the states, and out dv. These, states and out are descriptors of [B, T, columns] in blocks of [1, C, DK
    or TILE], and of [BH N, DK, DV] in blocks of [1, DK, TILE]. starts, with START: [BH, SEGMENTS, DK, DV]. The last
    state goes to final [BH, DK, DV].

    Of segments where no channel is far, by `ways`; with FAR of the others, where far channels' a_i . b_j, which are
    next to nothing, come from scores (REVERSE: theirs of j and i), a descriptor of [BH N, C, C] in blocks of [1, C, C].
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    rows, keys = tl.arange(0, C), tl.arange(0, DK)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
    if some_far(ways + bh * N * TILES, first * TILES, last * TILES) != FAR:
        return
    # states lie in memory as [DK, DV], here they are [TILE, DK]
    block = keys[None, :] * DV + (tile * TILE + tl.arange(0, TILE))[:, None]
    if START:
        state = tl.load(starts + (bh * SEGMENTS + segment) * DK * DV + block)
    else:
        state = tl.zeros([TILE, DK], tl.float32)
    if REVERSE:
        counted = rows[:, None] <= rows[None, :]
    else:
        counted = rows[:, None] >= rows[None, :]
    # decays between chunks are loaded a step ahead, so that nothing waits for them
    decay = decays + bh * N * 3 * DK + keys
    entry, exit = 0, DK
    if REVERSE:
        entry, exit = DK, 0
    now = decay + (last - 1 if REVERSE else first) * 3 * DK
    entering, through, leaving = tl.load(now + entry), tl.load(now + 2 * DK), tl.load(now + exit)
    count = 0
    if FAR:
        count = far_count(ways + (bh * N + (last - 1 if REVERSE else first)) * TILES, TILES)
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        row = chunk * C
        x = load_tile(a, batch, row, head * DK, C, DK)
        y = load_tile(b, batch, row, head * DK, C, DK)
        z = load_tile(c, batch, row, head * DV + tile * TILE, C, TILE)
        enter, cross, leave = tl.exp2(entering), tl.exp2(through), tl.exp2(leaving)
        following = tl.maximum(chunk - 1, 0) if REVERSE else tl.minimum(chunk + 1, N - 1)
        now = decay + following * 3 * DK
        entering, through, leaving = tl.load(now + entry), tl.load(now + 2 * DK), tl.load(now + exit)
        state *= enter[None, :]
        kept = operand(state, EXACT)
        states.store([(bh * N + chunk).to(tl.int32), 0, tile * TILE], tl.reshape(tl.trans(kept), [1, DK, TILE]))
        score = tl.where(counted, product(in_registers(x, EXACT), tl.trans(y), EXACT), 0.0)
        if RESET:
            document, newest = documents(reset, batch * T + row, row + rows < T, C, RESET)
            score = tl.where(document[:, None] == document[None, :], score, 0.0)
            cross = tl.where(newest > 0, 0.0, cross)
        if FAR:
            own = tl.reshape(scores.load([(bh * N + chunk).to(tl.int32), 0, 0]), [C, C])
            score += tl.where(count > 0, (tl.trans(own) if REVERSE else own).to(tl.float32), 0.0)
            count = far_count(ways + (bh * N + following) * TILES, TILES)
        result = product(kept, tl.trans(x), EXACT)
        if RESET:
            result = tl.where((document == (newest if REVERSE else 0))[None, :], result, 0.0)
        result += product(tl.trans(z), tl.trans(score), EXACT)
        added = in_registers(tl.trans(z), EXACT)
        if RESET:
            added = tl.where((document == (0 if REVERSE else newest))[None, :], added, 0.0)
        state = state * cross[None, :] + product(added, y, EXACT)
        state *= leave[None, :]  # by itself: both decays in one factor could underflow
        out.store([batch, row, head * DV + tile * TILE], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
    if segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * DK * DV + block, state)
