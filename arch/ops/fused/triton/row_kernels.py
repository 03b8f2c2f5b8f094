"""Kernels around the sequence operations: norms, gated products, rotary embedding, the loss over a vocabulary's logits.

Each reads its tensors once and writes its results once, in fp32 between. Tensors are contiguous, in rows of D or V.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2.0**100))  # a power of two: times LOG2E it is exact, so that it less itself is 0, fused too
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(tile, N, D, R: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets [R, BLOCK] of rows tile R .. tile R + R - 1, and which of them exist."""
    rows, columns = tile * R + tl.arange(0, R), tl.arange(0, BLOCK)
    return rows[:, None].to(tl.int64) * D + columns[None, :], (rows[:, None] < N) & (columns[None, :] < D)


@triton.jit
def _load(pointer, at, mask):
    return tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, x, mask):
    tl.store(pointer + at, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def norm_forward(
    x, branch, gate, weight, total, out, eps, N, D,
    R: tl.constexpr, BLOCK: tl.constexpr, BRANCH: tl.constexpr, GATE: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """out = s / sqrt(mean(s^2) + eps) [* weight] [* sigmoid(gate)] with s = x [+ branch, stored as total]."""
    at, mask = _tile(tl.program_id(0), N, D, R, BLOCK)
    s = _load(x, at, mask)
    if BRANCH:
        s = (s + _load(branch, at, mask)).to(total.dtype.element_ty)
        tl.store(total + at, s, mask=mask)
        s = s.to(tl.float32)
    y = s * tl.rsqrt(tl.sum(s * s, 1) / D + eps)[:, None]
    if WEIGHT:
        columns = tl.arange(0, BLOCK)[None, :]
        y *= _load(weight, columns, columns < D)
    if GATE:
        y *= tl.sigmoid(_load(gate, at, mask))
    _store(out, at, y, mask)


@triton.jit
def norm_backward(
    d_out, s, gate, weight, d_total, d_x, d_gate, d_weight, eps, N, D, TILES,
    R: tl.constexpr, BLOCK: tl.constexpr, TOTAL: tl.constexpr, GATE: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """Gradients of norm_forward: of s (with TOTAL that of `total` is added), of the gate, and one share of the weight's
    a program [programs, D]. Programs take tiles in turn."""
    columns = tl.arange(0, BLOCK)[None, :]
    shares = tl.zeros([R, BLOCK], tl.float32)
    if WEIGHT:
        scale = _load(weight, columns, columns < D)
    for tile in range(tl.program_id(0), TILES, tl.num_programs(0)):
        at, mask = _tile(tile, N, D, R, BLOCK)
        d_y, n = _load(d_out, at, mask), _load(s, at, mask)
        inverse = tl.rsqrt(tl.sum(n * n, 1) / D + eps)[:, None]
        n *= inverse
        if GATE:
            opened = tl.sigmoid(_load(gate, at, mask))
            d_g = d_y * n * opened * (1 - opened)
            if WEIGHT:
                d_g *= scale
            _store(d_gate, at, d_g, mask)
            d_y *= opened
        if WEIGHT:
            shares += d_y * n
            d_y *= scale
        d_s = inverse * (d_y - n * (tl.sum(d_y * n, 1) / D)[:, None])
        if TOTAL:
            d_s += _load(d_total, at, mask)
        _store(d_x, at, d_s, mask)
    if WEIGHT:
        tl.store(d_weight + tl.program_id(0) * D + columns, tl.sum(shares, 0)[None, :], mask=columns < D)


@triton.jit
def _numbers(N, BLOCK: tl.constexpr, HALF: tl.constexpr):
    """A program's numbers of N, which of them exist, and where they lie in tensors whose rows are HALF wide, and HALF
    apart; 0: that lie as they are counted."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < N, at + at // HALF * HALF if HALF else at


@triton.jit
def product_forward(a, b, out, N, BLOCK: tl.constexpr, GATE: tl.constexpr, HALF: tl.constexpr):
    """out = a * b, a * silu(b) or a * sigmoid(b). HALF: the width of a and b where they are halves of one's rows."""
    at, mask, there = _numbers(N, BLOCK, HALF)
    factor = _load(b, there, mask)
    if GATE == "silu":
        factor *= tl.sigmoid(factor)
    if GATE == "sigmoid":
        factor = tl.sigmoid(factor)
    _store(out, at, _load(a, there, mask) * factor, mask)


@triton.jit
def product_backward(d_out, a, b, d_a, d_b, N, BLOCK: tl.constexpr, GATE: tl.constexpr, HALF: tl.constexpr):
    """Gradients of product_forward, which lie as a and b do."""
    at, mask, there = _numbers(N, BLOCK, HALF)
    d_y, factor = _load(d_out, at, mask), _load(b, there, mask)
    d_factor = d_y * _load(a, there, mask)
    if GATE == "silu":
        opened = tl.sigmoid(factor)
        d_factor *= opened * (1 + factor * (1 - opened))
        factor *= opened
    if GATE == "sigmoid":
        factor = tl.sigmoid(factor)
        d_factor *= factor * (1 - factor)
    _store(d_a, there, d_y * factor, mask)
    _store(d_b, there, d_factor, mask)


@triton.jit
def scale(x, by, out, N, BLOCK: tl.constexpr):
    """out = x times the number at `by`, N numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _store(out, at, _load(x, at, at < N) * tl.load(by), at < N)


@triton.jit
def move_rows(x, out, N, D, XS, OUT_S, R: tl.constexpr, BLOCK: tl.constexpr):
    """x [N, D], of rows XS apart, to out, of rows OUT_S apart; R rows a program."""
    rows, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BLOCK)[None, :]
    mask, row = (rows[:, None] < N) & (columns < D), rows[:, None].to(tl.int64)
    tl.store(out + row * OUT_S + columns, tl.load(x + row * XS + columns, mask=mask), mask=mask)


@triton.jit
def rotate(q, k, out_q, out_k, cos, sin, N, PERIOD, Q_HEADS, K_HEADS, QS, KS, OUT_QS, OUT_KS, R: tl.constexpr,
           HALF: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr):  # fmt: skip
    """Rotary embedding of q and k [N, heads, 2 HALF], of rows QS and KS apart, of a grid [.., 2], by the angles whose
    cos and sin [PERIOD, HALF] are: token n's row is n modulo PERIOD. BACK: the other way round, the gradient."""
    if tl.program_id(1) == 0:
        x, out, heads, apart, out_apart = q, out_q, Q_HEADS, QS, OUT_QS
    else:
        x, out, heads, apart, out_apart = k, out_k, K_HEADS, KS, OUT_KS
    tokens, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BLOCK)
    mask = (tokens[:, None] < N) & (columns[None, :] < HALF)
    angle = (tokens % PERIOD)[:, None].to(tl.int64) * HALF + columns[None, :]
    c, s = tl.load(cos + angle, mask=mask, other=0.0), tl.load(sin + angle, mask=mask, other=0.0)
    if BACK:
        s = -s
    row = tokens[:, None].to(tl.int64)
    for head in range(heads):
        at, to = row * apart + head * 2 * HALF + columns[None, :], row * out_apart + head * 2 * HALF + columns[None, :]
        first, second = _load(x, at, mask), _load(x, at + HALF, mask)
        _store(out, to, first * c - second * s, mask)
        _store(out, to + HALF, second * c + first * s, mask)


@triton.jit
def unit_rows(x, d_out, out, length, eps, N, STRIDE, D_STRIDE, OUT_STRIDE, R: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr, BACK: tl.constexpr):  # fmt: skip
    """length x / sqrt(sum(x^2) + eps) of a head of x [N, H, WIDTH], whose rows lie STRIDE apart; BACK: its gradient, of
    that of the result, d_out."""
    tokens, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BLOCK)
    mask = (tokens[:, None] < N) & (columns[None, :] < WIDTH)
    row, column = tokens[:, None].to(tl.int64), tl.program_id(1) * WIDTH + columns[None, :]
    n = _load(x, row * STRIDE + column, mask)
    inverse = tl.rsqrt(tl.sum(n * n, 1) + eps)[:, None]
    n *= inverse
    if BACK:
        d_n = _load(d_out, row * D_STRIDE + column, mask)
        n = inverse * (d_n - n * tl.sum(d_n * n, 1)[:, None])
    _store(out, row * OUT_STRIDE + column, n * length, mask)


@triton.jit
def _add_up(x, highs, totals):
    """Maxima [G] and sums of e^(x - maximum) [G], extended by x [G, W]."""
    higher = tl.maximum(highs, tl.max(x, 1))
    totals *= tl.exp2((highs - higher) * LOG2E)
    return higher, totals + tl.sum(tl.exp2(x * LOG2E - (higher * LOG2E)[:, None]), 1)


@triton.jit
def cross_entropy(
    logits, targets, losses, scale, V, PIECES, PIECE: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    GRADIENT: tl.constexpr,
):  # fmt: skip
    """One row a program: -log softmax(logits)[target] in nats, 0 where the target is negative; with GRADIENT the logits
    are overwritten by scale times the loss's gradient. A row is PIECES PIECE numbers long, of which the first V count;
    the others are 0, and stay so.

    G W logits at a time, in G groups that keep maximum and sum of their own: nothing crosses threads before the end.
    Only the last ones, from `whole` on, are masked. A row is read twice: the hints keep it in the L2 cache until then.
    """
    row = tl.program_id(0)
    length = PIECES * PIECE  # so that the compiler knows what divides it, and reads more than one number at a time
    whole = V // (G * W) * (G * W)
    logits += row.to(tl.int64) * length
    target = tl.load(targets + row)
    columns = tl.arange(0, G)[:, None] * W + tl.arange(0, W)[None, :]
    last = whole + columns
    if target < 0:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            for start in range(0, V, G * W):
                at = start + columns
                tl.store(logits + at, tl.zeros([G, W], logits.dtype.element_ty), mask=at < length)
    else:
        # read before the reductions, whose barriers stand between it and the stores below
        chosen = tl.load(logits + target, mask=target < V, other=float("nan")).to(tl.float32)  # so that the loss tells
        highs, totals = tl.full([G], LOWEST, tl.float32), tl.zeros([G], tl.float32)
        for start in range(0, whole, G * W):
            x = tl.load(logits + start + columns, eviction_policy="evict_last").to(tl.float32)
            highs, totals = _add_up(x, highs, totals)
        if whole < V:
            x = tl.load(logits + last, mask=last < length, other=LOWEST).to(tl.float32)
            highs, totals = _add_up(tl.where(last < V, x, LOWEST), highs, totals)
        high = tl.max(highs, 0)
        total = tl.sum(totals * tl.exp2((highs - high) * LOG2E), 0)
        tl.store(losses + row, tl.log(total) - (chosen - high))
        if GRADIENT:
            factor = tl.load(scale)
            share, high = factor / total, high * LOG2E
            for start in range(0, whole, G * W):
                x = tl.load(logits + start + columns, eviction_policy="evict_first").to(tl.float32)
                x = (tl.exp2(x * LOG2E - high) * share).to(logits.dtype.element_ty)
                tl.store(logits + start + columns, x, eviction_policy="evict_first")
            if whole < V:
                x = tl.load(logits + last, mask=last < length, other=LOWEST).to(tl.float32)
                x = tl.where(last < V, tl.exp2(x * LOG2E - high) * share, 0.0)
                _store(logits, last, x, last < length)
            tl.debug_barrier()  # the target's own is written over
            own = tl.exp2(chosen * LOG2E - high) * share - factor
            tl.store(logits + target, own.to(logits.dtype.element_ty), mask=target < V)
