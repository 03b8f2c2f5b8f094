"""The kernels of `causal_filter`: the state of a tile of channels in registers, [E, BD], chunk by chunk of C rows.

Time is cut into segments that run side by side: `filter_states` finds what each adds to the state, `filter_carry` the
states at their starts, `filter_output` the outputs. With REVERSE rows count from the last one back, and the same three
give the gradient of x: the states are then those of the outputs' gradients, decayed to the row before, and `mix`
weighs them when they are read instead of when they are written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, LOWEST, power, product


@triton.jit
def poles(log_decay, E: tl.constexpr, WIDE: tl.constexpr):
    """log2 lam, [WIDE]; 0 beyond E."""
    pole = tl.arange(0, WIDE)
    return tl.maximum(tl.load(log_decay + pole, mask=pole < E, other=0.0) * LOG2E, LOWEST)


@triton.jit
def rank_at(rank, row, T, REVERSE: tl.constexpr):
    """The number of resets up to a row, as rows count."""
    return tl.load(rank + (T - 1 - row if REVERSE else row))


@triton.jit
def updated(
    state, x, rank, mix, rates, first, start, count, channel, T, D,
    C: tl.constexpr, RESET: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The state [WIDE, BD] behind `count` <= C rows from `start` on; mix [WIDE, BD] weighs them, with REVERSE nothing.
    first: the sequence's first row in memory."""
    rows = tl.arange(0, C)
    inside = rows < count
    shift: tl.constexpr = 1 if REVERSE else 0
    whole = power(rates * count, FAST)
    if RESET:
        # rows of the last row's document alone
        now = rank_at(rank + first, start + count - 1, T, REVERSE)
        place = start + rows
        ranks = tl.load(rank + first + (T - 1 - place if REVERSE else place), mask=inside, other=-1)
        inside = inside & (ranks == now)
        whole = tl.where(before_of(rank, first, start, T, REVERSE) == now, whole, 0.0)
    memory = first + (T - 1 - start - rows if REVERSE else start + rows)
    values = tl.load(x + memory[:, None] * D + channel, mask=inside[:, None] & (channel < D), other=0.0)
    ages = tl.maximum(count - 1 - rows + shift, 0).to(tl.float32)
    added = product(power(rates[:, None] * ages[None, :], FAST), values, EXACT)
    if REVERSE:
        return whole[:, None] * state + added
    else:
        return whole[:, None] * state + mix * added


@triton.jit
def before_of(rank, first, start, T, REVERSE: tl.constexpr):
    """The rank of the row before `start`: of the state that comes in."""
    if REVERSE:
        return tl.load(rank + first + tl.minimum(T - start, T - 1))
    else:
        return tl.load(rank + first + tl.maximum(start - 1, 0), mask=start > 0, other=0)


