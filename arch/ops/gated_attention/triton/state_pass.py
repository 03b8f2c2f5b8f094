"""The pass over the states of `gated_attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....kernel_config import GatedConfig, state_segments
from .forward_kernels import carry


def state_pass(
    kernel: Any, arguments: tuple[Any, ...], flags: dict[str, Any], config: GatedConfig, initial: Tensor | None,
    reverse: bool, like: Tensor, shape: tuple[int, int, int, int], dims: Callable[[int], tuple[Any, ...]],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """States before (reverse: after) every chunk, [rows, N, d_k, d_v] in `dtype`, and the last one [rows, d_k, d_v].

    arguments: the kernel's inputs up to `starts`; dims(chunks a segment): those behind `totals`. With more than one
    segment each is first run on its own from zero, then its start is found by `carry`.
    """
    rows, chunks, key_dim, value_dim = shape
    count, length = state_segments(config, rows, key_dim, value_dim, chunks)
    tile = config.state_tile
    tiles = (key_dim // tile[0]) * (value_dim // tile[1])
    options = dict(
        num_warps=config.state_warps,
        num_stages=config.state_stages,
        BK=tile[0],
        BV=tile[1],
        REVERSE=reverse,
        **config.target,
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
