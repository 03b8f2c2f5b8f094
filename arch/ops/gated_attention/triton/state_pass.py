"""The passes over time of `gated_attention`: of the states alone, and of the states with what is made of them."""

from __future__ import annotations

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ....kernel_config import GatedConfig, run_segments, state_segments
from ...joint_rows import row_stride
from ...triton.descriptors import blocks
from .forward_kernels import carry, gated_states
from .run_hopper import gated_run


def state_pass(
    x: Tensor,
    v: Tensor,
    reset: Tensor | None,
    decays: Tensor,
    initial: Tensor | None,
    reverse: bool,
    config: GatedConfig,
    exact: bool,
) -> tuple[Tensor, Tensor]:
    """`gated_states`: the states before (reverse: after) every chunk, [B H, N, d_k, d_v] like v, and the last one,
    fp32."""
    rows, chunks, key_dim, value_dim = _sizes(decays, v)
    count, length = state_segments(config, rows, key_dim, value_dim, chunks)
    starts = _starts(x, v, reset, decays, initial, reverse, config, exact, count, length)
    states, final = _states(decays, v)
    _launch(x, v, reset, decays, starts, states, final, None, reverse, config, exact, count, length)
    return states, final


def run_pass(
    a: Tensor, b: Tensor, c: Tensor, reset: Tensor | None, decays: Tensor, ways: Tensor, scores: Tensor, out: Tensor,
    initial: Tensor | None, reverse: bool, config: GatedConfig, exact: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`gated_run`: what `state_pass` returns for b and c, and `out`."""
    rows, chunks, key_dim, value_dim = _sizes(decays, c)
    count, length = run_segments(config, rows, value_dim, chunks)
    starts = _starts(b, c, reset, decays, initial, reverse, config, exact, count, length)
    states, final = _states(decays, c)
    chunk, tile = config.chunk, config.run_tile
    assert out.data_ptr() % 16 == 0, "a copy would be written"
    for far in (False, True):
        gated_run[(value_dim // tile, count, rows)](
            blocks(a, chunk, key_dim), blocks(b, chunk, key_dim), blocks(c, chunk, tile), reset, decays, ways,
            TensorDescriptor.from_tensor(scores.flatten(0, 1), [1, chunk, chunk]), starts,
            TensorDescriptor.from_tensor(states.flatten(0, 1), [1, key_dim, tile]), blocks(out, chunk, tile), final,
            a.shape[1], a.shape[2], chunks, count, length, C=chunk, DK=key_dim, DV=value_dim, TILE=tile,
            TILES=ways.shape[2], FAR=far, REVERSE=reverse, START=starts is not None, RESET=reset is not None,
            EXACT=exact, num_warps=4, num_stages=config.run_stages,
        )  # fmt: skip
    return states, final


def _sizes(decays: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    rows, chunks, _, key_dim = decays.shape
    return rows, chunks, key_dim, v.shape[3]


def _states(decays: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    rows, chunks, key_dim, value_dim = _sizes(decays, v)
    return v.new_empty(rows, chunks, key_dim, value_dim), decays.new_empty(rows, key_dim, value_dim)


def _starts(
    x: Tensor, v: Tensor, reset: Tensor | None, decays: Tensor, initial: Tensor | None, reverse: bool,
    config: GatedConfig, exact: bool, count: int, length: int,
) -> Tensor | None:  # fmt: skip
    """The state at the start of each of `count` segments (reverse: at its end), [B H, segments, d_k, d_v], fp32: where
    they are several each is run on its own from zero, then `carry` adds what came before."""
    if count == 1:
        return initial
    rows, _, key_dim, value_dim = _sizes(decays, v)
    starts = decays.new_empty(rows, count, key_dim, value_dim)
    totals = decays.new_empty(rows, count, key_dim)
    _launch(x, v, reset, decays, None, None, starts, totals, reverse, config, exact, count, length)
    block = min(key_dim, 16)
    carry[(key_dim // block, rows)](
        starts, totals, initial, count, DK=key_dim, DV=value_dim, BK=block, START=initial is not None, REVERSE=reverse
    )
    return starts


def _launch(
    x: Tensor, v: Tensor, reset: Tensor | None, decays: Tensor, starts: Tensor | None, states: Tensor | None,
    final: Tensor, totals: Tensor | None, reverse: bool, config: GatedConfig, exact: bool, count: int, length: int,
) -> None:  # fmt: skip
    rows, chunks, key_dim, value_dim = _sizes(decays, v)
    tile = config.state_tile
    gated_states[((key_dim // tile[0]) * (value_dim // tile[1]), count, rows)](
        x, v, reset, decays, starts, states, final, totals, x.shape[1], x.shape[2], chunks, row_stride(v), length,
        C=config.chunk, DK=key_dim, DV=value_dim, BK=tile[0], BV=tile[1], REVERSE=reverse, START=starts is not None,
        STORE=states is not None, SEGMENTS=count, RESET=reset is not None, EXACT=exact, num_warps=config.state_warps,
        num_stages=config.state_stages, **config.target,
    )  # fmt: skip
