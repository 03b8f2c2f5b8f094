"""Where kernels run, the dtype and the shapes of their operands; the pass over the states of `gated_attention`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from ..common import constant
from .gated_kernels import carry
from .knobs import Knobs, segments

F = TypeVar("F", bound=Callable[..., Any])


def on_its_device(function: F) -> F:
    """Run `function` with the GPU of its first tensor as the current one, for Triton launches on that. Backward passes
    that autograd calls run so anyway."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        with torch.cuda.device_of(next(x for x in args if isinstance(x, Tensor))):
            return function(*args)

    return wrapped  # type: ignore[return-value]


@constant
def interpreted() -> bool:
    """Kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def operand_dtype(*tensors: Tensor | None) -> torch.dtype:
    """bf16 where every input is, else fp32; fp32 in the interpreter, whose bf16 products are wrong."""
    present = [x for x in tensors if x is not None]
    return torch.bfloat16 if all(x.dtype == torch.bfloat16 for x in present) and not interpreted() else torch.float32


def contiguous(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if x is None else x.contiguous() for x in tensors)


def decay_table_shape(v: Tensor, decay: Tensor | None, chunk: int) -> tuple[int, ...]:
    """Of what `decay_rows` writes; empty without decays."""
    batch, length, heads = v.shape[:3]
    return (3 if decay is not None else 0, batch * heads, (length + chunk - 1) // chunk, chunk)


def state_pass(
    kernel: Any, arguments: tuple[Any, ...], flags: dict[str, Any], knobs: Knobs, initial: Tensor | None, reverse: bool,
    like: Tensor, shape: tuple[int, int, int, int], dims: Callable[[int], tuple[Any, ...]], dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """States before (reverse: after) every chunk, [rows, N, d_k, d_v] in `dtype`, and the last one [rows, d_k, d_v].

    arguments: the kernel's inputs up to `starts`; dims(chunks a segment): those behind `totals`. With more than one
    segment each is first run on its own from zero, then its start is found by `carry`.
    """
    rows, chunks, key_dim, value_dim = shape
    count, length = segments(knobs, rows, key_dim, value_dim, chunks)
    tile = knobs.state_tile
    tiles = (key_dim // tile[0]) * (value_dim // tile[1])
    options = dict(
        num_warps=knobs.state_warps,
        num_stages=knobs.state_stages,
        BK=tile[0],
        BV=tile[1],
        REVERSE=reverse,
        **knobs.target,
    )
    states = like.new_empty(rows, chunks, key_dim, value_dim, dtype=dtype)
    final = like.new_empty(rows, key_dim, value_dim, dtype=torch.float32)
    starts, totals = initial, None
    if count > 1:
        starts = final.new_empty(rows, count, key_dim, value_dim)
        totals = final.new_empty(rows, count, key_dim)
        kernel[(tiles, count, rows)](
            *arguments, None, None, starts, totals, *dims(length), START=False, STORE=False, SEGMENTS=count,
            **options, **flags,
        )  # fmt: skip
        block = min(key_dim, 16)
        carry[(key_dim // block, rows)](
            starts, totals, initial, count, DK=key_dim, DV=value_dim, BK=block, START=initial is not None,
            REVERSE=reverse,
        )  # fmt: skip
    kernel[(tiles, count, rows)](
        *arguments, starts, states, final, totals, *dims(length), START=starts is not None, STORE=True, SEGMENTS=count,
        **options, **flags,
    )  # fmt: skip
    return states, final
