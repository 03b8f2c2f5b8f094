"""Tile sizes, warps, pipeline stages and segments of the kernels, by rules of shape: no search at run time.

The kernels launch with these sizes, and the memory model counts with them; this module imports no torch. Hardware is an
argument. hopper: bf16 kernels may use Hopper's own matrix instructions (wgmma), on a GPU that has them and with an
assembler without the bug that docs/research/kernels-gated-attention.md describes; else they use the instructions of
sm80, with tiles of their own. exact: operands are fp32. `override` is for measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

MULTIPROCESSORS = 132  # of an H100 or H200; 108 of an A100 are near enough
WIDEST_HEAD = 256  # channels of a head that the kernels take
PROGRAMS = 64  # of the pass over the states: with fewer, a sequence is cut into segments

CAST_AHEAD = 1 << 25  # weights of a model that are cast at once, and kept for the pass; larger ones gain nothing

LOSS_ROWS, LOSS_LOGITS = 8192, 1 << 26  # 1.6 GB with 100,280 words in bf16; 128 MB of them cost nobody anything


def loss_rows(vocabulary: int) -> int:
    """Tokens whose logits are there at a time."""
    return max(LOSS_ROWS, LOSS_LOGITS // vocabulary)


@dataclass(frozen=True)
class GatedConfig:
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
    arch: str | None  # whose matrix instructions are used; None: the device's own
    values_tile: int = 32  # of d_k; gated_values alone
    values_warps: int = 4
    operands_tile: int = 32  # at least as wide as the tiles of the backward
    operands_warps: int = 4
    operands_registers: int | None = None
    far_registers: tuple[int | None, int | None] = (None, None)  # of the scores and the gradients of far channels
    sequential: bool = False  # outputs and dv by the pass over the states (run_hopper.py)
    run_tile: int = 64  # columns of the values in a program of it
    run_stages: int = 3

    @property
    def target(self) -> dict[str, Any]:
        return {} if self.arch is None else {"arch": self.arch}


_override: dict[str, Any] = {}


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Use these sizes inside the block instead of the rules'. Forward and backward must run under the same."""
    _override.update(values)
    try:
        yield
    finally:
        for name in values:
            _override.pop(name, None)


