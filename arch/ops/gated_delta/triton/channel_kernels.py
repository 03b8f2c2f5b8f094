r"""Kernels of `gated_delta` with decays by key channel (KDA): what differs from kernels.py.

There g, e and w are vectors of the keys' channels, and A_ij = b_i sum_d k_id k_jd D_ijd. The queries and keys go to the
runs through time with their decays from the chunk's start and to its end. Inside a chunk, D_ijd is the product of a
row's decays from and a row's decays to a reference, of which each block of SUB rows has one: for a channel that loses
little in half a block its middle, with exponents of at most REACH either way, else the block's start, which only
earlier blocks reach; such channels' pairs within a block are summed one by one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, LOWEST, load_rows, operand, power, row_sums, store_rows
from .kernels import chunk_tile, diagonal_of, many_products, on_diagonal, store_own

REACH = tl.constexpr(60.0)


@triton.jit
def log_decays(log_decay, place, rows, inside, stride, channel, C: tl.constexpr, BK: tl.constexpr):
    """log2 decays [C, BK]; rows not inside lose nothing."""
    x = load_rows(log_decay + place * stride, rows, inside, stride, channel, BK)
    return tl.maximum(x.to(tl.float32) * LOG2E, LOWEST)


@triton.jit
def summed(which, x, EXACT: tl.constexpr):
    """Sums of the rows of x [C, BK] that bool [C, C] says for each row."""
    return row_sums(which.to(tl.float32 if EXACT else tl.bfloat16), x, EXACT)


@triton.jit
def chunk_ends(x, rows, EXACT: tl.constexpr, FAST: tl.constexpr):
    """Decays from the chunk's start to each row and from it to the end [C, BK], and of the whole [BK], of log2 decays
    x."""
    enter, leave = summed(rows[None, :] <= rows[:, None], x, EXACT), summed(rows[None, :] > rows[:, None], x, EXACT)
    return power(enter, FAST), power(leave, FAST), power(tl.sum(x, 0), FAST)


@triton.jit
def references(x, rows, NB: tl.constexpr, SUB: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr):
    """For blocks a and b of SUB rows: decays from a's reference to its rows [NB, SUB, BK], from b's rows to a's
    reference [NB (a), NB (b), SUB, BK], 0 where b is later, or the same and the channel far; sums from a block's start
    up to its rows [NB, SUB, BK]; whether a channel is far [NB, BK]."""
    near = rows[:, None] // SUB == rows[None, :] // SUB
    upto = tl.reshape(summed(near & (rows[None, :] <= rows[:, None]), x, EXACT), [NB, SUB, BK])
    behind = tl.reshape(summed(near & (rows[None, :] > rows[:, None]), x, EXACT), [NB, SUB, BK])
    blocks = tl.reshape(x, [NB, SUB, BK])
    totals = tl.sum(blocks, 1)
    half = tl.sum(tl.where(tl.arange(0, SUB)[None, :, None] < SUB // 2, blocks, 0.0), 1)
    far = (half < -REACH) | (totals - half < -REACH)
    middle = tl.where(far, 0.0, half)
    after = power(tl.minimum(upto - middle[:, None, :], REACH), FAST)
    a, b = tl.arange(0, NB)[:, None, None, None], tl.arange(0, NB)[None, :, None, None]
    c = tl.arange(0, NB)[None, None, :, None]
    apart = tl.sum(tl.where((c > b) & (c < a), totals[None, None, :, :], 0.0), 2) + middle[:, None, :]
    same = tl.where(far[:, None, :], 0.0, power(tl.minimum(middle[:, None, :] - upto, REACH), FAST))
    before = power(behind, FAST)[None, :, :, :] * power(apart, FAST)[:, :, None, :]
    before = tl.where(b < a, before, tl.where(b == a, same[None, :, :, :], 0.0))
    return after, before, upto, far


@triton.jit
def picked(x, number, SUB: tl.constexpr):
    """Row `number` of every block of x [NB, SUB, BK]."""
    return tl.sum(tl.where(tl.arange(0, SUB)[None, :, None] == number, x, 0.0), 1)


@triton.jit(do_not_specialize=["T", "N"])
def channel_scores(
    q, k, beta, log_decay, queries, entering, leaving, through, lower, scores, T, H, N, QS, KS,
    C: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, SUB: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Of a chunk: diag(g) Q, diag(g) K and diag(e) K [B, T, H, DK], the decay of the whole [B H, N, DK], A
    [B H, N, C, C] in fp32, and P."""
    NB: tl.constexpr = C // SUB
    bh, chunk = tl.program_id(0), tl.program_id(1)
    batch, head = bh // H, bh % H
    index = bh.to(tl.int64) * N + chunk
    rows = tl.arange(0, C)
    row = chunk * C
    inside = rows < T - row
    place = batch.to(tl.int64) * T + row
    b = tl.load(beta + (place + rows) * H + head, mask=inside, other=0.0)
    score, same = tl.zeros([NB, SUB, C], tl.float32), tl.zeros([NB, SUB, C], tl.float32)
    near_score, near_same = tl.zeros([NB, SUB, SUB], tl.float32), tl.zeros([NB, SUB, SUB], tl.float32)
    later, column = tl.arange(0, SUB)[None, :, None], tl.arange(0, SUB)[None, None, :]
    for first in tl.static_range(0, DK, BK):
        channel = head * DK + first
        x = log_decays(log_decay, place, rows, inside, H * DK, channel, C, BK)
        query = chunk_tile(q, batch, row, channel, rows, T, QS, C, BK, False).to(tl.float32)
        key = chunk_tile(k, batch, row, channel, rows, T, KS, C, BK, False).to(tl.float32)
        enter, leave, whole = chunk_ends(x, rows, EXACT, FAST)
        own = H * DK
        store_rows(queries + place * own, query * enter, rows, inside, own, channel, BK)
        store_rows(entering + place * own, key * enter, rows, inside, own, channel, BK)
        store_rows(leaving + place * own, key * leave, rows, inside, own, channel, BK)
        tl.store(through + index * DK + first + tl.arange(0, BK), whole)
        after, before, upto, far = references(x, rows, NB, SUB, BK, EXACT, FAST)
        query, key = tl.reshape(query, [NB, SUB, BK]), tl.reshape(key, [NB, SUB, BK])
        right = tl.permute(tl.reshape(operand(key[None, :, :, :] * before, EXACT), [NB, C, BK]), (0, 2, 1))
        score += many_products(operand(query * after, EXACT), right, EXACT)
        same += many_products(operand(key * after, EXACT), right, EXACT)
        if tl.sum(far.to(tl.int32)) > 0:
            for number in range(0, SUB):
                weights = power(tl.minimum(upto - picked(upto, number, SUB)[:, None, :], 0.0), FAST)
                weights = tl.where((later >= number) & far[:, None, :], weights, 0.0)
                weights *= picked(key, number, SUB)[:, None, :]
                near_score += tl.where(column == number, tl.sum(query * weights, 2)[:, :, None], 0.0)
                near_same += tl.where(column == number, tl.sum(key * weights, 2)[:, :, None], 0.0)
    score = tl.reshape(score, [C, C]) + on_diagonal(near_score, NB, SUB)
    same = tl.reshape(same, [C, C]) + on_diagonal(near_same, NB, SUB)
    score = tl.where(rows[:, None] >= rows[None, :], score, 0.0)
    same = tl.where(rows[:, None] > rows[None, :], same * b[:, None], 0.0)
    store_own(scores, operand(score, EXACT), index, 0, C, C, C, False)
    store_own(lower, same, index, 0, C, C, C, False)


