"""`rotary_hopper_values` again, in Gluon, Triton's lower language: warps of two kinds work side by side.

Those that rotate load chunk after chunk, and leave a's and b's channels times their cosines and sines in shared memory;
those that multiply hold the state, and never wait for an angle. In Triton all warps do one thing after the other, and
a matrix product ends before the next instruction.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ...triton.descriptors import blocks
from ...triton.tiles import packed
from .rotary_angles import cosines

# Registers are what there is too little of: 8 warps that multiply get 208 a thread, which ptxas needs to leave products
# running, 8 that rotate get 48. Rows that are loaded at a time: docs/research/kernels-decay-attention-angles.md has the
# others that were timed.
MULTIPLYING_WARPS, ROTARY_WARPS, ROTARY_REGISTERS, ROWS = 8, 8, 48, 32

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its name in Triton 3.7, and in 3.6


@gluon.jit
def load_rows(a, b, batch, row, column, there, rows_a, rows_b, pred):
    """Asks for the same rows of a and b; `there` tells when both have come."""
    mbarrier.expect(there, 2 * a.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(a, [batch, row, column], there, rows_a, pred=pred)
    tma.async_copy_global_to_shared(b, [batch, row, column], there, rows_b, pred=pred)


@gluon.jit
def rotating(
    a, b, c, theta_high, theta_low, places, rows_a, rows_b, rows_c, a_cos, a_sin, b_cos, b_sin, rows_there,
    values_there, rotated, free, batch, column, value_column, row, stride, count, T,
    C: gl.constexpr, DK: gl.constexpr,
):  # fmt: skip
    """Loads `count` chunks, and rotates a and b of each, a few rows at a time."""
    LOADED_ROWS: gl.constexpr = rows_a.shape[2]
    PIECES: gl.constexpr = C // LOADED_ROWS
    # a warp's threads have four channels each of one row: more would need more registers for theta
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [128 // DK, DK // 4], [gl.num_warps(), 1], [1, 0])
    PASS: gl.constexpr = gl.num_warps() * 128 // DK
    channels = column + gl.arange(0, DK, gl.SliceLayout(0, LAYOUT))
    high, low = gl.load(theta_high + channels)[None, :], gl.load(theta_low + channels)[None, :]
    lines = gl.arange(0, PASS, gl.SliceLayout(1, LAYOUT))
    for piece in gl.static_range(PIECES):
        first = row + piece * LOADED_ROWS
        load_rows(a, b, batch, first, column, rows_there.index(piece), rows_a.index(piece), rows_b.index(piece), True)
    ahead = gl.load(places + row + lines, mask=lines < T - row, other=0.0)
    for step in range(0, count):
        slot = step % 2
        mbarrier.wait(free.index(slot), (step // 2 + 1) % 2)
        mbarrier.expect(values_there.index(slot), c.block_type.nbytes)
        tma.async_copy_global_to_shared(c, [batch, row, value_column], values_there.index(slot), rows_c.index(slot))
        for piece in gl.static_range(PIECES):
            first = row + piece * LOADED_ROWS
            mbarrier.wait(rows_there.index(piece), step % 2)
            x, y = rows_a.index(piece).reshape([LOADED_ROWS, DK]), rows_b.index(piece).reshape([LOADED_ROWS, DK])
            for part in gl.static_range(LOADED_ROWS // PASS):
                # positions are loaded a pass ahead
                position = ahead
                if part + 1 < LOADED_ROWS // PASS or piece + 1 < PIECES:
                    after = first + (part + 1) * PASS
                else:
                    after = row + stride
                ahead = gl.load(places + after + lines, mask=(lines < T - after) & (lines >= -after), other=0.0)
                u = x.slice(part * PASS, PASS).load(LAYOUT).to(gl.float32)
                w = y.slice(part * PASS, PASS).load(LAYOUT).to(gl.float32)
                cos, sin = cosines(position[:, None], high, low, True)
                a_cos.index(slot).slice(piece * LOADED_ROWS + part * PASS, PASS).store(packed(u * cos))
                a_sin.index(slot).slice(piece * LOADED_ROWS + part * PASS, PASS).store(packed(u * sin))
                b_cos.index(slot).slice(piece * LOADED_ROWS + part * PASS, PASS).store(packed(w * cos))
                b_sin.index(slot).slice(piece * LOADED_ROWS + part * PASS, PASS).store(packed(w * sin))
            barrier()
            load_rows(a, b, batch, first + stride, column, rows_there.index(piece), rows_a.index(piece),
                      rows_b.index(piece), step + 1 < count)  # fmt: skip
        fence_async_shared()
        barrier()
        mbarrier.arrive(rotated.index(slot), count=1)
        row += stride


@gluon.jit
def half(state, number: gl.constexpr, LAYOUT: gl.constexpr):
    """The left (0) or the right half of a state's channels, as a left operand in registers."""
    halves = gl.split(gl.permute(gl.reshape(state, [state.shape[0], 2, state.shape[1] // 2]), [0, 2, 1]))
    return gl.convert_layout(packed(halves[number]), LAYOUT)


@gluon.jit
def half_of(x, number: gl.constexpr):
    """The rows' channels of that half in shared memory, on their side."""
    WIDTH: gl.constexpr = x.shape[1] // 2
    return x.slice(number * WIDTH, WIDTH, dim=1).permute([1, 0])


@gluon.jit
def state_before(initial, sums, block, segment, bh, size, SEGMENTS, START: gl.constexpr, REVERSE: gl.constexpr):
    """As in rotary_hopper_values.py."""
    if START:
        state = gl.load(initial + block)
    else:
        state = gl.full(block.shape, 0.0, gl.float32, block.type.layout)
    for step in range(0, SEGMENTS - 1 - segment if REVERSE else segment):
        other = bh * (SEGMENTS - 1) + (SEGMENTS - 1 - step if REVERSE else step)
        state += gl.load(sums + other * size + block)
    return state


@gluon.jit
def multiplying(
    out, initial, sums, final, rows_c, a_cos, a_sin, b_cos, b_sin, pairs, result_rows, values_there, rotated, free,
    batch, head, bh, segment, SEGMENTS, row, stride, count,
    C: gl.constexpr, DK: gl.constexpr, DV: gl.constexpr, REVERSE: gl.constexpr, START: gl.constexpr,
):  # fmt: skip
    """Carries the state, cosines' [DV, DK] and sines', over `count` chunks and writes their outputs.

    A wait stands before every conversion of a part of the state: ptxas would put one there anyway, for it counts
    registers that a product has written in the loop's last iteration as in use while any runs.
    """
    STATE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, DK, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, C, 16])
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, C // 2, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, RESULT, 2)
    size = 2 * DK * DV
    values = gl.arange(0, DV, gl.SliceLayout(1, STATE))
    channels = gl.arange(0, DK, gl.SliceLayout(0, STATE))
    block = bh * size + channels[None, :] * DV + values[:, None]
    state_cos = state_before(initial, sums, block, segment, bh, size, SEGMENTS, START, REVERSE)
    state_sin = state_before(initial, sums, block + DK * DV, segment, bh, size, SEGMENTS, START, REVERSE)
    j = gl.arange(0, C, gl.SliceLayout(1, SCORE))[:, None]
    i = gl.arange(0, C, gl.SliceLayout(0, SCORE))[None, :]
    for step in range(0, count):
        slot = step % 2
        x_cos, x_sin, y_cos, y_sin = a_cos.index(slot), a_sin.index(slot), b_cos.index(slot), b_sin.index(slot)
        result = gl.full([DV, C], 0.0, gl.float32, RESULT)
        score = gl.full([C, C], 0.0, gl.float32, SCORE)
        mbarrier.wait(rotated.index(slot), (step // 2) % 2)
        score = warpgroup_mma(y_cos, x_cos.permute([1, 0]), score, use_acc=False, is_async=True)
        score = warpgroup_mma(y_sin, x_sin.permute([1, 0]), score, is_async=True)
        score, state_cos = warpgroup_mma_wait(0, deps=[score, state_cos])
        # across the chunk's start (REVERSE: end), half of the cosines' or sines' channels at a time
        left = half(state_cos, 0, LEFT)
        result = warpgroup_mma(left, half_of(x_cos, 0), result, use_acc=False, is_async=True)
        pairs.store(packed(gl.where(j >= i if REVERSE else j <= i, score, 0.0)))
        result, left, state_cos = warpgroup_mma_wait(0, deps=[result, left, state_cos])
        left = half(state_cos, 1, LEFT)
        result = warpgroup_mma(left, half_of(x_cos, 1), result, is_async=True)
        result, left, state_sin = warpgroup_mma_wait(0, deps=[result, left, state_sin])
        left = half(state_sin, 0, LEFT)
        result = warpgroup_mma(left, half_of(x_sin, 0), result, is_async=True)
        result, left, state_sin = warpgroup_mma_wait(0, deps=[result, left, state_sin])
        left = half(state_sin, 1, LEFT)
        result = warpgroup_mma(left, half_of(x_sin, 1), result, is_async=True)
        # to the next chunk
        mbarrier.wait(values_there.index(slot), (step // 2) % 2)
        value = rows_c.index(slot).reshape([C, DV]).permute([1, 0])
        state_cos = warpgroup_mma(value, y_cos, state_cos, is_async=True)
        state_sin = warpgroup_mma(value, y_sin, state_sin, is_async=True)
        # inside it
        tma.store_wait(0)  # the last chunk's outputs have left
        fence_async_shared()
        barrier()
        result = warpgroup_mma(value, pairs, result, is_async=True)
        result, state_cos, state_sin, left = warpgroup_mma_wait(0, deps=[result, state_cos, state_sin, left])
        result_rows.reshape([C, DV]).permute([1, 0]).store(packed(result))
        fence_async_shared()
        barrier()
        mbarrier.arrive(free.index(slot), count=1)
        tma.async_copy_shared_to_global(out, [batch, row, head * DV], result_rows)
        row += stride
    tma.store_wait(0)
    if segment == (0 if REVERSE else SEGMENTS - 1):
        gl.store(final + block, state_cos)
        gl.store(final + block + DK * DV, state_sin)


@gluon.jit(do_not_specialize=["T", "N", "SEGMENTS", "PER_SEGMENT", "POSITION_STRIDE"])
def rotary_hopper_values_gluon(
    a, b, c, theta_high, theta_low, positions, initial, sums, out, final,
    T, H, G, N, SEGMENTS, PER_SEGMENT, POSITION_STRIDE,
    C: gl.constexpr, DK: gl.constexpr, DV: gl.constexpr, REVERSE: gl.constexpr, START: gl.constexpr,
    ROTARY_WARPS: gl.constexpr, ROTARY_REGISTERS: gl.constexpr,
):  # fmt: skip
    """`rotary_hopper_values` of bf16 tensors, DK = DV = 128, C = 64; a, b, c and out are Gluon's descriptors, a and b
    in blocks of as many rows as are loaded at a time. `rotated` tells that a chunk lies there rotated, `free` that it
    has been used."""
    OPERAND: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, DK], gl.bfloat16)
    PAIRS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, C], gl.bfloat16)
    LOADED_ROWS: gl.constexpr = a.block_type.shape[1]
    gl.static_assert(C == 64 and DK == 128 and DV == 128, "layouts and registers are for these sizes")
    segment, bh = gl.program_id(0), gl.program_id(1)
    batch, head = bh // H, bh % H
    column = head // (H // G) * DK
    rows_a = gl.allocate_shared_memory(gl.bfloat16, [C // LOADED_ROWS, 1, LOADED_ROWS, DK], a.layout)
    rows_b = gl.allocate_shared_memory(gl.bfloat16, [C // LOADED_ROWS, 1, LOADED_ROWS, DK], b.layout)
    rows_c = gl.allocate_shared_memory(gl.bfloat16, [2, 1, C, DV], c.layout)
    result_rows = gl.allocate_shared_memory(gl.bfloat16, [1, C, DV], out.layout)
    a_cos = gl.allocate_shared_memory(gl.bfloat16, [2, C, DK], OPERAND)
    a_sin = gl.allocate_shared_memory(gl.bfloat16, [2, C, DK], OPERAND)
    b_cos = gl.allocate_shared_memory(gl.bfloat16, [2, C, DK], OPERAND)
    b_sin = gl.allocate_shared_memory(gl.bfloat16, [2, C, DK], OPERAND)
    pairs = gl.allocate_shared_memory(gl.bfloat16, [C, C], PAIRS)
    rows_there = gl.allocate_shared_memory(gl.int64, [C // LOADED_ROWS, 1], mbarrier.MBarrierLayout())
    values_there = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    rotated = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for piece in gl.static_range(C // LOADED_ROWS):
        mbarrier.init(rows_there.index(piece), count=1)
    for slot in gl.static_range(2):
        mbarrier.init(values_there.index(slot), count=1)
        mbarrier.init(rotated.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    first = segment * PER_SEGMENT
    count = gl.minimum(first + PER_SEGMENT, N) - first
    row = (first + count - 1 if REVERSE else first) * C
    stride = -C if REVERSE else C
    gl.warp_specialize(
        [
            (multiplying, (
                out, initial, sums, final, rows_c, a_cos, a_sin, b_cos, b_sin, pairs, result_rows, values_there,
                rotated, free, batch, head, bh.to(gl.int64), segment, SEGMENTS, row, stride, count, C, DK, DV,
                REVERSE, START,
            )),
            (rotating, (
                a, b, c, theta_high, theta_low, positions + batch * POSITION_STRIDE, rows_a, rows_b, rows_c, a_cos,
                a_sin, b_cos, b_sin, rows_there, values_there, rotated, free, batch, column, head * DV, row, stride,
                count, T, C, DK,
            )),
        ],
        [ROTARY_WARPS], [ROTARY_REGISTERS],
    )  # fmt: skip


def gluon_blocks(x: Tensor, rows: int) -> TensorDescriptor:
    """`blocks` of a head's width, as Gluon wants them."""
    descriptor = blocks(x, rows, x.shape[3])
    layout = gl.NVMMASharedLayout.get_default_for(descriptor.block_shape, gl.bfloat16)
    return TensorDescriptor(descriptor.base, descriptor.shape, descriptor.strides, descriptor.block_shape, layout)


def run_values(
    a: Tensor, b: Tensor, c: Tensor, angles: tuple[Tensor, Tensor, Tensor], initial: Tensor | None, sums: Tensor,
    out: Tensor, final: Tensor, sizes: tuple[int, ...], stride: int, reverse: bool, flags: dict[str, Any],
) -> None:  # fmt: skip
    """`rotary_hopper_values_gluon` of bf16 tensors, of `as_rows`. angles: theta / 2 pi in two parts, and positions;
    sizes: T, H, G, N, SEGMENTS, PER_SEGMENT; stride: of rows of positions; flags: C, DK, DV, and others."""
    chunk = flags["C"]
    rotary_hopper_values_gluon[(sizes[4], c.shape[0] * c.shape[2])](
        gluon_blocks(a, ROWS), gluon_blocks(b, ROWS), gluon_blocks(c, chunk), *angles, initial, sums,
        gluon_blocks(out, chunk), final, *sizes, stride, C=chunk, DK=flags["DK"], DV=flags["DV"], REVERSE=reverse,
        START=initial is not None, ROTARY_WARPS=ROTARY_WARPS, ROTARY_REGISTERS=ROTARY_REGISTERS,
        num_warps=MULTIPLYING_WARPS,
    )  # fmt: skip
