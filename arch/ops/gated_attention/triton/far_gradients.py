"""What `gated_backward` does for tiles that are not referred to a chunk's middle (far_channels.py), all of it
[BK, C]."""

from __future__ import annotations

import triton
import triton.language as tl

from ...triton.tiles import power, product, rounded, time_sums, transposed


@triton.jit
def _quarter(log_f, rows, NUMBER: tl.constexpr, C: tl.constexpr):
    """The sums over one quarter of a chunk's rows."""
    return tl.sum(tl.where(rows[None, :] // (C // 4) == NUMBER, log_f, 0.0), 1)


@triton.jit
def middles_of_halves(log_f, near, C: tl.constexpr, FAST: tl.constexpr):
    """The decays from q's reference to the middle of a row's half and from there to k's, [BK, C]; from the earlier
    half's middle to the chunk's, and from that to the later half's, [BK, 1].

    Channels that are `near` have the chunk's middle as both references: factors above 1 lead from it back to the
    earlier half's middle (q's), and from the later half's back to it (k's).
    """
    rows = tl.arange(0, C)
    later = rows[None, :] >= C // 2
    a, b = _quarter(log_f, rows, 0, C), _quarter(log_f, rows, 1, C)
    c, d = _quarter(log_f, rows, 2, C), _quarter(log_f, rows, 3, C)
    to_early, to_late = tl.where(near, -b, a), tl.where(near, c, a + b + c)
    from_early, from_late = tl.where(near, b, b + c + d), tl.where(near, -c, d)
    to_middle = tl.where(later, power(to_late, FAST)[:, None], power(to_early, FAST)[:, None])
    from_middle = tl.where(later, power(from_late, FAST)[:, None], power(from_early, FAST)[:, None])
    return to_middle, from_middle, power(b, FAST)[:, None], power(c, FAST)[:, None]


@triton.jit
def by_halves(query, k, log_f, table, d_score, C: tl.constexpr, LEVELS: tl.constexpr, EXACT: tl.constexpr,
              FAST: tl.constexpr):  # fmt: skip
    """dq, dk and q dq less k dk of the pairs of two rows of a chunk, for any decay: at every level a row is in the
    later block, and gives its step to dq, or in the earlier one, and gives it to dk."""
    rows = tl.arange(0, C)
    d_score += tl.trans(d_score)
    dq, dk, flow = tl.zeros_like(k), tl.zeros_like(k), tl.zeros_like(k)
    for size in tl.range(0, LEVELS, disable_licm=True):
        late = ((rows[None, :] >> size) & 1) == 1
        decay = power(time_sums(log_f, transposed(table, 8 + size, C), EXACT), FAST)
        x = rounded(tl.where(late, query, k) * decay, EXACT)
        pairs = ((rows[:, None] >> size) ^ (rows[None, :] >> size)) == 1
        dx = product(x, tl.where(pairs, d_score, 0.0), EXACT)
        flow += tl.where(late, dx, -dx) * x
        dx *= decay
        dq += tl.where(late, dx, 0.0)
        dk += tl.where(late, 0.0, dx)
    return dq, dk, flow
