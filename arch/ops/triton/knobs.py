"""Sizes of tiles, warps and pipeline stages, by shape rules: no search at run time. `override` is for measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

PROGRAMS = 96  # of the pass over the states: with fewer, a sequence is cut into segments


@dataclass(frozen=True)
class Knobs:
    chunk: int
    state_tile: tuple[int, int]  # [d_k, d_v] tile of the pass over the states
    state_warps: int
    state_stages: int
    output_tile: tuple[int, int]
    output_warps: int
    backward_tile: tuple[int, int]
    backward_warps: int
    output_registers: int | None  # at most, of a thread; None: the compiler's choice
    backward_registers: int | None
    segments: int  # 0: as many as the number of programs asks for


_override: dict[str, Any] = {}


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Use these knobs inside the block instead of the rules'. Forward and backward must run under the same."""
    _override.update(values)
    try:
        yield
    finally:
        for name in values:
            _override.pop(name, None)


def gated_knobs(key_dim: int, value_dim: int, exact: bool) -> Knobs:
    narrow = min(key_dim, 32)
    rules = Knobs(
        chunk=32 if exact else 64,
        state_tile=(narrow, min(value_dim, 64 if exact else 128)),
        state_warps=4,
        state_stages=1 if exact else 3,
        output_tile=(narrow, value_dim),
        output_warps=4,
        backward_tile=(min(key_dim, 16) if exact else narrow, value_dim),
        backward_warps=4,
        output_registers=None,
        backward_registers=None,
        segments=0,
    )
    return replace(rules, **_override)


def decay_knobs(key_dim: int, value_dim: int, turned: bool, exact: bool) -> Knobs:
    tile = (min(key_dim, 32 if exact else 64), min(value_dim, 32 if exact else 64))
    backward = (min(key_dim, 32), tile[1]) if turned else tile
    rules = Knobs(
        chunk=32 if exact else 64,
        state_tile=tile,
        state_warps=4,
        state_stages=1 if exact else 3,
        output_tile=(backward[0], min(value_dim, 64 if exact else 128)),
        output_warps=4,
        backward_tile=backward,
        backward_warps=4,
        output_registers=None,
        backward_registers=None,
        segments=0,
    )
    return replace(rules, **_override)


def segments(knobs: Knobs, rows: int, key_dim: int, value_dim: int, chunks: int) -> tuple[int, int]:
    """(segments, chunks in each) of the pass over the states of `rows` sequences times heads."""
    count = knobs.segments
    if not count:
        count = 1
        tiles = rows * (key_dim // knobs.state_tile[0]) * (value_dim // knobs.state_tile[1])
        while count * tiles < PROGRAMS and chunks >= 16 * count:
            count *= 2
    length = -(-chunks // min(count, chunks))
    return -(-chunks // length), length
