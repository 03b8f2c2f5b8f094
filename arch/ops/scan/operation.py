r"""An element-wise linear recurrence, real or complex (HGRN1).

    h_t = a_t h_{t-1} + b_t        a_t = lam_t (real), or lam_t e^{i theta_t} (complex), 0 <= lam_t <= 1, per channel

HGRN (eq. 3): lam_t = b + (1 - b) mu_t, theta one number per channel, input (1 - lam_t) c_t; its ablation makes theta
data-dependent. The modulus is given as a logarithm, <= 0, and -inf (lam = 0) is legal. Complex numbers are pairs
(re, im) in a last axis of 2, the interleaved order of the authors' code, so that bf16 inputs need no complex dtype.

The complex recurrence is the real one in a rotating frame: e^{-i Phi_t} h_t with Phi_t the sum of the angles up to t.
Phi is summed in fp64 and only its sine and cosine are rounded, so that the angle holds at any t.

Pairs without angles are two real numbers that share a lam. The plain PyTorch backends do not rotate them. The kernels
take them as complex numbers rotated by 0: that multiplies by 1 and adds products with 0, which rounds nothing, and
costs no time, as they wait for memory. A gate written out for both numbers would be D more numbers a token to write,
read and keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common import (
    accumulator,
    check,
    choose_backend,
    cut,
    full_precision,
)
from ..forget_gate import forget_gate
from .chunk import Scan
from .naive import naive


@full_precision
def scan(
    log_a: Tensor | tuple[Tensor, Tensor],
    b: Tensor,
    theta: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
    backend: str | None = None,
    document_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All h_t, shaped as b and in b's dtype, and the final state in fp32 (fp64 for fp64 inputs).

    log_a: [B, T, D], log lam, <= 0, or a pair (logits [B, T, D], bound [D]): lam = bound + (1 - bound) sigmoid(logits),
    and b is the input before its gate, so that (1 - lam) b enters (see `forget_gate`); theta: None for the real
    recurrence, else angles in radians, [D] or [B, T, D]; b: [B, T, D], or pairs [B, T, D, 2], as it must be with theta;
    initial_state: b
    without its time axis, or None for zeros; chunk_size: a power of two; document_starts: bool [B, T], True where the
    state is set to zero before the token. Raises InputError where a dtype or a shape does not fit.
    """
    pairs = b.dim() == 4 or theta is not None
    parts = "2" if pairs else ""
    gate, bound = log_a if isinstance(log_a, tuple) else (log_a, None)
    check(
        "scan without theta" if theta is None else "scan with theta",
        document_starts,
        **{"log_a" if bound is None else "logits": (gate, "BTD")},
        bound=(bound, "D"),
        b=(b, f"BTD{parts}"),
        theta=(theta, "D" if theta is not None and theta.dim() == 1 else "BTD"),
        initial_state=(initial_state, f"BD{parts}"),
    )
    dtype = accumulator(gate, bound, b, theta)
    chosen = choose_backend(backend, b, (), dtype)
    if chosen == "triton":
        return _by_kernels(gate, bound, b, theta, initial_state, document_starts, pairs)
    entering = b.to(dtype)
    if bound is None:
        log_a = gate.to(dtype)
    else:
        log_a, opening = forget_gate(gate.to(dtype), bound.to(dtype))
        entering = entering * (opening[..., None] if pairs else opening)
    if theta is not None:
        theta = theta.to(dtype).expand(1 if theta.dim() == 1 else -1, gate.shape[1], -1)
    state = b.new_zeros(b.shape[0], *b.shape[2:], dtype=dtype) if initial_state is None else initial_state.to(dtype)
    inputs = (cut(log_a, document_starts), _parts_inside(entering, pairs), theta, _parts_inside(state, pairs))
    if chosen == "naive" or b.shape[1] == 0:
        out, state = naive(*inputs)
    else:
        out, state = Scan.apply(*inputs, chunk_size)
    return _parts_last(out, pairs).to(b.dtype), _parts_last(state, pairs)


def _by_kernels(
    gate: Tensor,
    bound: Tensor | None,
    b: Tensor,
    theta: Tensor | None,
    state: Tensor | None,
    document_starts: Tensor | None,
    pairs: bool,
) -> tuple[Tensor, Tensor]:
    from .triton.operator import recur

    bound = None if bound is None else bound.float()
    state = None if state is None else _parts_inside(state.float(), pairs)
    if pairs and theta is None:
        theta = gate.new_zeros(gate.shape[-1], dtype=torch.float32)
    out, last = recur(gate, bound, b, theta, state, document_starts)
    return out, _parts_last(last, pairs)


def _parts_inside(x: Tensor, pairs: bool) -> Tensor:
    """[.., D] or [.., D, 2] -> [.., 1 or 2, D]: the axis of channels last, where it runs fast."""
    return x.transpose(-1, -2) if pairs else x[..., None, :]


def _parts_last(x: Tensor, pairs: bool) -> Tensor:
    return x.transpose(-1, -2) if pairs else x.squeeze(-2)
