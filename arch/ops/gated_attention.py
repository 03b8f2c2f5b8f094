r"""Linear attention with a forget gate per key channel (HGRN2, GLA).

    S_t = diag(f_t) S_{t-1} + k_t^T v_t,    o_t = q_t S_t        S_t in R^{d_k x d_v}, per head

HGRN2 ties k = 1 - f (HGRN2, eq. 3; Scaling Laws for Linear Complexity LMs, eq. 13). The chunk form splits a chunk in
halves recursively: a pair (i in the upper, j in the lower half) sees exp(sum from the midpoint to i) on i's side and
exp(sum from j+1 to the midpoint - 1) on j's side. Both are <= 1, every level is one matrix product, and a gate of 0
(log f = -inf) is legal; the usual exp(-cumsum) over a whole chunk overflows with strong gates.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import InputError
from .common import (
    accumulator,
    carry_states,
    check,
    choose_form,
    chunk_parts,
    crowded,
    cut,
    from_chunks,
    full_precision,
    full_precision_backward,
    halves,
    kernel_width,
    levels,
    product,
    to_chunks,
    without_padding,
)


@full_precision
def gated_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    log_f: Tensor | tuple[Tensor, Tensor],
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    form: str | None = None,
    reset: Tensor | None = None,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d_v] in v's dtype and the final state [B, H, d_k, d_v] in fp32 (fp64 for fp64 inputs).

    q, k: [B, T, H', d_k], k None for 1 - f, with H' dividing H (each head serves H / H' heads of v); v: [B, T, H, d_v];
    log_f: [B, T, H', d_k], <= 0, or the pair (logits [B, T, H', d_k], bound broadcastable to it, in [0, 1)) for
    f = bound + (1 - bound) sigmoid(logits); initial_state: [B, H, d_k, d_v] or None for zeros; chunk_size: a power of
    two; reset: bool [B, T], True where the state is set to zero before the token (k = 1 - f keeps its f); activation:
    "silu" where q is given before it. Raises InputError where a dtype or a shape does not fit.
    """
    gates = log_f if isinstance(log_f, tuple) else (log_f,)
    check(
        "gated_attention",
        reset,
        v=(v, "BTHV"),
        q=(q, "BTGK"),
        k=(k, "BTGK"),
        log_f=(gates[0], "BTGK"),
        bound=(gates[1] if len(gates) > 1 else None, "~BTGK"),
        initial_state=(initial_state, "BHKV"),
    )
    if activation not in ("", "silu"):
        raise InputError(f"gated_attention: unknown activation {activation!r} of q (valid: '', 'silu')")
    dtype = accumulator(q, k, v, *gates)
    batch, _, heads, width = v.shape
    groups = q.shape[2]
    if heads % groups:
        raise InputError(f"gated_attention: q and the gates have {groups} heads, which do not divide v's {heads}")
    # heads that share their keys and gates are one head whose values are side by side
    wide = v.reshape(*v.shape[:2], groups, heads // groups * width)
    state = None if initial_state is None else initial_state.to(dtype).unflatten(1, (groups, -1)).transpose(2, 3)
    state = None if state is None else state.flatten(3)
    chosen = choose_form(form, wide, (q.shape[-1], wide.shape[-1]), dtype, crowded(wide))
    if chosen == "triton":
        out, state = _by_kernels(q, k, wide, log_f, state, reset, chunk_size, activation)
        return out.reshape(v.shape).to(v.dtype), state.unflatten(-1, (-1, width)).transpose(2, 3).flatten(1, 2)
    if isinstance(log_f, tuple):
        log_gate, complement = forget_gate(log_f[0].to(dtype), log_f[1].to(dtype))
    else:
        log_gate = log_f.to(dtype)
        complement = -log_gate.expm1() if k is None else log_gate
    q = nnf.silu(q) if activation else q
    inputs = (q.to(dtype), complement if k is None else k.to(dtype), wide.to(dtype), cut(log_gate, reset))
    if state is None:
        state = v.new_zeros(batch, groups, q.shape[-1], wide.shape[-1], dtype=dtype)
    if chosen == "naive":
        out, state = naive(*inputs, state)
    else:
        out, state = chunk(*inputs, state, chunk_size)
    return out.reshape(v.shape).to(v.dtype), state.unflatten(-1, (-1, width)).transpose(2, 3).flatten(1, 2)


def _by_kernels(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    log_f: Tensor | tuple[Tensor, Tensor],
    state: Tensor | None,
    reset: Tensor | None,
    chunk_size: int,
    activation: str,
) -> tuple[Tensor, Tensor]:
    from .triton.gated import attend

    bound = None
    if not isinstance(log_f, tuple):
        gate = log_f
    else:
        gate, bound = log_f
        bound = bound.reshape(*[1] * (4 - bound.dim()), *bound.shape)
        if bound.shape[0] * bound.shape[1] == 1:
            bound = bound[0, 0].expand(q.shape[2:]).float()
        else:  # a bound of each token's own: the gates are computed beforehand
            gate, complement = forget_gate(gate.float(), bound.float())
            k, bound = complement if k is None else k, None
    out, last = attend(
        kernel_width(q),
        None if k is None else kernel_width(k),
        kernel_width(v),
        kernel_width(gate),
        None if bound is None else kernel_width(bound),
        None if state is None else kernel_width(state, 2),
        reset,
        chunk_size,
        activation == "silu",
    )
    return without_padding(out, v.shape[-1]), without_padding(last, q.shape[-1], v.shape[-1])


def step(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    log_f: Tensor | tuple[Tensor, Tensor],
    state: Tensor | None = None,
    reset: Tensor | None = None,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """One token of decoding: the output [B, H, d_v] and the new state (`gated_attention` without the time axis).

    q, k, log_f or logits: [B, H, d_k], the bound broadcastable to it; v: [B, H, d_v]; state: [B, H, d_k, d_v] or None
    for zeros; reset: bool [B]; activation: of q, as there.
    """
    if isinstance(log_f, tuple):
        logits, bound = log_f
        gate: Tensor | tuple[Tensor, Tensor] = (logits[:, None], bound.expand_as(logits)[:, None])
    else:
        gate = log_f[:, None]
    key = None if k is None else k[:, None]
    reset = None if reset is None else reset[:, None]
    out, state = gated_attention(
        q[:, None], key, v[:, None], gate, state, form="naive", reset=reset, activation=activation
    )
    return out[:, 0], state


def forget_gate(logits: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """log f and 1 - f for f = bound + (1 - bound) sigmoid(logits), each to about 1e-7 relative.

    1 - f = (1 - bound) sigmoid(-logits) has no cancellation; log f comes from it where f is near 1 and from f itself
    elsewhere, with logsigmoid where bound = 0 (f may underflow there). A bound of exactly 0 counts as a constant: log f
    has no gradient with respect to it (HGRN2's first layer, whose bound is 0 whatever gamma is).
    """
    complement = (1 - bound) * torch.sigmoid(-logits)
    near_one = complement < 0.5
    # each branch is given a harmless argument where the other is taken, else its gradient would be 0 * inf
    small = torch.where(near_one, complement, 0.0)
    f = torch.where(near_one, 1.0, bound + (1 - bound) * torch.sigmoid(logits))
    positive = torch.where(bound > 0, f, 1.0)
    unbounded = nnf.logsigmoid(torch.where(bound > 0, 0.0, logits))
    log_f = torch.where(near_one, torch.log1p(-small), torch.log(positive))
    return torch.where(bound > 0, log_f, unbounded), complement


def naive(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(v.shape[1]):
        state = log_f[:, t].exp()[..., None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state


def chunk(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, state: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    """Matrix products inside chunks of `chunk_size` rows, a recurrence over the chunks' states."""
    outputs = []
    for size, parts in chunk_parts(chunk_size, q, k, v, log_f):
        # the last, shorter chunk is padded to a power of two with k = v = log f = 0
        rows = 1 << (size - 1).bit_length()
        if rows > size:
            parts = tuple(nnf.pad(x, (0, 0, 0, 0, 0, rows - size)) for x in parts)
        q_c, k_c, v_c, g_c = (to_chunks(x, rows) for x in parts)  # [B, H, N, C, D]
        scores, from_start, to_end = _Scores.apply(q_c, k_c, g_c)
        from_start = from_start.exp()
        inside = product(scores, v_c)
        updates = product((k_c * to_end.exp()).mT, v_c)  # [B, H, N, d_k, d_v]
        whole = from_start[..., -1, :, None]
        state, states = carry_states(state, whole.unbind(2), updates.unbind(2))
        out = from_chunks(inside + product(q_c * from_start, torch.stack(states, 2)))
        outputs.append(out if rows == size else out[:, :size])
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(v), state


class _Scores(torch.autograd.Function):
    """Scores [.., C, C] of each row with itself and the rows before it, and the sums of g from the chunk's start to
    each row (with it) and from each row (without it) to the chunk's end, both [.., C, D].

    q, k, g: [.., C, D], C a power of two. The levels of the recursion are blocks of m = 1, 2, 4, ... rows; `prefix`
    and `suffix` hold the sums inside the blocks of the level and grow with it. Plain autograd gives the same
    gradients at more than twice the time: it fills a zero tensor for every half that a level does not touch.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, width = q.shape[-2:]
        q, k, prefix = (x.reshape(-1, rows, width) for x in (q, k, g))
        prefix = prefix.clone(memory_format=torch.contiguous_format)
        suffix = torch.zeros_like(prefix)
        scores = torch.diag_embed((q * k).sum(-1))
        saved = []
        for m in levels(rows):
            early, late = halves(prefix, m)
            before = halves(suffix, m)[0]
            late_gate, early_gate = late.exp(), before.exp()
            q_late, k_early = halves(q, m)[1] * late_gate, halves(k, m)[0] * early_gate
            _cross(scores, m).copy_((q_late @ k_early.transpose(-1, -2)).permute(0, 2, 3, 1))
            before += late[..., -1:, :]
            late += early[..., -1:, :]
            saved += [late_gate, early_gate, q_late, k_early]
        ctx.save_for_backward(q, k, *saved)
        ctx.shape = g.shape
        return scores.reshape(*g.shape[:-1], rows), prefix.reshape(g.shape), suffix.reshape(g.shape)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, *saved = ctx.saved_tensors
        rows, width = q.shape[-2:]
        d_scores = grads[0].reshape(-1, rows, rows)
        d_prefix, d_suffix = (x.reshape(-1, rows, width).clone() for x in grads[1:])
        own = d_scores.diagonal(dim1=-2, dim2=-1)[..., None]
        dq, dk = own * k, own * q
        for m in reversed(levels(rows)):
            late_gate, early_gate, q_late, k_early = saved[-4:]
            del saved[-4:]
            d_early, d_late = halves(d_prefix, m)
            d_before = halves(d_suffix, m)[0]
            # undo the growth of the sums: each half's total had been added to every row of the other
            d_early[..., -1, :] += d_late.sum(-2)
            d_late[..., -1, :] += d_before.sum(-2)
            d_cross = _cross(d_scores, m).permute(0, 3, 1, 2).contiguous()
            d_q_late = d_cross @ k_early
            d_k_early = d_cross.transpose(-1, -2) @ q_late
            halves(dq, m)[1].addcmul_(d_q_late, late_gate)
            halves(dk, m)[0].addcmul_(d_k_early, early_gate)
            d_late.addcmul_(d_q_late, q_late)
            d_before.addcmul_(d_k_early, k_early)
        return dq.reshape(ctx.shape), dk.reshape(ctx.shape), d_prefix.reshape(ctx.shape)


def _cross(scores: Tensor, m: int) -> Tensor:
    """A view of the scores of later rows with earlier ones in every block of 2 m: [M, C, C] -> [M, m, m, C / 2m]."""
    blocks = scores.view(scores.shape[0], -1, 2, m, scores.shape[-1] // (2 * m), 2, m)
    return blocks[:, :, 1, :, :, 0].diagonal(dim1=1, dim2=3)
