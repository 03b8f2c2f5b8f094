# ruff: noqa: RUF005 (tuples are added: Triton does not know the star)
"""The part of `causal_filter` inside chunks of C rows, which no state carries: sums lag by lag.

A thread holds whole chunks of its channels, so that nothing crosses threads: [W, BD] tensors, one for each row of W
chunks side by side.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chunk_rows(pointer, first, start, channel, T, D: tl.constexpr, C: tl.constexpr, REVERSE: tl.constexpr):
    """C tensors [W, BD] in fp32: rows start [W, 1] + 0 .. C - 1 of a sequence, 0 behind its end."""
    rows = ()
    for i in tl.static_range(C):
        row = start + i
        place = (first + (T - 1 - row if REVERSE else row)) * D + channel
        rows = rows + (tl.load(pointer + place, mask=(row < T) & (channel < D), other=0.0).to(tl.float32),)
    return rows


@triton.jit
def chunk_ranks(rank, first, start, T, C: tl.constexpr, RESET: tl.constexpr, REVERSE: tl.constexpr):
    """C tensors [W, 1]: the number of resets up to each row; all the same without resets."""
    ranks = ()
    for i in tl.static_range(C):
        row = start + i
        if RESET:
            ranks = ranks + (tl.load(rank + first + (T - 1 - row if REVERSE else row), mask=row < T, other=-1),)
        else:
            ranks = ranks + (start,)
    return ranks


@triton.jit(do_not_specialize=["T"])
def filter_intra_chunk(
    x, rank, kernel, out, T, D: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, C: tl.constexpr, RESET: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    """y_i = sum over lags of kernel_lag x_{i - lag} within i's chunk and document: kernel [C, D]."""
    first = tl.program_id(2).to(tl.int64) * T
    channel = tl.program_id(0) * BD + tl.arange(0, BD)[None, :]
    start = (tl.program_id(1) * W + tl.arange(0, W)[:, None]) * C
    rows = chunk_rows(x, first, start, channel, T, D, C, REVERSE)
    ranks = chunk_ranks(rank, first, start, T, C, RESET, REVERSE)
    taps = ()
    for lag in tl.static_range(C):
        taps = taps + (tl.load(kernel + lag * D + channel, mask=channel < D, other=0.0),)
    for i in tl.static_range(C):
        y = taps[0] * rows[i]
        for lag in tl.static_range(1, i + 1):
            term = taps[lag] * rows[i - lag]
            if RESET:
                term = tl.where(ranks[i] == ranks[i - lag], term, 0.0)
            y += term
        row = start + i
        place = (first + (T - 1 - row if REVERSE else row)) * D + channel
        tl.store(out + place, y.to(out.dtype.element_ty), mask=(row < T) & (channel < D))


@triton.jit(do_not_specialize=["T", "LENGTH"])
def filter_lags(
    x, d_out, rank, d_kernel, T, LENGTH, D: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    RESET: tl.constexpr,
):  # fmt: skip
    """By segment of LENGTH rows the sums of d_out_i x_{i - lag} within chunks and documents: [B, segments, C, D]."""
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BD + tl.arange(0, BD)[None, :]
    sums = ()
    for _ in tl.static_range(C):
        sums = sums + (tl.zeros([W, BD], tl.float32),)
    for begin in range(segment * LENGTH, tl.minimum((segment + 1) * LENGTH, T), W * C):
        start = begin + tl.arange(0, W)[:, None] * C
        rows = chunk_rows(x, batch * T, start, channel, T, D, C, False)
        grads = chunk_rows(d_out, batch * T, start, channel, T, D, C, False)
        ranks = chunk_ranks(rank, batch * T, start, T, C, RESET, False)
        added = ()
        for lag in tl.static_range(C):
            total = sums[lag]
            for i in tl.static_range(lag, C):
                term = grads[i] * rows[i - lag]
                if RESET:
                    term = tl.where(ranks[i] == ranks[i - lag], term, 0.0)
                total += term
            added = added + (total,)
        sums = added
    for lag in tl.static_range(C):
        place = d_kernel + ((batch * tl.num_programs(1) + segment) * C + lag) * D + channel
        tl.store(place, tl.sum(sums[lag], 0)[None, :], mask=channel < D)
