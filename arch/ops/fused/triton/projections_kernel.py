"""A product of which the first columns are also wanted behind silu: mlp_parts.py has the plan."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from .mlp_parts import barriers, load_chunks, place, product_of_tile, sigmoid, store_tile, tiles_here


@gluon.jit
def store_with_silu(x, out, first, second, staging, stored, row, column, FIRST, ACTIVE):
    """x [128, 64] at its column, and what of it lies before column ACTIVE behind silu too: in `first`, from column
    FIRST on in `second`. The buffers are used in turn; returns how many stores there were, these included."""
    BUFFERS: gl.constexpr = staging.shape[0]
    store_tile(x, staging.index(stored % BUFFERS), out, row, column, BUFFERS - 1)
    stored += 1
    if column < ACTIVE:
        wide = x.to(gl.float32)
        active = (wide * sigmoid(wide)).to(out.dtype)
        if column < FIRST:
            store_tile(active, staging.index(stored % BUFFERS), first, row, column, BUFFERS - 1)
        else:
            store_tile(active, staging.index(stored % BUFFERS), second, row, column - FIRST, BUFFERS - 1)
        stored += 1
    return stored


@gluon.jit
def project_silu_group(
    out, first, second, x_rows, w_ring, staging, full, free, x_full, x_free, order, FIRST, ACTIVE, TILES, ACROSS, K,
    GROUP: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Every other tile, rounded before silu is applied."""
    COLUMNS: gl.constexpr = w_ring.shape[2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    stored = 0
    for number in range(GROUP, tiles_here(TILES, ACROSS, RESIDENT), 2):
        count, across, row = place(number, ACROSS, RESIDENT)
        product = product_of_tile(
            x_rows, w_ring, full, free, x_full, x_free, order, number, count, across, ACROSS, K, LAYOUT, False, RESIDENT
        )
        column = across * COLUMNS
        left, right = gl.split(gl.permute(gl.reshape(product.to(out.dtype), [128, 2, COLUMNS // 2]), [0, 2, 1]))
        stored = store_with_silu(left, out, first, second, staging, stored, row, column, FIRST, ACTIVE)
        stored = store_with_silu(right, out, first, second, staging, stored, row, column + COLUMNS // 2, FIRST, ACTIVE)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["FIRST", "ACTIVE", "TILES", "ACROSS"])
def project_silu(
    x, w, out, first, second, FIRST, ACTIVE, TILES, ACROSS,
    K: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """out = x w^T, first = silu(out[:, :FIRST]), second = silu(out[:, FIRST:ACTIVE]).

    x [N, d] in blocks [128, 64]; w [1, W, d] in blocks [1, 128, 64]; out [N, W], first [N, FIRST] and second
    [N, ACTIVE - FIRST] in blocks [128, 64], FIRST and ACTIVE multiples of 64. TILES = N / 128, ACROSS = W / 128, K =
    d / 64, rounded up. BUFFERS that a group's results leave by. RESIDENT: ACROSS > 1."""
    DTYPE: gl.constexpr = x.dtype
    COLUMNS: gl.constexpr = w.block_type.shape[1]
    gl.static_assert(COLUMNS == 128)
    x_rows = gl.allocate_shared_memory(DTYPE, [K if RESIDENT else STAGES, 128, 64], x.layout)
    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES, 1, COLUMNS, 64], w.layout)
    staging_0 = gl.allocate_shared_memory(DTYPE, [BUFFERS, 128, COLUMNS // 2], out.layout)
    staging_1 = gl.allocate_shared_memory(DTYPE, [BUFFERS, 128, COLUMNS // 2], out.layout)
    full, free = barriers(STAGES, 1), barriers(STAGES, 1)
    x_full, x_free = barriers(K, 1), barriers(K, 2)
    order = barriers(1, 1).index(0)
    gl.warp_specialize(
        [
            (project_silu_group, (
                out, first, second, x_rows, w_ring, staging_0, full, free, x_full, x_free, order, FIRST, ACTIVE,
                TILES, ACROSS, K, 0, RESIDENT,
            )),
            (project_silu_group, (
                out, first, second, x_rows, w_ring, staging_1, full, free, x_full, x_free, order, FIRST, ACTIVE,
                TILES, ACROSS, K, 1, RESIDENT,
            )),
            (load_chunks, (
                x, w, out, out, x_rows, w_ring, staging_0, full, free, x_full, x_free, full, free, TILES, ACROSS, K,
                False, RESIDENT, 0,
            )),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip
