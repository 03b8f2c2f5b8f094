# ruff: noqa: RUF005 (tuples are added: Triton does not know the star)
"""The kernels of `selective_scan`: the states of a tile of channels in registers, [BD, N], row by row.

A warp holds 8 channels, 4 lanes for the N states of each (the layout in which states are loaded): the sum over N is
nearly all inside a thread. R rows are unrolled, and the next R are loaded while these are computed. The forward
stores the states before every R rows, from which the backward runs them again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, power


@triton.jit
def stacked(rows, R: tl.constexpr):
    """R tensors, a power of two, as one with a last axis for each factor 2 of R."""
    for level in tl.static_range(10):
        if (1 << level) < R:
            joined = ()
            for i in tl.static_range(R >> (level + 1)):
                joined = joined + (tl.join(rows[i], rows[i + (R >> (level + 1))]),)
            rows = joined
    return rows[0]


@triton.jit
def channel_rows(pointer, first, row, channel, T, D: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr):
    """R tensors [BD]: rows first + row .. of a matrix [.., D], 0 behind the sequence's end."""
    rows = ()
    for r in tl.static_range(R):
        place = pointer + (first + row + r) * D + channel
        if EVEN:
            rows = rows + (tl.load(place),)
        else:
            rows = rows + (tl.load(place, mask=(row + r < T) & (channel < D), other=0.0),)
    return rows


@triton.jit
def state_rows(pointer, first, row, state, T, N: tl.constexpr, R: tl.constexpr):
    """R tensors [WIDE]: rows of a matrix [.., N], 0 beyond it."""
    rows = ()
    for r in tl.static_range(R):
        rows = rows + (tl.load(pointer + (first + row + r) * N + state, mask=(row + r < T) & (state < N), other=0.0),)
    return rows


@triton.jit
def reset_rows(reset, first, row, T, R: tl.constexpr, RESET: tl.constexpr):
    """R flags; none without RESET."""
    rows = ()
    for r in tl.static_range(R):
        if RESET:
            rows = rows + (tl.load(reset + first + row + r, mask=row + r < T, other=0) != 0,)
    return rows


@triton.jit
def store_rows(pointer, rows, first, row, channel, T, D: tl.constexpr, R: tl.constexpr):
    """R tensors [BD] to those rows of a matrix [.., D]."""
    place = row + tl.arange(0, R)[:, None]
    tl.store(
        pointer + (first + place) * D + channel[None, :],
        tl.trans(stacked(rows, R).reshape([channel.shape[0], R])).to(pointer.dtype.element_ty),
        mask=(place < T) & (channel[None, :] < D),
    )


@triton.jit
def store_sums(pointer, rows, row, T, N: tl.constexpr, BD: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr):
    """The sums over channels of R tensors [BD, WIDE] to R rows of a matrix [.., N], at once: it is a barrier less a
    row."""
    sums = tl.sum(stacked(rows, R).reshape([BD, WIDE, R]), 0)
    state, place = tl.arange(0, WIDE)[:, None], tl.arange(0, R)[None, :]
    tl.store(pointer + place * N + state, sums, mask=(row + place < T) & (state < N))


