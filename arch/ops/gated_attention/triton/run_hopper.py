"""The passes over time of `gated_attention` for Hopper: the states at every chunk and what is made of them in one
kernel: forward the outputs, backwards in time the gradients of the values.

State and results lie on their side, [columns of the values, ..]: the state is then the left operand of its product,
which Hopper's matrix instructions read from registers, and everything on the right is what was loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import in_registers, load_tile, operand, product


@triton.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT"])
def gated_run(
    a, b, c, decays, starts, states, out, final, T, H, N, SEGMENTS, PER_SEGMENT,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, REVERSE: tl.constexpr,
    START: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """out_i = a_i S + sum over j <= i (REVERSE: j >= i) of a chunk of (a_i . b_j) c_j, and S of every chunk as
    `gated_states` has it: for one segment of PER_SEGMENT chunks and TILE columns of c and out.

    (a, b, c): queries and keys with their decays, and v; REVERSE: the keys, the queries and dO, whose S are the
    gradients of the states, and out dv. These, states and out are descriptors of [B, T, columns] in blocks of [1, C, DK
    or TILE], and of [BH N, DK, DV] in blocks of [1, DK, TILE]. starts, with START: [BH, SEGMENTS, DK, DV]. The last
    state goes to final [BH, DK, DV]. out is wrong in chunks where channels are not referred to the middle.
    """
    tile, segment, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    rows, keys = tl.arange(0, C), tl.arange(0, DK)
    # states lie in memory as [DK, DV], here they are [TILE, DK]
    block = keys[None, :] * DV + (tile * TILE + tl.arange(0, TILE))[:, None]
    if START:
        state = tl.load(starts + (bh * SEGMENTS + segment) * DK * DV + block)
    else:
        state = tl.zeros([TILE, DK], tl.float32)
    first = segment * PER_SEGMENT
    last = tl.minimum(first + PER_SEGMENT, N)
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
    for step in range(0, last - first):
        chunk = last - 1 - step if REVERSE else first + step
        row = chunk * C
        x = load_tile(a, batch, row, head * DK, C, DK)
        y = load_tile(b, batch, row, head * DK, C, DK)
        z = load_tile(c, batch, row, head * DV + tile * TILE, C, TILE)
        enter, cross, leave = tl.exp2(entering), tl.exp2(through), tl.exp2(leaving)
        now = decay + (tl.maximum(chunk - 1, 0) if REVERSE else tl.minimum(chunk + 1, N - 1)) * 3 * DK
        entering, through, leaving = tl.load(now + entry), tl.load(now + 2 * DK), tl.load(now + exit)
        state *= enter[None, :]
        kept = operand(state, EXACT)
        states.store([(bh * N + chunk).to(tl.int32), 0, tile * TILE], tl.reshape(tl.trans(kept), [1, DK, TILE]))
        score = tl.where(counted, product(in_registers(x, EXACT), tl.trans(y), EXACT), 0.0)
        result = product(kept, tl.trans(x), EXACT)
        result += product(tl.trans(z), tl.trans(score), EXACT)
        state = state * cross[None, :] + product(in_registers(tl.trans(z), EXACT), y, EXACT)
        state *= leave[None, :]  # by itself: both decays in one factor could underflow
        out.store([batch, row, head * DV + tile * TILE], tl.reshape(tl.trans(result).to(out.dtype), [1, C, TILE]))
    if segment == (0 if REVERSE else SEGMENTS - 1):
        tl.store(final + bh * DK * DV + block, state)