@triton.jit(do_not_specialize=["T", "LENGTH"])
def filter_states(
    x, rank, mix, log_decay, added, T, LENGTH,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, C: tl.constexpr,
    MIX: tl.constexpr, RESET: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """What every segment of LENGTH rows adds to the state behind it: [B, segments, E, D]. Without MIX mix is 1."""
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channel = (tl.program_id(0) * BD + tl.arange(0, BD))[None, :]
    pole = tl.arange(0, WIDE)[:, None]
    known = (channel < D) & (pole < E)
    rates = poles(log_decay, E, WIDE)
    weight = tl.full([WIDE, BD], 1.0, tl.float32)
    if MIX:
        weight = tl.load(mix + channel * E + pole, mask=known, other=0.0)
    state = tl.zeros([WIDE, BD], tl.float32)
    end = tl.minimum((segment + 1) * LENGTH, T)
    for start in range(segment * LENGTH, end, C):
        count = tl.minimum(end - start, C)
        state = updated(
            state, x, rank, weight, rates, batch * T, start, count, channel, T, D, C, RESET, REVERSE, EXACT, FAST
        )  # fmt: skip
    tl.store(added + (batch * tl.num_programs(1) + segment) * E * D + pole * D + channel, state, mask=known)


@triton.jit(do_not_specialize=["T", "LENGTH", "SEGMENTS"])
def filter_carry(
    rank, log_decay, initial, states, final, T, LENGTH, SEGMENTS,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, START: tl.constexpr, RESET: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    """In place, from what every segment adds to the state at its start; the last state to `final`, [B, E, D]."""
    batch, pole = tl.program_id(2).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    known = channel < D
    rate = tl.maximum(tl.load(log_decay + pole) * LOG2E, LOWEST)
    state = tl.zeros([BD], tl.float32)
    if START:
        state = tl.load(initial + (batch * E + pole) * D + channel, mask=known, other=0.0)
    for segment in range(SEGMENTS):
        start = segment * LENGTH
        count = tl.minimum(T - start, LENGTH)
        whole = tl.exp2(rate * count)
        if RESET:
            now = rank_at(rank + batch * T, start + count - 1, T, REVERSE)
            whole = tl.where(before_of(rank, batch * T, start, T, REVERSE) == now, whole, 0.0)
        place = states + ((batch * SEGMENTS + segment) * E + pole) * D + channel
        added = tl.load(place, mask=known, other=0.0)
        tl.store(place, state, mask=known)
        state = whole * state + added
    if RESET and REVERSE:
        # what came before the first row reaches it only without a reset there
        state = tl.where(tl.load(rank + batch * T) == 0, state, 0.0)
    tl.store(final + (batch * E + pole) * D + channel, state, mask=known)


@triton.jit(do_not_specialize=["T", "LENGTH"])
def filter_output(
    x, rank, mix, log_decay, starts, out, T, LENGTH,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, C: tl.constexpr, RESET: tl.constexpr,
    REVERSE: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """To `out`, which holds what `filter_intra_chunk` found, the outputs of a segment from the states before its
    chunks."""
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channel = (tl.program_id(0) * BD + tl.arange(0, BD))[None, :]
    pole = tl.arange(0, WIDE)[:, None]
    known = (channel < D) & (pole < E)
    rates = poles(log_decay, E, WIDE)
    weight = tl.load(mix + channel * E + pole, mask=known, other=0.0)
    state = tl.load(
        starts + (batch * tl.num_programs(1) + segment) * E * D + pole * D + channel, mask=known, other=0.0
    )  # fmt: skip
    rows = tl.arange(0, C)
    shift: tl.constexpr = 0 if REVERSE else 1
    read = power(rates[None, :] * (rows + shift)[:, None].to(tl.float32), FAST)
    first = batch * T
    end = tl.minimum((segment + 1) * LENGTH, T)
    for start in range(segment * LENGTH, end, C):
        count = tl.minimum(end - start, C)
        place = start + rows[:, None]
        memory = first + (T - 1 - place if REVERSE else place)
        inside = (rows[:, None] < count) & (channel < D)
        y = product(read, state * weight if REVERSE else state, EXACT)
        if RESET:
            ranks = tl.load(rank + memory, mask=rows[:, None] < count, other=-1)
            y = tl.where(ranks == before_of(rank, first, start, T, REVERSE), y, 0.0)
        place = out + memory * D + channel
        y += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, y.to(out.dtype.element_ty), mask=inside)
        state = updated(
            state, x, rank, weight, rates, first, start, count, channel, T, D, C, RESET, REVERSE, EXACT, FAST
        )  # fmt: skip


@triton.jit(do_not_specialize=["T", "LENGTH"])
def filter_weights(
    x, d_out, rank, log_decay, starts, d_mix, T, LENGTH,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, C: tl.constexpr, RESET: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """By segment the sum of d_out_t times the unweighted state before t's chunk, decayed to t: [B, segments, E, D]."""
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channel = (tl.program_id(0) * BD + tl.arange(0, BD))[None, :]
    pole = tl.arange(0, WIDE)[:, None]
    known = (channel < D) & (pole < E)
    rates = poles(log_decay, E, WIDE)
    cell = batch * tl.num_programs(1) + segment
    state = tl.load(starts + cell * E * D + pole * D + channel, mask=known, other=0.0)
    ones = tl.full([WIDE, BD], 1.0, tl.float32)
    total = tl.zeros([WIDE, BD], tl.float32)
    rows = tl.arange(0, C)
    read = power(rates[:, None] * (rows + 1)[None, :].to(tl.float32), FAST)
    first = batch * T
    end = tl.minimum((segment + 1) * LENGTH, T)
    for start in range(segment * LENGTH, end, C):
        count = tl.minimum(end - start, C)
        memory = first + start + rows[:, None]
        inside = (rows[:, None] < count) & (channel < D)
        grad = tl.load(d_out + memory * D + channel, mask=inside, other=0.0)
        if RESET:
            ranks = tl.load(rank + memory, mask=rows[:, None] < count, other=-1)
            grad = tl.where(ranks == before_of(rank, first, start, T, False), grad, 0.0)
        total += state * product(read, grad, EXACT)
        state = updated(
            state, x, rank, ones, rates, first, start, count, channel, T, D, C, RESET, False, EXACT, FAST
        )  # fmt: skip
    tl.store(d_mix + cell * E * D + pole * D + channel, total, mask=known)
