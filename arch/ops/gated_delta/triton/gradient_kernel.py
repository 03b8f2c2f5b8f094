"""The gradients of `gated_delta`, from what its runs through time have left."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import operand, power, product, store_rows
from .channel_kernels import channel_gradients, log_decays
from .kernels import chunk_tile, own_tile


@triton.jit
def between(table, size, place, rows, C: tl.constexpr, FAST: tl.constexpr):
    """D_ij of a chunk, 0 for j > i. Sums of whole numbers and of the rest are apart: their differences are those of the
    pair's own terms to 1e-6, however much is forgotten in the chunk."""
    whole, rest = tl.load(table + place + rows), tl.load(table + size + place + rows)
    sums = (whole[:, None] - whole[None, :]) + (rest[:, None] - rest[None, :])
    return tl.where(rows[:, None] >= rows[None, :], power(tl.minimum(sums, 0.0), FAST), 0.0)


@triton.jit(do_not_specialize=["T", "N"])
def delta_gradients(
    q, k, v, beta, log_decay, table, d_out, written, solved, states, d_states, d_q, d_k, d_v, d_beta, d_decay,
    T, H, N, QS, KS, VS, OS, DQS, DKS, DVS,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SUB: tl.constexpr,
    DECAY: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Of a chunk and BK channels of the keys: d_q, d_k, these channels' shares of d_beta and, with DECAY, of d_decay,
    the gradient of the log-decays [DK / BK, B, T, H] (CHANNEL: all of it [B, T, H, DK], from log_decay), and a share of
    the columns of d_v.

    The decay of a pair of rows has the gradient of their score times the score. So the sum over a row's pairs is the
    product of q (or k) with its gradient, and that of a log-decay all those from its row on.
    """
    tile, chunk, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = bh // H, bh % H
    bh = bh.to(tl.int64)
    index, row = bh * N + chunk, chunk * C
    rows = tl.arange(0, C)
    inside = rows < T - row
    channel = tile * BK
    place = batch.to(tl.int64) * T + row
    vector = (place + rows) * H + head
    of_p, of_a = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)  # dO R^T, Z R^T
    of_q, of_k = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)  # dO S^T, Z S^T
    leaving, spanning = tl.zeros([C, BK], tl.float32), tl.zeros([BK], tl.float32)  # R dS'^T; S dS' summed over values
    for first in tl.range(0, DV, BV, num_stages=STAGES):
        y = chunk_tile(d_out, batch, row, head * DV + first, rows, T, OS, C, BV, TMA)
        r = own_tile(written, index, first, 0, DV, C, BV, C, TMA)
        z = tl.trans(own_tile(solved, index, first, 0, DV, C, BV, C, TMA))
        s = own_tile(states, index, first, channel, DV, DK, BV, BK, TMA)
        ds = own_tile(d_states, index, first, channel, DV, DK, BV, BK, TMA)
        of_p += product(y, r, EXACT)
        of_a += product(z, r, EXACT)
        of_q += product(y, s, EXACT)
        of_k += product(z, s, EXACT)
        leaving += product(tl.trans(r), ds, EXACT)
        if DECAY or CHANNEL:
            spanning += tl.sum(s.to(tl.float32) * ds.to(tl.float32), 0)
    b = tl.load(beta + vector, mask=inside, other=0.0)
    x = chunk_tile(k, batch, row, head * DK + channel, rows, T, KS, C, BK, False)
    y = chunk_tile(q, batch, row, head * DK + channel, rows, T, QS, C, BK, False)
    key = x.to(tl.float32)
    share = tile * (tl.num_programs(2) // H).to(tl.int64) * T * H + vector
    # own: of what beta is multiplied by
    if CHANNEL:
        decays = log_decays(log_decay, place, rows, inside, H * DK, head * DK + channel, C, BK)
        of_q, own, others, d_log = channel_gradients(
            y.to(tl.float32), key, b, decays, of_p, of_a, of_q, of_k, leaving, spanning, rows, C, BK, SUB, EXACT, FAST
        )
        store_rows(d_decay + place * H * DK + head * DK, d_log, rows, inside, H * DK, channel, BK)
    else:
        if DECAY:
            size = tl.num_programs(2).to(tl.int64) * N * C
            weights = between(table, size, index * C, rows, C, FAST)
            decays = table + 2 * size + index * C
            enter, leave = tl.load(decays + rows), tl.load(decays + size + rows)
            of_q *= enter[:, None]
            of_k *= enter[:, None]
            leaving *= leave[:, None]
        else:
            weights = tl.where(rows[:, None] >= rows[None, :], 1.0, 0.0)
        of_p *= weights
        of_a = tl.where(rows[:, None] > rows[None, :], -of_a * weights, 0.0)
        of_q += product(of_p, x, EXACT)
        given = operand(b[:, None] * key, EXACT)
        inner = product(of_a, x, EXACT)
        own = inner - of_k
        others = leaving + product(tl.trans(of_p), y, EXACT) + product(tl.trans(of_a), given, EXACT)
        if DECAY:
            # of the rounded numbers that the products have, so that what a pair adds and takes is the same
            flow = y.to(tl.float32) * of_q + given.to(tl.float32) * inner - key * (b[:, None] * of_k + others)
            flow = tl.sum(flow, 1)
            behind = tl.sum(tl.sum(key * leaving, 1), 0) + tl.sum(spanning, 0) * tl.load(decays + C - 1)
            tl.store(d_decay + share, tl.cumsum(flow, 0, reverse=True) + behind, mask=inside)
    store_rows(d_q + place * DQS + head * DK, of_q, rows, inside, DQS, channel, BK)
    store_rows(d_k + place * DKS + head * DK, b[:, None] * own + others, rows, inside, DKS, channel, BK)
    of_beta = tl.sum(key * own, 1)
    for share_of_v in range(tile, DV // BV, DK // BK):
        first = share_of_v * BV
        z = tl.trans(own_tile(solved, index, first, 0, DV, C, BV, C, TMA)).to(tl.float32)
        value = chunk_tile(v, batch, row, head * DV + first, rows, T, VS, C, BV, False)
        of_beta += tl.sum(z * value.to(tl.float32), 1)
        store_rows(d_v + place * DVS + head * DV, z * b[:, None], rows, inside, DVS, first, BV)
    tl.store(d_beta + share, of_beta, mask=inside)
