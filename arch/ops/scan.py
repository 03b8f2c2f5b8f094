r"""An element-wise linear recurrence, real or complex (HGRN1).

    h_t = a_t h_{t-1} + b_t        a_t = lam_t (real), or lam_t e^{i theta_t} (complex), 0 <= lam_t <= 1, per channel

HGRN (eq. 3): lam_t = b + (1 - b) mu_t, theta one number per channel, input (1 - lam_t) c_t; its ablation makes theta
data-dependent. The modulus is given as a logarithm, <= 0, and -inf (lam = 0) is legal. Complex numbers are pairs
(re, im) in a last axis of 2, the interleaved order of the authors' code, so that bf16 inputs need no complex dtype.

The complex recurrence is the real one in a turning frame: e^{-i Phi_t} h_t with Phi_t the sum of the angles up to t.
Phi is summed in fp64 and only its sine and cosine are rounded, so that the angle holds at any t.

Pairs without angles are two real numbers that share a lam. The plain forms do not turn them. The kernels take them as
complex numbers that turn by 0: that multiplies by 1 and adds products with 0, which rounds nothing, and costs no time,
as they wait for memory. A gate written out for both numbers would be D more numbers a token to write, read and keep.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor
from torch.autograd.function import once_differentiable

from .common import (
    accumulator,
    carry_states,
    check,
    choose_form,
    chunk_parts,
    cut,
    full_precision,
    full_precision_backward,
    halves,
    levels,
)
from .gated_attention import forget_gate


@full_precision
def scan(
    log_a: Tensor | tuple[Tensor, Tensor],
    b: Tensor,
    theta: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    form: str | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All h_t, shaped as b and in b's dtype, and the final state in fp32 (fp64 for fp64 inputs).

    log_a: [B, T, D], log lam, <= 0, or a pair (logits [B, T, D], bound [D]): lam = bound + (1 - bound) sigmoid(logits),
    and b is the input before its gate, so that (1 - lam) b enters (see `forget_gate`); theta: None for the real
    recurrence, else angles in radians, [D] or [B, T, D]; b: [B, T, D], or pairs [B, T, D, 2], as it must be with theta;
    initial_state: b
    without its time axis, or None for zeros; chunk_size: a power of two; reset: bool [B, T], True where the state is
    set to zero before the token. Raises InputError where a dtype or a shape does not fit.
    """
    pairs = b.dim() == 4 or theta is not None
    parts = "2" if pairs else ""
    gate, bound = log_a if isinstance(log_a, tuple) else (log_a, None)
    check(
        "scan without theta" if theta is None else "scan with theta",
        reset,
        **{"log_a" if bound is None else "logits": (gate, "BTD")},
        bound=(bound, "D"),
        b=(b, f"BTD{parts}"),
        theta=(theta, "D" if theta is not None and theta.dim() == 1 else "BTD"),
        initial_state=(initial_state, f"BD{parts}"),
    )
    dtype = accumulator(gate, bound, b, theta)
    chosen = choose_form(form, b, (), dtype)
    if chosen == "triton":
        return _by_kernels(gate, bound, b, theta, initial_state, reset, pairs)
    entering = b.to(dtype)
    if bound is None:
        log_a = gate.to(dtype)
    else:
        log_a, opening = forget_gate(gate.to(dtype), bound.to(dtype))
        entering = entering * (opening[..., None] if pairs else opening)
    if theta is not None:
        theta = theta.to(dtype).expand(1 if theta.dim() == 1 else -1, gate.shape[1], -1)
    state = b.new_zeros(b.shape[0], *b.shape[2:], dtype=dtype) if initial_state is None else initial_state.to(dtype)
    inputs = (cut(log_a, reset), _parts_inside(entering, pairs), theta, _parts_inside(state, pairs))
    if chosen == "naive" or b.shape[1] == 0:
        out, state = naive(*inputs)
    else:
        out, state = _Scan.apply(*inputs, chunk_size)
    return _parts_last(out, pairs).to(b.dtype), _parts_last(state, pairs)


def _by_kernels(
    gate: Tensor,
    bound: Tensor | None,
    b: Tensor,
    theta: Tensor | None,
    state: Tensor | None,
    reset: Tensor | None,
    pairs: bool,
) -> tuple[Tensor, Tensor]:
    from .triton.scan import recur

    bound = None if bound is None else bound.float()
    state = None if state is None else _parts_inside(state.float(), pairs)
    if pairs and theta is None:
        theta = gate.new_zeros(gate.shape[-1], dtype=torch.float32)
    out, last = recur(gate, bound, b, theta, state, reset)
    return out, _parts_last(last, pairs)


