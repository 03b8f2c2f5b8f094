r"""A causal filter per channel, as a diagonal state space model with shared poles (cosFormer2's Tpe).

    s_{t,c,j} = lam_j s_{t-1,c,j} + B_cj x_{t,c},    y_{t,c} = sum_j s_{t,c,j} = sum_{k<=t} K_c(k) x_{t-k,c}
    K_c(k) = sum_j B_cj lam_j^k

The paper (section 2.2, A.1.4) gives cost and parameter count of Tpe, not its form; this is the linear,
shift-invariant one that fits both: d x e parameters, 4 n d e FLOPs for state read and update.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .common import (
    accumulator,
    carry_states,
    check,
    choose_form,
    chunk_parts,
    cuts,
    full_precision,
    full_precision_backward,
    product,
)


@full_precision
def causal_filter(
    x: Tensor,
    mix: Tensor,
    log_decay: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    form: str | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, d] in x's dtype and the final state [B, d, e] in fp32 (fp64 for fp64 inputs).

    x: [B, T, d]; mix (B above): [d, e]; log_decay: [e], log lam_j <= 0; initial_state: [B, d, e] or None for zeros;
    reset: bool [B, T], True where the state is set to zero before the token. Raises InputError where a dtype or a shape
    does not fit.
    """
    check(
        "causal_filter",
        reset,
        x=(x, "BTD"),
        mix=(mix, "DE"),
        log_decay=(log_decay, "E"),
        initial_state=(initial_state, "BDE"),
    )
    dtype = accumulator(x, mix, log_decay)
    learned = "the decays are learned" if log_decay.requires_grad else None
    chosen = choose_form(form, x, (mix.shape[1],), dtype, learned)
    if chosen == "triton":
        return _by_kernels(x, mix, log_decay, initial_state, chunk_size, reset)
    state = x.new_zeros(x.shape[0], *mix.shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    inputs = (x.to(dtype), mix.to(dtype), log_decay.to(dtype), state)
    if chosen == "naive":
        out, state = naive(*inputs, reset)
    else:
        out, state = chunk(*inputs, chunk_size, reset)
    return out.to(x.dtype), state


def _by_kernels(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor | None, chunk_size: int, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    from .triton.filter import filtered

    state = None if state is None else state.float().mT
    out, last = filtered(x, mix.float(), log_decay.float(), state, reset, chunk_size)
    return out, last.mT


def step(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor | None = None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token of decoding: the output [B, d] and the new state [B, d, e] (`causal_filter` without the time axis).

    x: [B, d]; mix: [d, e]; log_decay: [e]; state: [B, d, e] or None for zeros; reset: bool [B].
    """
    reset = None if reset is None else reset[:, None]
    out, state = causal_filter(x[:, None], mix, log_decay, state, form="naive", reset=reset)
    return out[:, 0], state


def naive(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step."""
    outputs = []
    for t in range(x.shape[1]):
        if reset is not None:
            state = state.masked_fill(reset[:, t, None, None], 0.0)
        state = log_decay.exp() * state + mix * x[:, t, :, None]
        outputs.append(state.sum(-1))
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(x), state


def chunk(
    x: Tensor, mix: Tensor, log_decay: Tensor, state: Tensor, chunk_size: int, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A Toeplitz product per channel inside chunks; state read and update as matrix products with the powers."""
    batch, _, width = x.shape
    outputs = []
    resets = [] if reset is None else [reset]
    for size, (part, *rest) in chunk_parts(chunk_size, x, *resets):
        x_c = part.reshape(batch, -1, size, width)  # [B, N, C, d]
        steps = torch.arange(size, dtype=x.dtype, device=x.device)
        # where: lam = 0 (-inf) to the power 0 is 1
        powers = torch.where(steps[:, None] > 0, steps[:, None] * log_decay, 0.0).exp()  # [C, e], lam^0 .. lam^(C-1)
        kernel = product(mix, powers.mT)  # [d, C]
        read = powers * log_decay.exp()  # lam^1 .. lam^C
        whole = (size * log_decay).exp()
        if rest:
            passes = cuts(rest[0].reshape(batch, -1, size))
            inside = _WithinDocuments.apply(x_c, kernel, passes.rank)
            updates = product((x_c * passes.last[..., None]).mT, powers.flip(0)) * mix
            state, states = carry_states(state, (passes.whole[..., None, None] * whole).unbind(1), updates.unbind(1))
            outside = passes.first[..., None] * product(read, torch.stack(states, 1).mT)
        else:
            lag = (steps[:, None] - steps[None, :]).long()
            toeplitz = torch.where(lag >= 0, kernel[:, lag.clamp(min=0)], 0.0)  # [d, C, C]
            inside = product(toeplitz, x_c.permute(3, 2, 0, 1).reshape(width, size, -1)).reshape(width, size, batch, -1)
            inside = inside.permute(2, 3, 1, 0)
            updates = product(x_c.mT, powers.flip(0)) * mix  # [B, N, d, e]
            state, states = carry_states(state, [whole] * updates.shape[1], updates.unbind(1))
            outside = product(read, torch.stack(states, 1).mT)
        outputs.append((inside + outside).flatten(1, 2))
    return torch.cat(outputs, 1) if outputs else torch.zeros_like(x), state


class _WithinDocuments(torch.autograd.Function):
    """y_i = sum_k kernel_k x_{i-k} over the rows of i's document in the chunk: x [B, N, C, d], kernel [d, C],
    rank [B, N, C] (see `cuts`). Lag by lag, as masks differ by chunk: no [C, C] matrix per channel and chunk exists."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, rank: Tensor) -> Tensor:
        out = x * kernel[:, 0]
        for k in range(1, x.shape[2]):
            out[:, :, k:].addcmul_(x[:, :, :-k], _same(rank, k) * kernel[:, k])
        ctx.save_for_backward(x, kernel, rank)
        return out

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, kernel, rank = ctx.saved_tensors
        (d_out,) = grads
        d_x = d_out * kernel[:, 0]
        d_kernel = [(d_out * x).sum((0, 1, 2))]
        for k in range(1, x.shape[2]):
            passed = d_out[:, :, k:] * _same(rank, k)
            d_x[:, :, :-k].addcmul_(passed, kernel[:, k])
            d_kernel.append((passed * x[:, :, :-k]).sum((0, 1, 2)))
        return d_x, torch.stack(d_kernel, 1), None


def _same(rank: Tensor, k: int) -> Tensor:
    """Whether a row's document is that of the row k before it: [B, N, C - k, 1]."""
    return (rank[..., k:] == rank[..., :-k])[..., None]
