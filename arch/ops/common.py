"""What the sequence operations share: checks of inputs, the dtype they compute in, the choice of a backend, chunks."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from ..kernel_config import WIDEST_HEAD

WITH_TRITON = importlib.util.find_spec("triton") is not None
BACKENDS = ("naive", "chunk", "triton")
GRID, SHORTEST = 65_535, 32  # a CUDA grid's second and third dimension at most; the shortest chunk of a kernel
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
F = TypeVar("F", bound=Callable[..., Any])
_WARNED: set[str] = set()
SWITCH = "ARCH_KERNELS"  # the environment's: "off" for PyTorch's own operations alone
_off = os.environ.get(SWITCH) == "off"


def constant(function: F) -> F:
    """torch.compile calls `function` while it traces, and takes the result as a constant.

    The same as torch.compiler.assume_constant_result, whose import would load the compiler into every process, which
    takes more than a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def full_precision(function: F) -> F:
    """Run `function` outside autocast: autocast would turn exp, cumsum and matmul of fp32 tensors into bf16."""

    @functools.wraps(function)
    def wrapped(first: Tensor | tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Any:
        device = (first[0] if isinstance(first, tuple) else first).device
        with torch.autocast(device.type, enabled=False):
            return function(first, *args, **kwargs)

    return wrapped  # type: ignore[return-value]


def full_precision_backward(function: F) -> F:
    """`full_precision` for the backward of an autograd.Function, which runs under the autocast state of whoever calls
    it, not of the forward; compiled, it is traced under the forward's."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((grad.device.type for grad in grads if grad is not None), "cpu")
        with torch.autocast(device, enabled=False):
            return function(ctx, *grads)

    return wrapped  # type: ignore[return-value]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        d_out = grads[0].contiguous()  # once, where each product would copy it
        d_a = (d_out @ b.mT).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        d_b = (a.mT @ d_out).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
        return d_a, d_b


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, both of at least two axes; autocast does not reach its backward (see `full_precision_backward`)."""
    return _Product.apply(a, b)


def accumulator(*tensors: Tensor | None) -> torch.dtype:
    """float64 where an input is float64, else float32: the dtype of gates, decays, states and sums."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def choose_backend(
    backend: str | None, x: Tensor, widths: Sequence[int], dtype: torch.dtype, obstacle: str | None = None
) -> str:
    """`backend`, if given; else `triton` on a GPU that can run the kernels, and `chunk` elsewhere.

    x: a sequence [B, T, ..]; widths: of the heads' keys and values; dtype: in which the operation computes; obstacle:
    why there is no kernel for this case, or None. Where kernels were asked for, or could be expected on a GPU, but
    cannot run, a warning says so once and `chunk` is taken.
    """
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r} of a sequence operation (valid: {', '.join(BACKENDS)})")
    if backend in ("naive", "chunk"):
        return backend
    if backend is None and (x.device.type != "cuda" or dtype == torch.float64 or x.numel() == 0):
        return "chunk"
    obstacle = obstacle or kernel_obstacle(x, widths, dtype)
    if obstacle is None:
        return "triton"
    warn_once(f"no Triton kernel: {obstacle}; the chunk backend runs instead")
    return "chunk"


@constant
def warn_once(message: str) -> None:
    """A warning, the first time that this process has it."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, stacklevel=4)


def kernel_obstacle(x: Tensor, widths: Sequence[int], dtype: torch.dtype) -> str | None:
    """Why the Triton kernels cannot run on tensors like x, or None.

    They need a GPU of compute capability 8.0 or more (or Triton's interpreter), a dtype of at most 32 bits, and keys
    and values (`widths`) of at most 256 channels.
    """
    if x.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the device is {x.device.type}"
    if (obstacle := device_obstacle(x.device)) is not None:
        return obstacle
    if dtype == torch.float64:
        return "an input is float64"
    if any(width > WIDEST_HEAD for width in widths):
        return f"a head is {max(widths)} wide, more than {WIDEST_HEAD}"
    return "a tensor is empty" if x.numel() == 0 else None


def crowded(v: Tensor) -> str | None:
    """Why v [B, T, H, ..] has more heads or chunks than a GPU's grid can hold programs, or None.

    The kernels launch a program for each head of a sequence and each chunk; two of a grid's three dimensions hold at
    most GRID.
    """
    if v.shape[0] * v.shape[2] > GRID:
        return f"sequences times heads are more than {GRID:,}"
    return f"a sequence is longer than {SHORTEST * GRID:,} tokens" if v.shape[1] > SHORTEST * GRID else None


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside, every operation is PyTorch's own."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


@constant
def device_obstacle(device: torch.device) -> str | None:
    """Why none of our Triton kernels runs on this device, or None; a CPU has the interpreter."""
    if _off:
        return f"they are switched off ({SWITCH}=off)"
    if not WITH_TRITON:
        return "triton is not installed"
    if device.type == "cuda" and torch.version.hip:  # the kernels have instructions of NVIDIA's in them
        return "the GPU is AMD's"
    if device.type == "cuda" and _capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    return None


_capability = functools.cache(torch.cuda.get_device_capability)  # asked for some hundred times a step


def kernel_width(x: Tensor, axes: int = 1) -> Tensor:
    """x with its last axes padded with zeros to powers of two, at least 16, as the kernels need them."""
    pads: list[int] = []
    for size in reversed(x.shape[-axes:]):
        pads += [0, max(16, 1 << (size - 1).bit_length()) - size]
    return torch.nn.functional.pad(x, pads) if any(pads) else x


def without_padding(x: Tensor, *sizes: int) -> Tensor:
    """x with its last axes cut to `sizes`; x itself where they fit: a slice's backward makes a tensor of zeros."""
    for axis, size in enumerate(sizes, start=-len(sizes)):
        x = x if x.shape[axis] == size else x.narrow(axis, 0, size)
    return x


def check(operation: str, document_starts: Tensor | None, **inputs: tuple[Tensor | None, str]) -> None:
    """Raise InputError in one line where an input is not of a float dtype or does not fit the shapes before it.

    inputs: {name: (tensor or None, its axes)}; an axis is a letter, or a digit that is its size; after a "~" the tensor
    need only broadcast to the axes. document_starts: bool [B, T].
    """
    sizes: dict[str, int] = {}
    for name, (x, axes) in inputs.items():
        if x is None:
            continue
        if x.dtype not in FLOATS:
            raise InputError(
                f"{operation}: {name} is {_plain(x.dtype)}, which is not supported; "
                f"pass one of {', '.join(map(_plain, FLOATS))}"
            )
        shape, spread = list(x.shape), axes[0] == "~"
        axes = axes.removeprefix("~")
        if spread:
            shape = [1] * (len(axes) - len(shape)) + shape
        fits = len(shape) == len(axes)
        for axis, size in zip(axes, shape, strict=False):
            wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
            fits = fits and (size == wanted or (spread and size == 1))
        if not fits:
            expected = ", ".join(f"{axis} = {sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise InputError(f"{operation}: {name} has shape {list(x.shape)}, expected [{expected}]")
    if document_starts is not None and (
        document_starts.dtype != torch.bool or list(document_starts.shape) != [sizes["B"], sizes["T"]]
    ):
        raise InputError(
            f"{operation}: document_starts is {_plain(document_starts.dtype)} {list(document_starts.shape)}, "
            f"expected bool [B = {sizes['B']}, T = {sizes['T']}]"
        )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def no_second_derivative(operation: str) -> None:
    """Raises InputError in a backward pass whose own gradient is asked for: the kernels write theirs into memory that
    autograd does not follow. Call it there."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise InputError(
            f"{operation}: its kernels' gradients have no gradient (create_graph=True): ask for backend='chunk'"
        )


def cut(log_decay: Tensor, document_starts: Tensor | None) -> Tensor:
    """log_decay [B, T, ...] with -inf at document starts: a decay of 0, and no gradient there."""
    if document_starts is None:
        return log_decay
    return log_decay.masked_fill(
        document_starts.reshape(*document_starts.shape, *[1] * (log_decay.dim() - 2)), float("-inf")
    )


def to_chunks(x: Tensor, size: int) -> Tensor:
    """[B, T, H, ...] with T a multiple of `size` -> [B, H, T/size, size, ...]."""
    batch, length, heads = x.shape[:3]
    return x.reshape(batch, length // size, size, heads, *x.shape[3:]).movedim(3, 1).contiguous()


def from_chunks(x: Tensor) -> Tensor:
    """[B, H, N, C, D] -> [B, N C, H, D]."""
    batch, heads, chunks, size, width = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(batch, chunks * size, heads, width)


def chunk_parts(size: int, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Cut [B, T, ...] tensors along T into the whole chunks and the shorter chunk left over; yields the rows of a chunk
    and the tensors. It slices only where there are two parts: a slice's backward fills a whole tensor with zeros."""
    length = tensors[0].shape[1]
    whole = length // size * size
    if whole == length or whole == 0:
        if length:
            yield min(size, length), tensors
        return
    yield size, tuple(x[:, :whole] for x in tensors)
    yield length - whole, tuple(x[:, whole:] for x in tensors)


class Cuts(NamedTuple):
    """Where documents begin in a chunk of C rows: bool tensors, True where the state is carried on."""

    first: Tensor  # [.., C]: from before the chunk to each row
    last: Tensor  # [.., C]: from each row to the chunk's end
    whole: Tensor  # [..]: through the whole chunk
    rank: Tensor  # [.., C]: the document starts from the chunk's start to each row; equal ranks are one document


def cuts(document_starts: Tensor) -> Cuts:
    """document_starts [.., C], bool."""
    rank = document_starts.cumsum(-1)
    return Cuts(rank == 0, rank == rank[..., -1:], rank[..., -1] == 0, rank)


def carry_states(state: Tensor, decays: Sequence[Tensor], updates: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The recurrence over chunks, S <- decay * S + update: the last state and the state before each chunk."""
    before = []
    for decay, update in zip(decays, updates, strict=True):
        before.append(state)
        state = decay * state + update
    return state, before


def lost_by_rounding(initial: Tensor, d_final: Tensor, whole: Tensor, kept: torch.dtype, d_kept: torch.dtype) -> Tensor:
    """What the log-decays' gradients [B, T, H] of a sequence of one chunk lack, [B, 1, H]. whole: its decay [B H]; by
    channel [B, T, H, d_k], [B, 1, H, d_k] and [B H, d_k].

    Pairs that span the chunk are the state before it times the gradient behind it, which the kernels take as `kept` and
    `d_kept`; here both are given in fp32. Of a few rows little else is rounded; of a whole chunk everything is.
    """
    axes = (2, 3) if whole.dim() == 1 else (3,)
    lost = (initial * d_final).sum(axes) - (initial.to(kept).float() * d_final.to(d_kept).float()).sum(axes)
    return (lost * whole.view_as(lost)).unsqueeze(1)


def levels(rows: int) -> list[int]:
    """Block lengths 1, 2, 4, ..., rows / 2: the levels at which a chunk's blocks are joined in pairs."""
    return [1 << level for level in range(rows.bit_length() - 1)]


def halves(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Views of the earlier and the later m rows of every block of 2 m: [M, C, ...] -> twice [M, C / 2m, m, ...]."""
    pairs = x.view(x.shape[0], -1, 2, m, *x.shape[2:])
    return pairs[:, :, 0], pairs[:, :, 1]
