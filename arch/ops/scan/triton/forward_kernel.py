# ruff: noqa: RUF005 (tuples are added: Triton does not know the star)
"""The kernels of `scan`: one program a tile of channels and a sequence, W blocks of R rows at a time.

A thread holds whole blocks of its channels, row by row in registers: the recurrence inside a block crosses no threads.
The blocks of a tile are joined by one associative scan over W, and the tiles follow one another. Numbers are re, im
pairs with COMPLEX; a state is [parts, D], the gradients' recurrence runs backwards with conjugate factors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import LOG2E, TWO_PI, cos_sin, inverse, power


@triton.jit
def rows_of(pointer, offsets, row, column, T, R: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """R tensors: the R rows from `row` on of a matrix [T, WIDTH], 0 outside it (with EVEN there is no outside)."""
    rows = ()
    for r in tl.static_range(R):
        if EVEN:
            rows = rows + (tl.load(pointer + offsets + r * WIDTH),)
        else:
            mask = (row + r < T) & (column < WIDTH)
            rows = rows + (tl.load(pointer + offsets + r * WIDTH, mask=mask, other=0.0),)
    return rows


@triton.jit
def parts_of(channel, PARTS: tl.constexpr):
    """Columns of the numbers of consecutive channels [1, BD]."""
    if PARTS == 2:
        return 2 * tl.min(channel, 1)[:, None] + tl.arange(0, 2 * channel.shape[1])[None, :]
    else:
        return channel


@triton.jit
def both(x, PARTS: tl.constexpr):
    """re and im of [W, 2 BD], or x and x again where numbers are real."""
    x = x.to(tl.float32)
    if PARTS == 2:
        return tl.split(x.reshape([x.shape[0], x.shape[1] // 2, 2]))
    else:
        return x, x


@triton.jit
def rotated(re, im, cos, sin, PARTS: tl.constexpr):
    """(re + i im) (cos + i sin); re as it is where numbers are real."""
    if PARTS == 2:
        return re * cos - im * sin, re * sin + im * cos
    else:
        return re, im


@triton.jit
def _join_real(a1, h1, before1, start1, a2, h2, before2, start2):
    return a1 * a2, a2 * h1 + h2, a1 * before2, before2 * h1 + start2


@triton.jit
def _join_complex(ar1, ai1, hr1, hi1, br1, bi1, sr1, si1, ar2, ai2, hr2, hi2, br2, bi2, sr2, si2):
    return (
        ar1 * ar2 - ai1 * ai2,
        ar1 * ai2 + ai1 * ar2,
        ar2 * hr1 - ai2 * hi1 + hr2,
        ar2 * hi1 + ai2 * hr1 + hi2,
        ar1 * br2 - ai1 * bi2,
        ar1 * bi2 + ai1 * br2,
        br2 * hr1 - bi2 * hi1 + sr2,
        br2 * hi1 + bi2 * hr1 + si2,
    )


@triton.jit
def joined(a_re, a_im, h_re, h_im, s_re, s_im, PARTS: tl.constexpr, W: tl.constexpr):
    """From the factors a and values h of W blocks [W, BD] and the state s before them: the state each block starts
    from, and the one behind all of them in every row."""
    ones, zeros = tl.full(a_re.shape, 1.0, tl.float32), tl.zeros(a_re.shape, tl.float32)
    last = tl.arange(0, W)[:, None] == W - 1
    if PARTS == 2:
        a_re, a_im, h_re, h_im, b_re, b_im, z_re, z_im = tl.associative_scan(
            (a_re, a_im, h_re, h_im, ones, zeros, zeros, zeros), 0, _join_complex
        )
        end_re, end_im = rotated(s_re, s_im, a_re, a_im, PARTS)
        end_re = tl.sum(tl.where(last, end_re + h_re, 0.0), 0)[None, :] + zeros
        end_im = tl.sum(tl.where(last, end_im + h_im, 0.0), 0)[None, :] + zeros
        s_re, s_im = rotated(s_re, s_im, b_re, b_im, PARTS)
        return s_re + z_re, s_im + z_im, end_re, end_im
    else:
        a_re, h_re, b_re, z_re = tl.associative_scan((a_re, h_re, ones, zeros), 0, _join_real)
        end = tl.sum(tl.where(last, a_re * s_re + h_re, 0.0), 0)[None, :] + zeros
        start = b_re * s_re + z_re
        return start, start, end, end


@triton.jit
def gate_of(x, lower, LOGITS: tl.constexpr, FAST: tl.constexpr):
    """lam, sigmoid(x) and 1 - lam of logits x; lam alone, three times, of a logarithm x."""
    x = x.to(tl.float32)
    if LOGITS:
        e = power(tl.minimum(x * -LOG2E, 120.0), FAST)
        up = inverse(1.0 + e, FAST)
        return lower + (1.0 - lower) * up, up, (1.0 - lower) * (e * up)
    else:
        lam = power(x * LOG2E, FAST)
        return lam, lam, lam


@triton.jit
def angle_of(theta, FAST: tl.constexpr):
    """cos and sin of angles in radians."""
    rotation = theta.to(tl.float32) * (1.0 / TWO_PI)
    rotation = rotation - tl.floor(rotation + 0.5)
    return cos_sin(rotation * TWO_PI, FAST)


@triton.jit
def constant_rotation(cos, sin, columns, inside, R: tl.constexpr):
    """cos and sin of a constant angle and of R times that angle, R a power of two."""
    cos, sin = tl.load(cos + columns, mask=inside, other=1.0), tl.load(sin + columns, mask=inside, other=0.0)
    re, im = cos, sin
    for step in tl.static_range(10):
        if (1 << step) < R:
            re, im = re * re - im * im, 2 * re * im
    return cos, sin, re, im


@triton.jit
def load_tile(
    gate, x, grad, theta, reset, first, row, channel, T,
    D: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr, ROTATE: tl.constexpr, RESET: tl.constexpr,
    GRAD: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The rows of a tile, a tuple a tensor: gates, inputs, gradients (GRAD), angles (ROTATE 2), resets (RESET); what is
    not there is the gates again. first: the sequence's first row, row [W, 1]: of each block in the sequence."""
    offsets, wide = first * D + row * D + channel, parts_of(channel, PARTS)
    wide_offsets = PARTS * (first * D + row * D) + wide
    gates = rows_of(gate, offsets, row, channel, T, R, D, EVEN)
    inputs = rows_of(x, wide_offsets, row, wide, T, R, PARTS * D, EVEN)
    grads, angles, resets = gates, gates, gates
    if GRAD:
        grads = rows_of(grad, wide_offsets, row, wide, T, R, PARTS * D, EVEN)
    if ROTATE == 2:
        angles = rows_of(theta, offsets, row, channel, T, R, D, EVEN)
    if RESET:
        resets = ()
        for r in tl.static_range(R):
            resets = resets + (tl.load(reset + first + row + r, mask=row + r < T, other=0) != 0,)
    return gates, inputs, grads, angles, resets


