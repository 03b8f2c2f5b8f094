# ruff: noqa: RUF005 (tuples are added: Triton does not know the star)
"""The gradients of `scan`: states again from those before every block, then the recurrence backwards in time."""

from __future__ import annotations

import triton
import triton.language as tl

from .forward_kernel import angle_of, both, constant_rotation, gate_of, joined, load_tile, parts_of, rotated, store_row


@triton.jit(do_not_specialize=["T", "N"])
def scan_backward(
    gate, bound, x, theta, cos, sin, reset, starts, d_out, d_final, d_gate, d_x, d_theta, d_bound, d_angles, d_initial,
    T, N, STARTS, D: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr,
    ROTATE: tl.constexpr, LOGITS: tl.constexpr, RESET: tl.constexpr, FINAL: tl.constexpr, EVEN: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """G_t = dL/dh_t + conj(a_{t+1}) G_{t+1} over N tiles of W R rows, and from it all gradients; those of bound and
    constant angles by sequence, [B, D]. starts: [B, STARTS, parts, D]; other arguments as in `scan_forward`.

    With LOGITS lam multiplies h_{t-1} and 1 - lam multiplies x: dL/dlam = Re conj(G) (e^{i theta} h_{t-1} - x), and
    dlam/dlogit = (1 - lam) sigmoid(logit), dlam/dbound = (1 - lam) / (1 - bound).
    A bound of 0 is a constant to lam, as in `forget_gate`.
    """
    batch = tl.program_id(1).to(tl.int64)
    block = W - 1 - tl.arange(0, W)[:, None]  # the last comes first
    channel = tl.program_id(0) * BD + tl.arange(0, BD)[None, :]
    wide, known = parts_of(channel, PARTS), channel < D
    lower = tl.zeros([1, BD], tl.float32)
    if LOGITS:
        lower = tl.load(bound + channel, mask=known, other=0.0)
    learned = tl.where(lower > 0, 1.0, 0.0)
    c, s, c_all, s_all = lower, lower, lower, lower
    if ROTATE == 1:
        c, s, c_all, s_all = constant_rotation(cos, sin, channel, known, R)
    zero = tl.zeros([W, BD], tl.float32)
    later_re, later_im, bound_sum, theta_sum, last_re, last_im = zero, zero, zero, zero, zero, zero
    if FINAL:
        last_re += tl.load(d_final + batch * PARTS * D + channel, mask=known, other=0.0)
        if PARTS == 2:
            last_im += tl.load(d_final + (batch * PARTS + 1) * D + channel, mask=known, other=0.0)
    first = batch * T
    for n in range(N):
        row = ((N - 1 - n) * W + block) * R
        gates, inputs, grads, angles, resets = load_tile(
            gate, x, d_out, theta, reset, first, row, channel, T, D, R, PARTS, ROTATE, RESET, True, EVEN
        )  # fmt: skip
        place, wide_place = D * (first + row) + channel, PARTS * D * (first + row) + wide
        held = (row // R < STARTS) & known
        stored = (batch * STARTS + row // R) * PARTS * D + channel
        h_re = tl.load(starts + stored, mask=held, other=0.0)
        h_im = h_re
        if PARTS == 2:
            h_im = tl.load(starts + stored + D, mask=held, other=0.0)
        ups, openings, rotations, kept, ends = (), (), (), (), ()
        for r in tl.static_range(R):
            lam, up, opening = gate_of(gates[r], lower, LOGITS, FAST)
            rotation = (c, s)
            if ROTATE == 2:
                rotation = angle_of(angles[r], FAST)
            h_re, h_im = rotated(h_re, h_im, rotation[0], rotation[1], PARTS)
            if RESET:
                h_re, h_im = tl.where(resets[r], 0.0, h_re), tl.where(resets[r], 0.0, h_im)
            ups, openings, rotations, kept = (
                ups + (up,),
                openings + (opening,),
                rotations + (rotation,),
                kept + ((h_re, h_im),),
            )
            u_re, u_im = both(inputs[r], PARTS)
            if LOGITS:
                u_re, u_im = opening * u_re, opening * u_im
            h_re, h_im = lam * h_re + u_re, lam * h_im + u_im
            g_re, g_im = both(grads[r], PARTS)
            if FINAL:
                g_re += tl.where(row + r == T - 1, last_re, 0.0)
                g_im += tl.where(row + r == T - 1, last_im, 0.0)
            ends = ends + ((g_re, g_im),)
        whole, angle, e_re, e_im = zero + 1.0, zero, zero, zero
        for r in tl.static_range(R - 1, -1, -1):
            lam = lower + (1.0 - lower) * ups[r] if LOGITS else ups[r]
            if RESET:
                lam = tl.where(resets[r], 0.0, lam)
            whole *= lam
            if ROTATE == 2:
                angle += angles[r].to(tl.float32)
            e_re, e_im = rotated(
                lam * (ends[r][0] + e_re), lam * (ends[r][1] + e_im), rotations[r][0], -rotations[r][1], PARTS
            )
        rotation = (c_all, s_all)
        if ROTATE == 2:
            rotation = angle_of(angle, FAST)
        e_re, e_im, later_re, later_im = joined(
            whole * rotation[0] if PARTS == 2 else whole, -whole * rotation[1], e_re, e_im, later_re, later_im, PARTS, W
        )  # fmt: skip
        for r in tl.static_range(R - 1, -1, -1):
            g_re, g_im = ends[r][0] + e_re, ends[r][1] + e_im
            k_re, k_im = kept[r]
            lam = ups[r]
            d_lam, p_re, p_im = lam * g_re * k_re, g_re, g_im
            if LOGITS:
                lam = lower + (1.0 - lower) * ups[r]
                x_re, x_im = both(inputs[r], PARTS)
                p_re, p_im = openings[r] * g_re, openings[r] * g_im
                d_lam, d_lower = p_re * (k_re - x_re), p_re * (learned * k_re - x_re)
                if PARTS == 2:
                    d_lam, d_lower = d_lam + p_im * (k_im - x_im), d_lower + p_im * (learned * k_im - x_im)
                bound_sum += d_lower
                d_lam *= ups[r]
            elif PARTS == 2:
                d_lam += lam * g_im * k_im
            store_row(d_x, p_re, p_im, wide_place, row, wide, r, T, D, PARTS, EVEN)
            store_row(d_gate, d_lam, d_lam, place, row, channel, r, T, D, 1, EVEN)
            if ROTATE == 1:
                theta_sum += lam * (g_im * k_re - g_re * k_im)
            if ROTATE == 2:
                across = lam * (g_im * k_re - g_re * k_im)
                store_row(d_theta, across, across, place, row, channel, r, T, D, 1, EVEN)
            if RESET:
                lam = tl.where(resets[r], 0.0, lam)
            e_re, e_im = rotated(lam * g_re, lam * g_im, rotations[r][0], -rotations[r][1], PARTS)
    top = known & (block == 0)
    tl.store(d_initial + batch * PARTS * D + channel + 0 * block, later_re, mask=top)
    if PARTS == 2:
        tl.store(d_initial + (batch * PARTS + 1) * D + channel + 0 * block, later_im, mask=top)
    if LOGITS:
        total = tl.sum(bound_sum, 0)[None, :] / tl.maximum(1.0 - lower, 1e-30)
        tl.store(d_bound + batch * D + channel, total, mask=known)
    if ROTATE == 1:
        tl.store(d_angles + batch * D + channel, tl.sum(theta_sum, 0)[None, :], mask=known)