@triton.jit
def advanced(
    h, dt, B, x, reset, rate, first, row, channel, state, T,
    D: tl.constexpr, N: tl.constexpr, R: tl.constexpr, RESET: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The state R rows on."""
    dts, xs = channel_rows(dt, first, row, channel, T, D, R, EVEN), channel_rows(x, first, row, channel, T, D, R, EVEN)
    Bs, resets = state_rows(B, first, row, state, T, N, R), reset_rows(reset, first, row, T, R, RESET)
    for r in tl.static_range(R):
        step = dts[r].to(tl.float32)
        a = power(step[:, None] * rate, FAST)
        if RESET:
            a = tl.where(resets[r], 0.0, a)
        h = a * h + (step * xs[r].to(tl.float32))[:, None] * Bs[r].to(tl.float32)[None, :]
    return h


@triton.jit(do_not_specialize=["T", "COUNT"])
def selective_forward(
    dt, A, B, C, x, reset, initial, out, starts, final, T, COUNT,
    D: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, STORED: tl.constexpr,
    RESET: tl.constexpr, START: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Outputs of COUNT times R rows, the states before the first of STORED R rows each [B, COUNT / STORED, D, N], and
    the last one [B, D, N]."""
    batch = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    state = tl.arange(0, WIDE)
    known = (channel[:, None] < D) & (state[None, :] < N)
    cell = channel[:, None] * N + state[None, :]
    rate = tl.load(A + cell, mask=known, other=0.0).to(tl.float32) * LOG2E
    h = tl.zeros([BD, WIDE], tl.float32)
    if START:
        h = tl.load(initial + batch * D * N + cell, mask=known, other=0.0)
    first = batch * T
    dts = channel_rows(dt, first, 0, channel, T, D, R, EVEN)
    xs = channel_rows(x, first, 0, channel, T, D, R, EVEN)
    Bs, Cs = state_rows(B, first, 0, state, T, N, R), state_rows(C, first, 0, state, T, N, R)
    for n in range(COUNT):
        row = n * R
        ahead = tl.minimum(n + 1, COUNT - 1) * R
        next_dts = channel_rows(dt, first, ahead, channel, T, D, R, EVEN)
        next_xs = channel_rows(x, first, ahead, channel, T, D, R, EVEN)
        next_Bs, next_Cs = state_rows(B, first, ahead, state, T, N, R), state_rows(C, first, ahead, state, T, N, R)
        resets = reset_rows(reset, first, row, T, R, RESET)
        if n % STORED == 0:
            tl.store(starts + (batch * tl.cdiv(COUNT, STORED) + n // STORED) * D * N + cell, h, mask=known)
        ys = ()
        for r in tl.static_range(R):
            step = dts[r].to(tl.float32)
            a = power(step[:, None] * rate, FAST)
            if RESET:
                a = tl.where(resets[r], 0.0, a)
            h = a * h + (step * xs[r].to(tl.float32))[:, None] * Bs[r].to(tl.float32)[None, :]
            ys = ys + (tl.sum(h * Cs[r].to(tl.float32)[None, :], 1),)
        store_rows(out, ys, first, row, channel, T, D, R)
        dts, xs, Bs, Cs = next_dts, next_xs, next_Bs, next_Cs
    tl.store(final + batch * D * N + cell, h, mask=known)


@triton.jit(do_not_specialize=["T", "COUNT"])
def selective_backward(
    dt, A, B, C, x, reset, starts, d_out, d_final, d_dt, d_A, d_B, d_C, d_x, d_initial, T, COUNT,
    D: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, STORED: tl.constexpr,
    RESET: tl.constexpr, FINAL: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of dt and x; of A by sequence, [B, D, N]; of B and C by tile of channels, [B, tiles, T, N].

    G_t = C_t dL/dy_t + exp(dt_{t+1} A) G_{t+1}, and dt A takes G_t exp(dt_t A) h_{t-1}: no difference of states.
    """
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tile * BD + tl.arange(0, BD)
    state = tl.arange(0, WIDE)
    known = (channel[:, None] < D) & (state[None, :] < N)
    cell = channel[:, None] * N + state[None, :]
    rate = tl.load(A + cell, mask=known, other=0.0).to(tl.float32) * LOG2E
    e = tl.zeros([BD, WIDE], tl.float32)
    if FINAL:
        e = tl.load(d_final + batch * D * N + cell, mask=known, other=0.0)
    d_rate = tl.zeros([BD, WIDE], tl.float32)
    first = batch * T
    for i in range(COUNT):
        n = COUNT - 1 - i
        row = n * R
        dts = channel_rows(dt, first, row, channel, T, D, R, EVEN)
        xs = channel_rows(x, first, row, channel, T, D, R, EVEN)
        grads = channel_rows(d_out, first, row, channel, T, D, R, EVEN)
        Bs, Cs = state_rows(B, first, row, state, T, N, R), state_rows(C, first, row, state, T, N, R)
        resets = reset_rows(reset, first, row, T, R, RESET)
        stored = (batch * tl.cdiv(COUNT, STORED) + n // STORED) * D * N
        h = tl.load(starts + stored + cell, mask=known, other=0.0)
        for before in range(n // STORED * STORED, n):
            h = advanced(h, dt, B, x, reset, rate, first, before * R, channel, state, T, D, N, R, RESET, EVEN, FAST)
        partial = ((batch * tl.num_programs(0) + tile) * T + row) * N
        kept, read = (), ()
        for r in tl.static_range(R):
            step = dts[r].to(tl.float32)
            h *= power(step[:, None] * rate, FAST)
            if RESET:
                h = tl.where(resets[r], 0.0, h)
            kept = kept + (h,)
            h += (step * xs[r].to(tl.float32))[:, None] * Bs[r].to(tl.float32)[None, :]
            read = read + (grads[r].to(tl.float32)[:, None] * h,)
        store_sums(d_C + partial, read, row, T, N, BD, WIDE, R)
        d_steps, d_inputs, written = (), (), ()
        for r in tl.static_range(R - 1, -1, -1):
            step, value = dts[r].to(tl.float32), xs[r].to(tl.float32)
            g = Cs[r].to(tl.float32)[None, :] * grads[r].to(tl.float32)[:, None] + e
            written = ((step * value)[:, None] * g,) + written
            d_u = tl.sum(Bs[r].to(tl.float32)[None, :] * g, 1)
            d_exponent = g * kept[r]
            d_rate += d_exponent * step[:, None]
            d_steps = (tl.sum(d_exponent * rate, 1) / LOG2E + d_u * value,) + d_steps
            d_inputs = (d_u * step,) + d_inputs
            e = g * power(step[:, None] * rate, FAST)
            if RESET:
                e = tl.where(resets[r], 0.0, e)
        store_sums(d_B + partial, written, row, T, N, BD, WIDE, R)
        store_rows(d_dt, d_steps, first, row, channel, T, D, R)
        store_rows(d_x, d_inputs, first, row, channel, T, D, R)
    tl.store(d_A + batch * D * N + cell, d_rate, mask=known)
    tl.store(d_initial + batch * D * N + cell, e, mask=known)
