"""What mlp_forward.py, mlp_backward.py and projections_kernel.py have in common, in Gluon, Triton's lower language.

A program has 128 rows of the left operand and goes through tiles of columns. One warp loads; two groups of four warps
take tiles in turn, so that one applies gate or silu to its tile and stores it while the other multiplies. What is
loaded comes in chunks of 64 columns of the products' inner dimension, through a ring of STAGES slots. A program's tiles
are numbered; chunk k of K of tile `number` is its chunk number K + k, so that every role knows where it lies.

RESIDENT: the rows are loaded once, in K chunks, and stay for all tiles of columns; else they come with every chunk.

Barriers: `full` and `free` of the ring's slots, `x_full` and `x_free` of the resident chunks, `order` for the groups'
turns. A wait names the parity of a phase, so none may begin before the phase two earlier is over: a group that took
its chunks out of turn would take one that has not come for one that has.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its name in Triton 3.7, and in 3.6


@gluon.jit
def sigmoid(x):
    """Of fp32 x. One piece of assembly: in several the compiler moves them apart, and spills what lies between."""
    return gl.inline_asm_elementwise(
        "{.reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000;"
        " rcp.approx.ftz.f32 $0, t;}",
        "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def tiles_here(TILES, ACROSS, RESIDENT: gl.constexpr):
    """How many tiles this program has, of TILES rows of ACROSS."""
    if RESIDENT:
        return (TILES - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0) * ACROSS
    else:
        return (TILES * ACROSS - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def place(number, ACROSS, RESIDENT: gl.constexpr):
    """A tile's row tile among this program's, its column tile, its first row. Where rows do not stay, neighbouring
    programs have the same ones, so that few are read at a time, and the weights stay in the L2 cache."""
    if RESIDENT:
        count = number // ACROSS
        return count, number - count * ACROSS, (gl.program_id(0) + count * gl.num_programs(0)) * 128
    else:
        tile = gl.program_id(0) + number * gl.num_programs(0)
        return 0, tile % ACROSS, tile // ACROSS * 128


@gluon.jit
def ask_for_panels(u, v, panels, panels_full, panels_free, number, row, column, COLUMNS: gl.constexpr):
    """u and v of tile `number`: 64 columns of u, of v, the next of u, .., into its slot of panels."""
    SLOTS: gl.constexpr = panels_full.shape[0]
    PANELS: gl.constexpr = panels.shape[0] // SLOTS
    slot = number % SLOTS
    mbarrier.wait(panels_free.index(slot), (number // SLOTS + 1) % 2)
    mbarrier.expect(panels_full.index(slot), COLUMNS // 64 * 2 * u.block_type.nbytes)
    for piece in gl.static_range(COLUMNS // 64):
        panel, at = slot * PANELS + 2 * piece, column + piece * 64
        tma.async_copy_global_to_shared(u, [row, at], panels_full.index(slot), panels.index(panel))
        tma.async_copy_global_to_shared(v, [row, at], panels_full.index(slot), panels.index(panel + 1))


@gluon.jit
def load_chunks(
    x, w, u, v, x_rows, w_ring, panels, full, free, x_full, x_free, panels_full, panels_free, TILES, ACROSS, K,
    BACKWARD: gl.constexpr, RESIDENT: gl.constexpr, ASKED: gl.constexpr,
):  # fmt: skip
    """The chunks of every tile. w: blocks [2, COLUMNS, 64] of [2, g, d] (or [1, COLUMNS, 64] of one matrix), or,
    BACKWARD, [64, COLUMNS] of [d, g], and then also the tile's u and v, asked for before its chunk ASKED."""
    STAGES: gl.constexpr = w_ring.shape[0]
    COLUMNS: gl.constexpr = w.block_type.shape[1]
    for number in range(tiles_here(TILES, ACROSS, RESIDENT)):
        count, across, row = place(number, ACROSS, RESIDENT)
        for k in range(K):
            chunk = number * K + k
            slot = chunk % STAGES
            if BACKWARD:  # noqa: SIM102 (this is known when it is compiled, the other is not)
                if k == ASKED:
                    ask_for_panels(u, v, panels, panels_full, panels_free, number, row, across * COLUMNS, COLUMNS)
            if RESIDENT:  # noqa: SIM102 (likewise)
                if across == 0:
                    mbarrier.wait(x_free.index(k), (count + 1) % 2)
                    mbarrier.expect(x_full.index(k), x.block_type.nbytes)
                    tma.async_copy_global_to_shared(x, [row, k * 64], x_full.index(k), x_rows.index(k))
            mbarrier.wait(free.index(slot), (chunk // STAGES + 1) % 2)
            if RESIDENT:
                mbarrier.expect(full.index(slot), w.block_type.nbytes)
            else:
                mbarrier.expect(full.index(slot), x.block_type.nbytes + w.block_type.nbytes)
                tma.async_copy_global_to_shared(x, [row, k * 64], full.index(slot), x_rows.index(slot))
            if BACKWARD:
                tma.async_copy_global_to_shared(w, [k * 64, across * COLUMNS], full.index(slot), w_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(w, [0, across * COLUMNS, k * 64], full.index(slot), w_ring.index(slot))


@gluon.jit
def product_of_tile(
    x_rows, w_ring, full, free, x_full, x_free, order, number, count, across, ACROSS, K, LAYOUT: gl.constexpr,
    BACKWARD: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """The rows times the K chunks of a tile's columns, in the group's turn; the other's comes with the last chunk."""
    STAGES: gl.constexpr = w_ring.shape[0]
    WIDTH: gl.constexpr = w_ring.shape[2] if BACKWARD else w_ring.shape[1] * w_ring.shape[2]
    mbarrier.wait(order, (number + 1) % 2)
    product = gl.full([128, WIDTH], 0.0, gl.float32, LAYOUT)
    for k in range(K):
        chunk = number * K + k
        slot = chunk % STAGES
        if RESIDENT:
            mbarrier.wait(x_full.index(k), count % 2)
            rows = x_rows.index(k)
        else:
            rows = x_rows.index(slot)
        mbarrier.wait(full.index(slot), chunk // STAGES % 2)
        if BACKWARD:
            columns = w_ring.index(slot)
        else:
            columns = w_ring.index(slot).reshape([WIDTH, 64]).permute([1, 0])
        product = warpgroup_mma(rows, columns, product, is_async=True)
        product = warpgroup_mma_wait(1, deps=[product])
        barrier()  # all warps' products of the chunk before are done
        mbarrier.arrive(free.index((chunk + STAGES - 1) % STAGES), count=1, pred=k > 0)
        mbarrier.arrive(order, count=1, pred=k == K - 1)
    product = warpgroup_mma_wait(0, deps=[product])
    barrier()
    mbarrier.arrive(free.index((number * K + K - 1) % STAGES), count=1)
    if RESIDENT:  # noqa: SIM102 (likewise)
        if across + 2 >= ACROSS:  # the group's last tile of these rows
            for k in range(K):
                mbarrier.arrive(x_free.index(k), count=1)
    return product


@gluon.jit
def barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """As many barriers, each of COUNT arrivals a phase."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(NUMBER):
        mbarrier.init(made.index(number), count=COUNT)
    return made


@gluon.jit
def store_tile(x, buffer, tensor, row, column, PENDING: gl.constexpr):
    """Writes x by way of `buffer`, once not more than PENDING stores of this group are under way."""
    tma.store_wait(PENDING)
    barrier()
    buffer.store(x)
    fence_async_shared()
    barrier()
    tma.async_copy_shared_to_global(tensor, [row, column], buffer)
