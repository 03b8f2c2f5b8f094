"""The gradient of the gated MLP's gate inside the product before it: mlp_parts.py has the plan. A warp of its own
stores what the groups leave in the place of u and v."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .mlp_parts import barrier, barriers, load_chunks, place, product_of_tile, sigmoid, tiles_here


@gluon.jit
def gradients_of_panel(d_act, panels, panel, DTYPE: gl.constexpr, GATE: gl.constexpr):
    """[128, 64] of d_u and d_v where u and v were."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    d_act = gl.convert_layout(d_act, LAYOUT)
    u, v = panels.index(panel).load(LAYOUT), panels.index(panel + 1).load(LAYOUT)
    factor = v.to(gl.float32)
    if GATE == "silu":
        opened = sigmoid(factor)
        factor *= opened
    panels.index(panel).store((d_act * factor).to(DTYPE))
    d_factor = d_act * u.to(gl.float32)
    if GATE == "silu":  # this late, for registers
        d_factor *= opened + factor * (1 - opened)
    panels.index(panel + 1).store(d_factor.to(DTYPE))


@gluon.jit
def gradients_group(
    x_rows, w_ring, panels, full, free, x_full, x_free, panels_full, done, order, TILES, ACROSS, K,
    GROUP: gl.constexpr, RESIDENT: gl.constexpr, GATE: gl.constexpr,
):  # fmt: skip
    """Every other tile."""
    COLUMNS: gl.constexpr = w_ring.shape[2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    SLOTS: gl.constexpr = done.shape[0]
    PANELS: gl.constexpr = panels.shape[0] // SLOTS
    DTYPE: gl.constexpr = panels.dtype
    for number in range(GROUP, tiles_here(TILES, ACROSS, RESIDENT), 2):
        count, across, _ = place(number, ACROSS, RESIDENT)
        product = product_of_tile(
            x_rows, w_ring, full, free, x_full, x_free, order, number, count, across, ACROSS, K, LAYOUT, True, RESIDENT
        )
        slot = number % SLOTS
        mbarrier.wait(panels_full.index(slot), number // SLOTS % 2)
        if COLUMNS == 64:
            gradients_of_panel(product, panels, slot * PANELS, DTYPE, GATE)
        else:
            left, right = gl.split(gl.permute(gl.reshape(product, [128, 2, 64]), [0, 2, 1]))
            gradients_of_panel(left, panels, slot * PANELS, DTYPE, GATE)
            gradients_of_panel(right, panels, slot * PANELS + 2, DTYPE, GATE)
        fence_async_shared()
        barrier()
        mbarrier.arrive(done.index(slot), count=1)


@gluon.jit
def store_panels(d_u, d_v, panels, panels_free, done, TILES, ACROSS, COLUMNS: gl.constexpr, RESIDENT: gl.constexpr):
    """What the groups leave in the slots, tile after tile."""
    SLOTS: gl.constexpr = done.shape[0]
    PANELS: gl.constexpr = panels.shape[0] // SLOTS
    for number in range(tiles_here(TILES, ACROSS, RESIDENT)):
        _, across, row = place(number, ACROSS, RESIDENT)
        slot = number % SLOTS
        mbarrier.wait(done.index(slot), number // SLOTS % 2)
        for piece in gl.static_range(COLUMNS // 64):
            panel, at = slot * PANELS + 2 * piece, across * COLUMNS + piece * 64
            tma.async_copy_shared_to_global(d_u, [row, at], panels.index(panel))
            tma.async_copy_shared_to_global(d_v, [row, at], panels.index(panel + 1))
        tma.store_wait(0)
        barrier()
        mbarrier.arrive(panels_free.index(slot), count=1)


@gluon.jit(do_not_specialize=["TILES", "ACROSS"])
def gate_gradients(
    d_out, w, u, v, d_u, d_v, TILES, ACROSS,
    K: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, ASKED: gl.constexpr, RESIDENT: gl.constexpr,
    GATE: gl.constexpr,
):  # fmt: skip
    """d_u and d_v of act = u v, or with "silu" u silu(v), whose gradient is d_out W_down.

    d_out [N, d] in blocks [128, 64]; w, W_down [d, g], in blocks [64, COLUMNS], COLUMNS 64 or 128; u, v, d_u and d_v
    [N, g] in blocks [128, 64]. TILES = N / 128, ACROSS = g / COLUMNS, K = d / 64, rounded up. RESIDENT: ACROSS > 1.
    SLOTS tiles of u and v are loaded ahead, each asked for before its tile's chunk ASKED."""
    DTYPE: gl.constexpr = d_out.dtype
    COLUMNS: gl.constexpr = w.block_type.shape[1]
    gl.static_assert(ASKED < K)
    x_rows = gl.allocate_shared_memory(DTYPE, [K if RESIDENT else STAGES, 128, 64], d_out.layout)
    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES, 64, COLUMNS], w.layout)
    panels = gl.allocate_shared_memory(DTYPE, [SLOTS * 2 * (COLUMNS // 64), 128, 64], u.layout)
    full, free = barriers(STAGES, 1), barriers(STAGES, 1)
    x_full, x_free = barriers(K, 1), barriers(K, 2)
    panels_full, panels_free, done = barriers(SLOTS, 1), barriers(SLOTS, 1), barriers(SLOTS, 1)
    order = barriers(1, 1).index(0)
    gl.warp_specialize(
        [
            (gradients_group, (
                x_rows, w_ring, panels, full, free, x_full, x_free, panels_full, done, order, TILES, ACROSS, K,
                0, RESIDENT, GATE,
            )),
            (gradients_group, (
                x_rows, w_ring, panels, full, free, x_full, x_free, panels_full, done, order, TILES, ACROSS, K,
                1, RESIDENT, GATE,
            )),
            (load_chunks, (
                d_out, w, u, v, x_rows, w_ring, panels, full, free, x_full, x_free, panels_full, panels_free, TILES,
                ACROSS, K, True, RESIDENT, ASKED,
            )),
            (store_panels, (d_u, d_v, panels, panels_free, done, TILES, ACROSS, COLUMNS, RESIDENT)),
        ],
        [4, 1, 1], [240, 24, 24],
    )  # fmt: skip