def evened(count: int, chunks: int) -> tuple[int, int]:
    """(segments, chunks in each): at most `count` segments of equal length but for the last, none of them empty."""
    length = -(-chunks // min(count, chunks))
    return -(-chunks // length), length


def gated_chunk(exact: bool) -> int:
    return int(_override.get("chunk", 32 if exact else 64))


def gated_config(key_dim: int, value_dim: int, exact: bool, hopper: bool) -> GatedConfig:
    own = hopper and not exact
    rules = GatedConfig(
        chunk=gated_chunk(exact),
        state_tile=(min(key_dim, 64 if own else 32), min(value_dim, 64)),
        state_warps=4,
        state_stages=1 if exact else 4,
        output_tile=(min(key_dim, 32 if exact else 128 if value_dim <= 128 else 64), value_dim),
        output_warps=4,
        output_registers=None,
        backward_tile=(min(key_dim, 16 if exact else 64 if own else 32), value_dim),
        backward_warps=4,
        backward_registers=None,
        values_tile=min(key_dim, 32 if exact else 64),
        operands_tile=min(key_dim, 32 if exact else 64),
        operands_registers=None if exact else 128,
        far_registers=(None, None) if exact else (128, 168),
        segments=0,
        arch=None if own else "sm80",
        sequential=own and {key_dim, value_dim} <= {64, 128},
        run_tile=min(value_dim, 64),
    )
    return replace(rules, **_override)


@dataclass(frozen=True)
class DecayConfig:
    chunk: int
    tile: int  # columns of a program of `decay_attend` whose outputs have the values' width
    warps: int
    stages: int
    key_tile: int  # and the keys' width
    key_warps: int
    key_stages: int
    learned_stages: int  # the same, where log-decays have gradients
    sum_tile: tuple[int, int]  # [d_k, d_v] of `decay_sums`
    sum_warps: int
    sum_stages: int
    segments: int  # 0: as many as fill the GPU best
    arch: str | None  # as in GatedConfig
    tma: bool | None = None  # whether Hopper's kernels run, which load by TMA (`decay_by_hopper`); None: where they can

    @property
    def target(self) -> dict[str, Any]:
        return {} if self.arch is None else {"arch": self.arch}


def decay_config(key_dim: int, value_dim: int, exact: bool) -> DecayConfig:
    """The state of a program has at most 64 fp32 numbers a thread: more leaves no room for the rest."""
    column = 32 if exact else 64
    rules = DecayConfig(
        chunk=32 if exact else 64,
        tile=min(value_dim, column),
        warps=8 if key_dim > 128 and not exact else 4,
        stages=1 if exact else 2 if key_dim > 128 else 3,
        key_tile=min(key_dim, column),
        key_warps=8 if value_dim > 128 and not exact else 4,
        key_stages=1 if exact else 2 if value_dim > 128 else 3,
        learned_stages=1 if exact else 2,
        sum_tile=(min(key_dim, 32 if exact else 128), min(value_dim, 32 if exact else 64)),
        sum_warps=4,
        sum_stages=1 if exact else 3,
        segments=0,
        arch="sm80",
    )
    return replace(rules, **_override) if _override else rules


def decay_by_hopper(config: DecayConfig, key_dim: int, value_dim: int, exact: bool, hopper: bool) -> bool:
    """Whether the kernels for Hopper run (attend_hopper.py; no angles): bf16, at the widths they were checked at. Their
    sizes are fixed there; of the config they use chunk, tile, key_tile and segments."""
    if config.tma is not None:
        return config.tma
    return {key_dim, value_dim} <= {64, 128} and hopper and not exact


def decay_segments(config: DecayConfig, rows: int, value_dim: int, chunks: int) -> int:
    """Segments of a sequence, for `rows` sequences times heads: the most that 1, 2 or 3 waves of programs hold,
    whichever takes the least time, in units of a program's over a whole sequence. `decay_sums`, over all segments but
    one, takes 0.3 of a program's time. (Nothing here that torch.compile cannot trace.)"""
    slots, programs = MULTIPROCESSORS * 8 // config.warps, rows * (value_dim // config.tile)
    count = config.segments
    if not count:
        count, least = 1, float(-(-programs // slots))
        for waves in (1, 2, 3):
            segments = max(1, min(waves * slots // programs, chunks // 8))
            cost = (-(-programs * segments // slots) + 0.3 * programs / slots * (segments - 1)) / segments
            if cost < least:
                count, least = segments, cost
    return evened(count, chunks)[0]


@dataclass(frozen=True)
class RotaryConfig:
    chunk: int
    warps: int  # of outputs and gradients
    state_tile: tuple[int, int]  # [d_k, d_v] of the pass over the states, cosines and sines
    state_warps: int
    state_stages: int
    output_tile: int  # of d_k
    output_stages: int
    key_tile: int  # the same, of dq and dk
    key_stages: int
    value_tile: int  # and of dv
    value_stages: int
    registers: int | None  # of a thread of the gradients, at most; None: the compiler's choice
    segments: int  # 0: as many as the number of programs asks for
    arch: str | None  # as in GatedConfig
    sequential: bool  # without decays: four sequential runs (rotary_hopper.py) instead of states of every chunk
    gluon: bool  # that over values by rotary_hopper_values_gluon.py

    @property
    def target(self) -> dict[str, Any]:
        return {} if self.arch is None else {"arch": self.arch}


def rotary_config(key_dim: int, value_dim: int, exact: bool, hopper: bool, gluon: bool) -> RotaryConfig:
    """Of `decay_attention` with angles. Three programs of 168 registers fit a multiprocessor."""
    wide, own = value_dim > 128, {key_dim, value_dim} == {128} and hopper and not exact
    rules = RotaryConfig(
        chunk=(16 if wide else 32) if exact else 64,
        warps=4,
        state_tile=(min(key_dim, 32), min(value_dim, 32 if exact else 128)),
        state_warps=4 if exact else 8,
        state_stages=1 if exact else 4,
        output_tile=min(key_dim, 16 if exact else 32),
        output_stages=1 if exact else 3,
        key_tile=min(key_dim, 16 if exact else 32),
        key_stages=1,
        value_tile=min(key_dim, 16),
        value_stages=1 if exact else 3,
        registers=None if exact or wide else 168,
        segments=0,
        arch=None if own else "sm80",
        sequential=own,
        gluon=own and gluon,
    )
    return replace(rules, **_override) if _override else rules


def rotary_segments(config: RotaryConfig, rows: int, key_dim: int, value_dim: int, chunks: int) -> int:
    """Segments of the pass over the states of `rows` sequences times heads: as many as fill the GPU, but not two, for
    what each adds takes as long as the pass itself. (Nothing here that torch.compile cannot trace.)"""
    count = config.segments
    if not count:
        tiles = rows * (key_dim // config.state_tile[0]) * (value_dim // config.state_tile[1])
        count = min(MULTIPROCESSORS // tiles, chunks // 16)
        count = count if count > 2 else 1
    return evened(count, chunks)[0]


def rotary_hopper_segments(config: RotaryConfig, rows: int, chunks: int) -> int:
    """Segments of the runs of `rows` sequences times heads (rotary_hopper.py): as many as fill the GPU once, where a
    multiprocessor holds one program of the values' run."""
    return evened(config.segments or max(1, min(MULTIPROCESSORS // rows, chunks // 8)), chunks)[0]


def state_segments(config: GatedConfig, rows: int, key_dim: int, value_dim: int, chunks: int) -> tuple[int, int]:
    """(segments, chunks in each) of the pass over the states of `rows` sequences times heads."""
    count = config.segments
    if not count:
        count = 1
        tiles = rows * (key_dim // config.state_tile[0]) * (value_dim // config.state_tile[1])
        while count * tiles < PROGRAMS and chunks >= 16 * count:
            count *= 2
    return evened(count, chunks)


def run_segments(config: GatedConfig, rows: int, value_dim: int, chunks: int) -> tuple[int, int]:
    """(segments, chunks in each) of the pass with outputs over `rows` sequences times heads: a program for each
    multiprocessor, of 32 chunks at least."""
    programs = rows * (value_dim // config.run_tile)
    return evened(config.segments or max(1, min(MULTIPROCESSORS // programs, chunks // 32)), chunks)


@dataclass(frozen=True)
class DeltaConfig:
    """Of `gated_delta`."""

    chunk: int
    operands_tile: tuple[int, int]  # [d_k, d_v] that a chunk's operands are made of at a time
    operands_warps: int
    block: int  # rows of the blocks on the diagonal of a chunk's matrix that are inverted side by side
    run_tile: int  # columns of the values in a program of the runs through time
    run_warps: int
    run_stages: int
    gradient_tile: tuple[int, int]  # [d_k, d_v]
    gradient_warps: int
    gradient_stages: int
    arch: str | None  # as in GatedConfig
    tma: bool  # whether tensors go to the runs and the gradients as descriptors for Hopper's copy engine
    scores_tile: int  # of d_k; with decays by channel, as the next ones
    scores_warps: int
    channel_tile: tuple[int, int]  # [d_k, d_v] of the gradients
    channel_warps: int
    channel_stages: int

    @property
    def target(self) -> dict[str, Any]:
        return {} if self.arch is None else {"arch": self.arch}


def delta_config(key_dim: int, value_dim: int, exact: bool, hopper: bool) -> DeltaConfig:
    own = hopper and not exact
    stages = 3 if key_dim == value_dim == 128 else 2  # the rest was not measured with three
    rules = DeltaConfig(
        chunk=32 if exact else 64,
        operands_tile=(min(key_dim, 32 if exact else 128), min(value_dim, 32 if exact else 128)),
        operands_warps=4,
        block=16,
        run_tile=min(value_dim, 32 if exact or (key_dim > 128 and not own) else 64),
        run_warps=8 if key_dim > 128 and not exact else 4,
        run_stages=1 if exact or key_dim > 128 else stages,
        gradient_tile=(min(key_dim, 16 if exact else 64), min(value_dim, 16 if exact else 64)),
        gradient_warps=4,
        gradient_stages=1 if exact else stages,
        arch=None if own else "sm80",
        tma=own,
        scores_tile=min(key_dim, 16 if exact else 32),
        scores_warps=4,
        channel_tile=(16, min(value_dim, 16 if exact else 64)),
        channel_warps=4 if exact else 8,
        channel_stages=1 if exact else 2,
    )
    return replace(rules, **_override) if _override else rules


@dataclass(frozen=True)
class MlpConfig:
    """Of the gated MLP's products with the gate inside (ops/fused/triton/mlp_parts.py), in 208 to 224 KB of memory."""

    resident: bool  # the rows' operand stays there for all columns
    up_columns: int  # of u, and as many of v, in a tile
    up_stages: int
    up_buffers: int
    down_columns: int  # of the gradients of u, and as many of v's
    down_stages: int
    down_slots: int  # tiles of u and v that are loaded ahead
    down_asked: int  # chunks of a tile that are loaded before they are asked for


def mlp_config(width: int) -> MlpConfig | None:
    """Of models `width` wide; None where the kernels were not measured."""
    if width > 1024:
        return None
    if width <= 128:
        rules = MlpConfig(True, 64, 6, 3, 64, 4, 5, 0)
    elif width <= 256:
        rules = MlpConfig(True, 64, 4, 3, 64, 4, 4, 0)
    elif width <= 512:
        rules = MlpConfig(False, 64, 4, 3, 128, 3, 2, 2)
    else:
        rules = MlpConfig(False, 64, 6, 1, 128, 3, 2, 8)
    return replace(rules, **{name: value for name, value in _override.items() if hasattr(rules, name)})


SUM_NORM_ROWS = 16_384  # from which on products with a norm have programs enough: 4,096 take up to 1.6 times as long


def sum_norm_stages(width: int) -> int | None:
    """Chunks that products with a norm (ops/fused/triton/sum_norm.py) load ahead, of rows `width` wide, in 160 to 208
    KB of memory; None where a program cannot hold whole rows."""
    return 6 if width <= 64 else 5 if width <= 128 else 3 if width <= 256 else None


@dataclass(frozen=True)
class ScanConfig:
    """Of a program of `scan`: its channels, and the blocks of `rows` rows that it holds at a time, forward and
    backward."""

    channels: int
    rows: int  # the forward stores a state for each block of as many
    blocks: tuple[int, int]
    per_thread: int  # channels of a thread

    def warps(self, direction: int) -> int:
        return max(1, self.blocks[direction] * self.channels // (32 * self.per_thread))


def scan_config(batch: int, width: int, parts: int) -> ScanConfig:
    """parts: numbers of a state, 2 where it is complex. As measured on an H200 (docs/research/kernels-scans.md): many
    programs hold short tiles, few hold long ones."""
    many = batch * width >= 128 * 64
    if parts == 1:
        return ScanConfig(64, 16, (4, 8), 2) if many else ScanConfig(16, 16, (16, 16), 2)
    return ScanConfig(32, 8, (4, 4), 1) if many else ScanConfig(32, 16, (8, 8), 1)


def scan_states(length: int, batch: int, width: int, parts: int) -> int:
    """How many states of a channel the forward pass of `scan` stores for the backward pass."""
    config = scan_config(batch, width, parts)
    return -(-length // (config.blocks[0] * config.rows)) * config.blocks[0]


@dataclass(frozen=True)
class SelectiveScanConfig:
    """Channels and warps of a program, forward and backward; rows at a time; every how many of these a state is
    stored."""

    channels: tuple[int, int] = (16, 32)
    warps: tuple[int, int] = (2, 2)
    rows: int = 8
    stored: int = 2


SELECTIVE_SCAN = SelectiveScanConfig()