def step(
    log_a: Tensor | tuple[Tensor, Tensor],
    b: Tensor,
    theta: Tensor | None = None,
    state: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token of decoding: h_t and the new state (`scan` without the time axis).

    log_a: [B, D], or a pair of logits [B, D] and their bound [D]; b: [B, D] or pairs [B, D, 2]; theta: None, [D] or
    [B, D]; state: as b, or None for zeros; reset: bool [B].
    """
    if theta is not None and theta.dim() == 2:
        theta = theta[:, None]
    reset = None if reset is None else reset[:, None]
    log_a = (log_a[0][:, None], log_a[1]) if isinstance(log_a, tuple) else log_a[:, None]
    out, state = scan(log_a, b[:, None], theta, state, form="naive", reset=reset)
    return out[:, 0], state


def naive(log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, step by step, with the parts of a number on the axis before the last: b [B, T, 1 or 2, D]."""
    outputs = []
    for t in range(b.shape[1]):
        if theta is not None:
            state = _rotate(state, theta[:, t].cos(), theta[:, t].sin())
        state = log_a[:, t, None].exp() * state + b[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(b), state


def chunk(log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    """`scan_rows` inside chunks of `chunk_size` rows, all chunks at once, and a recurrence over the chunks' states.

    For use without autograd (it works in place, on copies); shapes as in `naive`.
    """
    if theta is not None:
        angles = theta.double().cumsum(1)
        cos, sin = angles.cos().to(b.dtype), angles.sin().to(b.dtype)
        b = _rotate(b, cos, -sin)
    outputs = []
    for size, (log_c, b_c) in chunk_parts(chunk_size, log_a, b):
        # a copy, and the last, shorter chunk is padded to a power of two with b = log a = 0
        rows = 1 << (size - 1).bit_length()
        sums = nnf.pad(log_c, (0, 0, 0, rows - size)).reshape(-1, rows, *log_c.shape[2:])
        h = nnf.pad(b_c, (0, 0, 0, 0, 0, rows - size)).reshape(-1, rows, *b_c.shape[2:])
        scan_rows(h, sums)
        h, decay = (x.unflatten(0, (b.shape[0], -1)) for x in (h, sums.exp_()[:, :, None]))  # [B, N, C, .., D]
        state, states = carry_states(state, decay[:, :, -1].unbind(1), h[:, :, -1].unbind(1))
        h.addcmul_(decay, torch.stack(states, 1)[:, :, None])
        outputs.append(h.flatten(1, 2)[:, : log_c.shape[1]])
    out = torch.cat(outputs, 1)
    if theta is not None:
        return _rotate(out, cos, sin), _rotate(state, cos[:, -1], sin[:, -1])
    return out, state


def scan_rows(h: Tensor, sums: Tensor, rate: Tensor | None = None) -> None:
    """In place: from h = b to the recurrence along the rows of h [M, C, K, D], C a power of two.

    log a is `sums` [M, C, D] (for all K), or with a `rate` [K, D] sums x rate. `sums` becomes its sums from the first
    row to each. Blocks of m = 1, 2, 4, ... rows are joined in pairs: the later block takes the earlier one's last row,
    decayed by the exp of a sum of logarithms from the midpoint on: never a positive exponent, nor a difference.
    """
    for m in levels(h.shape[1]):
        early, late = halves(h, m)
        early_sums, late_sums = halves(sums, m)
        exponent = late_sums[..., None, :]
        gate = exponent.exp() if rate is None else (exponent * rate).exp_()
        late.addcmul_(gate, early[:, :, -1:])
        late_sums += early_sums[:, :, -1:]


class _Scan(torch.autograd.Function):
    """`chunk` with its gradient: the same recurrence backwards in time, G_t = dL/dh_t + conj(a_{t+1}) G_{t+1}.

    dL/db_t = G_t, and log lam_t and theta_t take the two parts of conj(G_t) a_t h_{t-1}, a product: small where a_t is
    small, 0 where it is 0. Differentiating `chunk` itself would keep every level and find them as sums that cancel.
    """

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, b: Tensor, theta: Tensor | None, state: Tensor, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        out, last = chunk(log_a, b, theta, state, chunk_size)
        ctx.save_for_backward(log_a, theta, state, out)
        ctx.chunk_size = chunk_size
        return out, last

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_a, theta, initial, h = ctx.saved_tensors
        turned = None if theta is None else _to_later(theta).neg_()
        d_b = chunk(_to_later(log_a), grads[0].flip(1), turned, grads[1], ctx.chunk_size)[0].flip(1)
        # a_t h_{t-1}
        kept = torch.cat([initial[:, None], h[:, :-1]], 1)
        if theta is not None:
            kept = _rotate(kept, theta.cos(), theta.sin())
        decay = log_a.exp()
        kept *= decay[:, :, None]
        d_log_a = (d_b * kept).sum(2)
        d_state = decay[:, 0, None] * d_b[:, 0]
        if theta is None:
            return d_log_a, d_b, None, d_state, None
        d_theta = d_b[:, :, 1] * kept[:, :, 0] - d_b[:, :, 0] * kept[:, :, 1]
        d_state = _rotate(d_state, theta[:, 0].cos(), -theta[:, 0].sin())
        return d_log_a, d_b, d_theta.sum_to_size(theta.shape), d_state, None


def _to_later(x: Tensor) -> Tensor:
    """Reversed in time and one step late, as the backward recurrence reads decays: 0, x_{T-1}, ..., x_1."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:].flip(1)], 1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [.., 2, D] times cos + i sin [.., D]."""
    re, im = x.unbind(-2)
    return torch.stack([re * cos - im * sin, re * sin + im * cos], -2)


def _parts_inside(x: Tensor, pairs: bool) -> Tensor:
    """[.., D] or [.., D, 2] -> [.., 1 or 2, D]: the axis of channels last, where it runs fast."""
    return x.transpose(-1, -2) if pairs else x[..., None, :]


def _parts_last(x: Tensor, pairs: bool) -> Tensor:
    return x.transpose(-1, -2) if pairs else x.squeeze(-2)