@triton.jit
def channel_gradients(
    query, key, b, x, of_p, of_a, of_q, of_k, leaving, spanning, rows,
    C: tl.constexpr, BK: tl.constexpr, SUB: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Of log2 decays x [C, BK] and the sums over values of `delta_gradients`: the gradients of q, of b k, of k
    otherwise, and of the log-decays, each [C, BK]."""
    NB: tl.constexpr = C // SUB
    enter, leave, whole = chunk_ends(x, rows, EXACT, FAST)
    of_q *= enter
    of_k *= -enter
    leaving *= leave
    spanning *= whole
    flow = query * of_q + b[:, None] * key * of_k - key * leaving  # a row's share in the sums of decays
    spanning += tl.sum(key * leaving, 0)
    of_p = tl.where(rows[:, None] >= rows[None, :], of_p, 0.0)
    of_a = tl.where(rows[:, None] > rows[None, :], -of_a, 0.0)
    # pairs within the chunk, of channels by their references
    after, before, upto, far = references(x, rows, NB, SUB, BK, EXACT, FAST)
    left_q = operand(tl.reshape(query, [NB, SUB, BK]) * after, EXACT)
    left_k = operand(tl.reshape(b[:, None] * key, [NB, SUB, BK]) * after, EXACT)
    right = operand(tl.reshape(tl.reshape(key, [NB, SUB, BK])[None, :, :, :] * before, [NB, C, BK]), EXACT)
    rows_p = tl.reshape(operand(of_p, EXACT), [NB, SUB, C])
    rows_a = tl.reshape(operand(of_a, EXACT), [NB, SUB, C])
    late_q, late_k = many_products(rows_p, right, EXACT), many_products(rows_a, right, EXACT)
    early = many_products(tl.permute(rows_p, (0, 2, 1)), left_q, EXACT)
    early += many_products(tl.permute(rows_a, (0, 2, 1)), left_k, EXACT)
    # of the rounded numbers that the products have, so that what a pair adds and takes is the same
    pairs = left_q.to(tl.float32) * late_q + left_k.to(tl.float32) * late_k
    flow += tl.reshape(pairs, [C, BK]) - tl.sum(right.to(tl.float32) * early, 0)
    late_q *= after
    late_k *= after
    early = tl.sum(early * tl.reshape(before, [NB, C, BK]), 0)
    if tl.sum(far.to(tl.int32)) > 0:
        # and of far ones within blocks, one by one
        later, column = tl.arange(0, SUB)[None, :, None], tl.arange(0, SUB)[None, None, :]
        near_p, near_a = diagonal_of(of_p, NB, SUB), diagonal_of(of_a, NB, SUB)
        query_blocks, key_blocks = tl.reshape(query, [NB, SUB, BK]), tl.reshape(key, [NB, SUB, BK])
        given = tl.reshape(b[:, None] * key, [NB, SUB, BK])
        near_early, near_flow = tl.zeros([NB, SUB, BK], tl.float32), tl.zeros([NB, SUB, BK], tl.float32)
        for number in range(0, SUB):
            weights = power(tl.minimum(upto - picked(upto, number, SUB)[:, None, :], 0.0), FAST)
            weights = tl.where((later >= number) & far[:, None, :], weights, 0.0)
            p = tl.sum(tl.where(column == number, near_p, 0.0), 2)[:, :, None] * weights
            a = tl.sum(tl.where(column == number, near_a, 0.0), 2)[:, :, None] * weights
            earlier = picked(key_blocks, number, SUB)
            late_q += p * earlier[:, None, :]
            late_k += a * earlier[:, None, :]
            both = p * query_blocks + a * given
            total = tl.sum(both, 1)
            near_early += tl.where(later == number, total[:, None, :], 0.0)
            near_flow += both * earlier[:, None, :]
            near_flow -= tl.where(later == number, (total * earlier)[:, None, :], 0.0)
        early += tl.reshape(near_early, [C, BK])
        flow += tl.reshape(near_flow, [C, BK])
    of_q += tl.reshape(late_q, [C, BK])
    of_k += tl.reshape(late_k, [C, BK])
    d_log = summed(rows[None, :] >= rows[:, None], flow, EXACT) + spanning[None, :]
    return of_q, of_k, leaving + early, d_log