@triton.jit
def store_row(
    pointer, re, im, offsets, row, column, r: tl.constexpr, T, D: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Row `row` + r of a matrix of T rows of D numbers; column as `parts_of` gives it, offsets those of `row`."""
    value = re
    if PARTS == 2:
        value = tl.join(re, im).reshape([re.shape[0], 2 * re.shape[1]])
    pointer += offsets + r * PARTS * D
    if EVEN:
        tl.store(pointer, value.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer, value.to(pointer.dtype.element_ty), mask=(row + r < T) & (column < PARTS * D))


@triton.jit(do_not_specialize=["T", "N"])
def scan_forward(
    gate, bound, x, theta, cos, sin, reset, initial, out, starts, final, T, N,
    D: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr, ROTATE: tl.constexpr,
    LOGITS: tl.constexpr, RESET: tl.constexpr, START: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """h of N tiles of W R rows to `out`; the states before every block to `starts` [B, N W, parts, D], fp32, and the
    last one to `final` [B, parts, D].

    gate: logits with LOGITS (bound [D]; inputs are (1 - lam) x), else log lam. ROTATE: 0 real, 1 constant angles (cos,
    sin [D]), 2 angles theta [B, T, D].
    """
    batch = tl.program_id(1).to(tl.int64)
    block = tl.arange(0, W)[:, None]
    channel = tl.program_id(0) * BD + tl.arange(0, BD)[None, :]
    wide, known = parts_of(channel, PARTS), channel < D
    lower = tl.zeros([1, BD], tl.float32)
    if LOGITS:
        lower = tl.load(bound + channel, mask=known, other=0.0)
    c, s, c_all, s_all = lower, lower, lower, lower
    if ROTATE == 1:
        c, s, c_all, s_all = constant_rotation(cos, sin, channel, known, R)
    zero = tl.zeros([W, BD], tl.float32)
    state_re, state_im, end_re, end_im = zero, zero, zero, zero
    if START:
        state_re += tl.load(initial + batch * PARTS * D + channel, mask=known, other=0.0)
        if PARTS == 2:
            state_im += tl.load(initial + (batch * PARTS + 1) * D + channel, mask=known, other=0.0)
    first = batch * T
    tile = load_tile(
        gate, x, x, theta, reset, first, block * R, channel, T, D, R, PARTS, ROTATE, RESET, False, EVEN
    )  # fmt: skip
    for n in range(N):
        row = (n * W + block) * R
        following = (tl.minimum(n + 1, N - 1) * W + block) * R
        ahead = load_tile(
            gate, x, x, theta, reset, first, following, channel, T, D, R, PARTS, ROTATE, RESET, False, EVEN
        )  # fmt: skip
        gates, inputs, _, angles, resets = tile
        factors, updates, rotations = (), (), ()
        whole, angle, h_re, h_im = zero + 1.0, zero, zero, zero
        for r in tl.static_range(R):
            lam, _, opening = gate_of(gates[r], lower, LOGITS, FAST)
            u_re, u_im = both(inputs[r], PARTS)
            if LOGITS:
                u_re, u_im = opening * u_re, opening * u_im
            if RESET:
                lam = tl.where(resets[r], 0.0, lam)
            rotation = (c, s)
            if ROTATE == 2:
                rotation = angle_of(angles[r], FAST)
                angle += angles[r].to(tl.float32)
            h_re, h_im = rotated(h_re, h_im, rotation[0], rotation[1], PARTS)
            h_re, h_im = lam * h_re + u_re, lam * h_im + u_im
            whole *= lam
            factors, updates, rotations = factors + (lam,), updates + ((u_re, u_im),), rotations + (rotation,)
        rotation = (c_all, s_all)
        if ROTATE == 2:
            rotation = angle_of(angle, FAST)
        re, im, state_re, state_im = joined(
            whole * rotation[0] if PARTS == 2 else whole, whole * rotation[1], h_re, h_im, state_re, state_im, PARTS, W
        )  # fmt: skip
        place = PARTS * D * (first + row) + wide
        store = ((batch * N * W + n * W + block) * PARTS) * D + channel
        tl.store(starts + store, re, mask=known & (block >= 0))
        if PARTS == 2:
            tl.store(starts + store + D, im, mask=known & (block >= 0))
        for r in tl.static_range(R):
            re, im = rotated(re, im, rotations[r][0], rotations[r][1], PARTS)
            re, im = factors[r] * re + updates[r][0], factors[r] * im + updates[r][1]
            store_row(out, re, im, place, row, wide, r, T, D, PARTS, EVEN)
            if not EVEN:
                end_re, end_im = tl.where(row + r == T - 1, re, end_re), tl.where(row + r == T - 1, im, end_im)
        tile = ahead
    if EVEN:
        end_re, end_im = tl.where(block == 0, state_re, 0.0), tl.where(block == 0, state_im, 0.0)
    tl.store(final + batch * PARTS * D + channel, tl.sum(end_re, 0)[None, :], mask=known)
    if PARTS == 2:
        tl.store(final + (batch * PARTS + 1) * D + channel, tl.sum(end_im, 0)[None, :], mask=known)
