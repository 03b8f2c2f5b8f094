"""The gated MLP's first product with the gate inside: mlp_parts.py has the plan."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from .mlp_parts import barriers, load_chunks, place, product_of_tile, sigmoid, store_tile, tiles_here


@gluon.jit
def up_gate_group(
    u_out, v_out, act, x_rows, w_ring, staging, full, free, x_full, x_free, order, TILES, ACROSS, K,
    GROUP: gl.constexpr, RESIDENT: gl.constexpr, GATE: gl.constexpr,
):  # fmt: skip
    """Every other tile: u, v and u f(v), the first two rounded before the gate is applied."""
    COLUMNS: gl.constexpr = w_ring.shape[2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * COLUMNS, 16])
    BUFFERS: gl.constexpr = staging.shape[0]
    for number in range(GROUP, tiles_here(TILES, ACROSS, RESIDENT), 2):
        count, across, row = place(number, ACROSS, RESIDENT)
        product = product_of_tile(
            x_rows, w_ring, full, free, x_full, x_free, order, number, count, across, ACROSS, K, LAYOUT, False, RESIDENT
        )
        column = across * COLUMNS
        u, v = gl.split(gl.permute(gl.reshape(product.to(u_out.dtype), [128, 2, COLUMNS]), [0, 2, 1]))
        store_tile(u, staging.index(0), u_out, row, column, BUFFERS - 1)
        store_tile(v, staging.index(1 % BUFFERS), v_out, row, column, BUFFERS - 1)
        factor = v.to(gl.float32)
        if GATE == "silu":
            factor *= sigmoid(factor)
        gated = u.to(gl.float32) * factor
        store_tile(gated.to(act.dtype), staging.index(2 % BUFFERS), act, row, column, BUFFERS - 1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["TILES", "ACROSS"])
def up_gate(
    x, w, u_out, v_out, act, TILES, ACROSS,
    K: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, RESIDENT: gl.constexpr, GATE: gl.constexpr,
):  # fmt: skip
    """u = x W_up^T, v = x W_gate^T, act = u v, or with "silu" u silu(v).

    x [N, d] in blocks [128, 64]; w [2, g, d], up and gate, in blocks [2, COLUMNS, 64]; u_out, v_out and act [N, g] in
    blocks [128, COLUMNS]. TILES = N / 128, ACROSS = g / COLUMNS, K = d / 64, rounded up. BUFFERS, 1 or 3, that a
    group's results leave by. RESIDENT: ACROSS > 1."""
    DTYPE: gl.constexpr = x.dtype
    COLUMNS: gl.constexpr = w.block_type.shape[1]
    gl.static_assert(BUFFERS == 1 or BUFFERS == 3)
    x_rows = gl.allocate_shared_memory(DTYPE, [K if RESIDENT else STAGES, 128, 64], x.layout)
    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES, 2, COLUMNS, 64], w.layout)
    staging_0 = gl.allocate_shared_memory(DTYPE, [BUFFERS, 128, COLUMNS], act.layout)
    staging_1 = gl.allocate_shared_memory(DTYPE, [BUFFERS, 128, COLUMNS], act.layout)
    full, free = barriers(STAGES, 1), barriers(STAGES, 1)
    x_full, x_free = barriers(K, 1), barriers(K, 2)
    order = barriers(1, 1).index(0)
    gl.warp_specialize(
        [
            (up_gate_group, (
                u_out, v_out, act, x_rows, w_ring, staging_0, full, free, x_full, x_free, order, TILES, ACROSS, K,
                0, RESIDENT, GATE,
            )),
            (up_gate_group, (
                u_out, v_out, act, x_rows, w_ring, staging_1, full, free, x_full, x_free, order, TILES, ACROSS, K,
                1, RESIDENT, GATE,
            )),
            (load_chunks, (
                x, w, u_out, v_out, x_rows, w_ring, staging_0, full, free, x_full, x_free, full, free, TILES, ACROSS, K,
                False, RESIDENT, 0,
            )),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip
