"""Launches of `decay_attention`'s kernels for Hopper, to which tensors go as descriptors for its copy engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ...joint_rows import row_stride
from ...triton.descriptors import blocks
from .attend_hopper import decay_attend_hopper, decay_sums_hopper


def tma_sums(
    x: Tensor, y: Tensor, table: Tensor, sums: Tensor, totals: Tensor, sizes: tuple[int, ...], tile: int,
    reverse: bool, constant: bool, flags: dict[str, Any],
) -> None:  # fmt: skip
    """`decay_sums_hopper` of all segments but one. sizes: T, H, G, N, SEGMENTS, PER_SEGMENT."""
    rows, count = sums.shape[:2]
    decay_sums_hopper[(x.shape[3] // tile, count - 1, rows)](
        blocks(x, flags["C"], tile), blocks(y, flags["C"], y.shape[3]), table, sums, totals, *sizes, TILE=tile,
        CONSTANT=constant, REVERSE=reverse, num_warps=4, num_stages=4, **flags,
    )  # fmt: skip


def tma_attend(
    a: Tensor, b: Tensor, c: Tensor, own: Tensor | None, table: Tensor, skip: Tensor | None, initial: Tensor | None,
    sums: tuple[Tensor, Tensor], states: Tensor | None, entering: Tensor | None, out: Tensor, final: Tensor | None,
    gradients: Sequence[Tensor | None], rows: int, sizes: tuple[int, ...], tile: int, reverse: bool, constant: bool,
    silu: bool, flags: dict[str, Any],
) -> None:  # fmt: skip
    """`decay_attend_hopper` of `rows` sequences times heads. gradients: memory for those of decays, gain and skip."""
    chunk, keys = flags["C"], own is not None
    stride, stages = 0 if own is None else row_stride(own), None
    if states is not None and own is not None:
        stages = 3 if a.shape[3] <= 64 else 2  # so that two programs' loads fit a multiprocessor
        own = blocks(own, chunk, tile)
        states = TensorDescriptor.from_tensor(states.flatten(0, 1), [1, tile, a.shape[3]])
    decay_attend_hopper[(out.shape[3] // tile, sizes[4], rows)](
        blocks(a, chunk, a.shape[3]), blocks(b, chunk, b.shape[3]), blocks(c, chunk, tile), own, table, skip, initial,
        *sums, states, entering, blocks(out, chunk, tile), final, *gradients, *sizes, stride, TILE=tile, KEYS=keys,
        CONSTANT=constant, REVERSE=reverse, START=initial is not None, FINAL=final is not None,
        LEARNED=states is not None, SKIP=skip is not None, STAGES=stages, SILU=silu, num_warps=4, num_stages=3, **flags,
    )  # fmt: skip
