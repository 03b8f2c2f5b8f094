"""The gradients of one chunk of `decay_attention`."""

from __future__ import annotations

import triton
import triton.language as tl

from .decay_kernels import pair_decays, row_decays
from .tiles import block_offsets, cosine, load_rows, product, store_rows, turns


@triton.jit(do_not_specialize=["T", "N"])
def decay_backward(
    q, k, v, decay, turn_high, turn_low, positions, d_out, states, d_states, d_q, d_k, d_v, d_decay, d_turn,
    T, H, G, N, POSITION_STRIDE,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    MODE: tl.constexpr, LEARNED: tl.constexpr, TURN: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """dq and dk [B, T, H, DK] (of every head of v), dv, with LEARNED the gradient of the log-decays [B, T, H], and with
    TURN that of the angles [BH, N, DK], summed over the rows.

    The gradient of a_t is the sum over all pairs of a row t or later with a row before t, inside the chunk, across its
    ends, and over the whole of it: sums alone, no differences.
    """
    WIDE: tl.constexpr = 2 * DK if TURN else DK
    bh, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = bh // H, bh % H
    shared = head // (H // G)
    rows = tl.arange(0, C)
    length = T - chunk * C
    inside = rows < length
    token = batch * T + chunk * C
    keys, values, own = (token * G + shared) * DK, (token * H + head) * DV, (token * H + head) * DK
    before, behind = states + (bh * N + chunk) * WIDE * DV, d_states + (bh * N + chunk) * WIDE * DV
    if TURN:
        position = tl.load(positions + batch * POSITION_STRIDE + chunk * C + rows, mask=inside, other=0)
        position = position[:, None].to(tl.float32)
    score = tl.zeros([C, C], tl.float32)
    for k0 in range(0, DK, BK):
        query = load_rows(q + keys, rows, inside, G * DK, k0, BK)
        key = load_rows(k + keys, rows, inside, G * DK, k0, BK)
        if TURN:
            channels = shared * DK + k0 + tl.arange(0, BK)
            turn = turns(position, tl.load(turn_high + channels)[None, :], tl.load(turn_low + channels)[None, :])
            for half in tl.static_range(2):
                wave = cosine(turn - 0.25 * half, FAST)
                score += product(query * wave, tl.trans(key * wave), EXACT)
        else:
            score += product(query, tl.trans(key), EXACT)
    between = pair_decays(decay, token, head, H, rows, length, C, MODE)
    score *= between
    if MODE > 0:
        from_start, to_end, whole = row_decays(decay, token, head, H, rows, length, C, MODE)
        from_start, to_end, whole = tl.exp2(from_start)[:, None], tl.exp2(to_end)[:, None], tl.exp2(whole)
    d_score = tl.zeros([C, C], tl.float32)
    turned = tl.trans(score)
    for v0 in range(0, DV, BV):
        d_rows = load_rows(d_out + values, rows, inside, H * DV, v0, BV)
        d_score += product(d_rows, tl.trans(load_rows(v + values, rows, inside, H * DV, v0, BV)), EXACT)
        d_values = tl.zeros([C, BV], tl.float32)
        for k0 in range(0, DK, BK):
            key = load_rows(k + keys, rows, inside, G * DK, k0, BK)
            if TURN:
                channels = shared * DK + k0 + tl.arange(0, BK)
                turn = turns(position, tl.load(turn_high + channels)[None, :], tl.load(turn_low + channels)[None, :])
                for half in tl.static_range(2):
                    d_state = tl.load(behind + block_offsets(half * DK + k0, v0, DV, BK, BV))
                    d_values += product(key * cosine(turn - 0.25 * half, FAST), d_state, EXACT)
            else:
                d_state = tl.load(behind + block_offsets(k0, v0, DV, BK, BV))
                d_values += product(key, d_state, EXACT)
        if MODE > 0:
            d_values *= to_end
        d_values += product(turned, d_rows, EXACT)
        store_rows(d_v + values, d_values, rows, inside, H * DV, v0, BV)
    if LEARNED:
        leaving = tl.zeros([C], tl.float32)  # from the chunk's rows to behind it
        entering = tl.zeros([C], tl.float32)  # from before the chunk to its rows
        through = 0.0
        pairs = tl.where(rows[:, None] > rows[None, :], score * d_score, 0.0)
    d_score *= between
    d_turned = tl.trans(d_score)
    for k0 in range(0, DK, BK):
        query = load_rows(q + keys, rows, inside, G * DK, k0, BK)
        key = load_rows(k + keys, rows, inside, G * DK, k0, BK)
        if TURN:
            channels = shared * DK + k0 + tl.arange(0, BK)
            turn = turns(position, tl.load(turn_high + channels)[None, :], tl.load(turn_low + channels)[None, :])
            dq = tl.zeros([C, BK], tl.float32)
            dk = tl.zeros([C, BK], tl.float32)
            d_angle = tl.zeros([C, BK], tl.float32)
            for half in tl.static_range(2):
                wave = cosine(turn - 0.25 * half, FAST)
                from_keys = tl.zeros([C, BK], tl.float32)
                from_queries = tl.zeros([C, BK], tl.float32)
                for v0 in range(0, DV, BV):
                    d_rows = load_rows(d_out + values, rows, inside, H * DV, v0, BV)
                    v_rows = load_rows(v + values, rows, inside, H * DV, v0, BV)
                    block = block_offsets(half * DK + k0, v0, DV, BK, BV)
                    from_keys += product(d_rows, tl.trans(tl.load(before + block)), EXACT)
                    from_queries += product(v_rows, tl.trans(tl.load(behind + block)), EXACT)
                if MODE > 0:
                    from_keys *= from_start
                    from_queries *= to_end
                from_keys += product(d_score, key * wave, EXACT)
                from_queries += product(d_turned, query * wave, EXACT)
                dq += from_keys * wave
                dk += from_queries * wave
                # the cosine turns by minus the sine, the sine by the cosine
                slope = cosine(turn - 0.25 * half + 0.25, FAST)
                d_angle += (query * from_keys + key * from_queries) * slope
            d_angle = tl.sum(d_angle * position, 0)
            tl.store(d_turn + (bh * N + chunk) * DK + k0 + tl.arange(0, BK), d_angle)
        else:
            dq = tl.zeros([C, BK], tl.float32)
            dk = tl.zeros([C, BK], tl.float32)
            for v0 in range(0, DV, BV):
                d_rows = load_rows(d_out + values, rows, inside, H * DV, v0, BV)
                v_rows = load_rows(v + values, rows, inside, H * DV, v0, BV)
                block = block_offsets(k0, v0, DV, BK, BV)
                state = tl.load(before + block)
                d_state = tl.load(behind + block)
                if LEARNED:
                    through += tl.sum(state.to(tl.float32) * d_state.to(tl.float32))
                dq += product(d_rows, tl.trans(state), EXACT)
                dk += product(v_rows, tl.trans(d_state), EXACT)
            if MODE > 0:
                dq *= from_start
                dk *= to_end
            if LEARNED:
                entering += tl.sum(query * dq, 1)
                leaving += tl.sum(key * dk, 1)
            dq += product(d_score, key, EXACT)
            dk += product(d_turned, query, EXACT)
        store_rows(d_q + own, dq, rows, inside, H * DK, k0, BK)
        store_rows(d_k + own, dk, rows, inside, H * DK, k0, BK)
    if LEARNED:
        earlier = rows[:, None] < rows[None, :]
        # [s, t]: pairs of a row before t with a row t or later; first the later one's sum, then the earlier one's
        ending = tl.cumsum(pairs, 0, reverse=True)
        inner = tl.sum(tl.where(tl.trans(earlier), ending, 0.0), 1)
        gradient = inner + through * whole
        gradient += tl.cumsum(entering, 0, reverse=True)
        gradient += tl.sum(tl.where(earlier, leaving[:, None], 0.0), 0)
        tl.store(d_decay + (token + rows) * H + head, gradient, mask=inside)
