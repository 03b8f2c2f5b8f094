"""Where kernels run, the dtype and the shapes of their operands."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from ..common import constant

F = TypeVar("F", bound=Callable[..., Any])


def on_its_device(function: F) -> F:
    """Run `function` with the GPU of its first tensor as the current one, for Triton launches on that. Backward passes
    that autograd calls run so anyway."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        with torch.cuda.device_of(next(x for x in args if isinstance(x, Tensor))):
            return function(*args)

    return wrapped  # type: ignore[return-value]


_thread = threading.local()


def with_context(x: Tensor) -> None:
    """A descriptor can only be made in a CUDA context, and a thread has none before it asked for something: autograd's
    has not where the allocator had all that its first operation wanted. A kernel of torch's makes it."""
    if x.is_cuda and not getattr(_thread, "has_context", False):
        torch.zeros(1, device=x.device)
        _thread.has_context = True


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


def decay_table_shape(v: Tensor, decay: Tensor | None, chunk: int, gain: Tensor | None = None) -> tuple[int, ...]:
    """Of what `decay_rows` writes; empty without decays."""
    batch, length, heads = v.shape[:3]
    return (0 if decay is None else 3 if gain is None else 5, batch * heads, (length + chunk - 1) // chunk, chunk)
