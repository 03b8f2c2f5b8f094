"""`gated_attention` by matrix products inside chunks, in plain PyTorch: the backend on CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common import carry_states, chunk_parts, from_chunks, full_precision_backward, halves, levels, product, to_chunks


def chunk(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, state: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    """Matrix products inside chunks of `chunk_size` rows, a recurrence over the chunks' states."""
    outputs = []
    for size, parts in chunk_parts(chunk_size, q, k, v, log_f):
        # the last, shorter chunk is padded to a power of two with k = v = log f = 0
        rows = 1 << (size - 1).bit_length()
        if rows > size:
            parts = tuple(nnf.pad(x, (0, 0, 0, 0, 0, rows - size)) for x in parts)
        q_c, k_c, v_c, g_c = (to_chunks(x, rows) for x in parts)  # [B, H, N, C, D]
        scores, from_start, to_end = Scores.apply(q_c, k_c, g_c)
        from_start = from_start.exp()
        inside = product(scores, v_c)
        updates = product((k_c * to_end.exp()).mT, v_c)  # [B, H, N, d_k, d_v]
        whole = from_start[..., -1, :, None]
        state, states = carry_states(state, whole.unbind(2), updates.unbind(2))
        out = from_chunks(inside + product(q_c * from_start, torch.stack(states, 2)))
        outputs.append(out if rows == size else out[:, :size])
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(v), state


class Scores(torch.autograd.Function):
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
