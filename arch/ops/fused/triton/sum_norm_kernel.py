"""Products that meet a norm, in Gluon: the residual stream's sum with a branch, and its norm, inside the branch's last
product; the norm's gradient inside the product that makes the gradient of what the norm gave.

A program has 128 rows at a time, and all columns of them, at most 256: two groups of four warps have 64 rows each. One
warp loads: chunks of 64 of the products' inner dimension, through a ring of STAGES slots, and the rows that are added
behind the product, which come while it is under way. Those in `held` lie where the results leave.

Barriers: `full` and `free` of the ring's slots, `held_full` and `held_free`; both groups arrive at what they free.
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

from .mlp_parts import barrier, barriers


@gluon.jit
def tiles_of_program(TILES):
    return (TILES - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def first_row(number):
    return (gl.program_id(0) + number * gl.num_programs(0)) * 128


@gluon.jit
def load_tiles(
    a, w, x, second, a_ring, w_ring, held, full, free, held_full, held_free, TILES, K: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The chunks of every tile, and its rows of x, asked for when no more chunks can be. Not TRANSPOSED, where weights
    are [inner, D]: behind the chunks the tile's rows of `second`, a slot for each group."""
    STAGES: gl.constexpr = full.shape[0]
    ASKED: gl.constexpr = STAGES if K > STAGES else K - 1
    CHUNKS: gl.constexpr = K if TRANSPOSED else K + 2
    for number in range(tiles_of_program(TILES)):
        row = first_row(number)
        for k in range(K):
            chunk = number * CHUNKS + k
            slot = chunk % STAGES
            if k == ASKED:
                mbarrier.wait(held_free, (number + 1) % 2)
                mbarrier.expect(held_full, 2 * x.block_type.nbytes)
                for group in gl.static_range(2):
                    tma.async_copy_global_to_shared(x, [row + 64 * group, 0], held_full, held.index(group))
            mbarrier.wait(free.index(slot), (chunk // STAGES + 1) % 2)
            mbarrier.expect(full.index(slot), 2 * a.block_type.nbytes + w.block_type.nbytes)
            for group in gl.static_range(2):
                at = row + 64 * group
                tma.async_copy_global_to_shared(a, [at, k * 64], full.index(slot), a_ring.index(2 * slot + group))
            if TRANSPOSED:
                tma.async_copy_global_to_shared(w, [0, k * 64], full.index(slot), w_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(w, [k * 64, 0], full.index(slot), w_ring.index(slot))
        if not TRANSPOSED:
            for group in gl.static_range(2):
                chunk = number * CHUNKS + K + group
                slot = chunk % STAGES
                mbarrier.wait(free.index(slot), (chunk // STAGES + 1) % 2)
                mbarrier.expect(full.index(slot), second.block_type.nbytes)
                tma.async_copy_global_to_shared(second, [row + 64 * group, 0], full.index(slot), w_ring.index(slot))


@gluon.jit
def rows_times_weights(
    a_ring, w_ring, full, free, number, K, CHUNKS: gl.constexpr, GROUP: gl.constexpr, LAYOUT: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The group's 64 rows of a tile times all chunks of the weights, [64, WIDTH] in fp32."""
    STAGES: gl.constexpr = full.shape[0]
    WIDTH: gl.constexpr = w_ring.shape[1] if TRANSPOSED else w_ring.shape[2]
    product = gl.full([64, WIDTH], 0.0, gl.float32, LAYOUT)
    for k in range(K):
        chunk = number * CHUNKS + k
        slot = chunk % STAGES
        mbarrier.wait(full.index(slot), chunk // STAGES % 2)
        if TRANSPOSED:
            columns = w_ring.index(slot).permute([1, 0])
        else:
            columns = w_ring.index(slot)
        product = warpgroup_mma(a_ring.index(2 * slot + GROUP), columns, product, is_async=True)
        product = warpgroup_mma_wait(1, deps=[product])
        barrier()  # all warps' products of the chunk before are done
        mbarrier.arrive(free.index((chunk + STAGES - 1) % STAGES), count=1, pred=k > 0)
    product = warpgroup_mma_wait(0, deps=[product])
    barrier()
    mbarrier.arrive(free.index((number * CHUNKS + K - 1) % STAGES), count=1)
    return product


@gluon.jit
def store_rows(x, buffer, tensor, row):
    """Writes x by way of `buffer`, which may be used again when it returns."""
    buffer.store(x)
    fence_async_shared()
    barrier()
    tma.async_copy_shared_to_global(tensor, [row, 0], buffer)
    tma.store_wait(0)
    barrier()


@gluon.jit
def along_columns(pointer, first, D, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Numbers first .. first + WIDTH - 1 of D, and zeros, along the columns of [.., WIDTH]."""
    at = first + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    return gl.expand_dims(gl.load(pointer + at, mask=at < D, other=0.0).to(gl.float32), 0)


@gluon.jit
def sum_norm_group(
    total, out, weight, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K,
    GROUP: gl.constexpr, WEIGHT: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = w_ring.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    DTYPE: gl.constexpr = total.dtype
    for number in range(tiles_of_program(TILES)):
        row, buffer = first_row(number) + 64 * GROUP, held.index(GROUP)
        branch = rows_times_weights(a_ring, w_ring, full, free, number, K, K, GROUP, LAYOUT, True).to(DTYPE)
        mbarrier.wait(held_full, number % 2)
        rounded = (buffer.load(LAYOUT).to(gl.float32) + branch.to(gl.float32)).to(DTYPE)
        store_rows(rounded, buffer, total, row)
        wide = rounded.to(gl.float32)
        normed = wide * gl.expand_dims(gl.rsqrt(gl.sum(wide * wide, 1) / D + eps), 1)
        if WEIGHT:
            normed *= along_columns(weight, 0, D, WIDTH, LAYOUT)
        store_rows(normed.to(DTYPE), buffer, out, row)
        mbarrier.arrive(held_free, count=1)


@gluon.jit
def halves(x):
    """The left and the right half of x's columns."""
    return gl.split(gl.permute(gl.reshape(x, [64, 2, x.shape[1] // 2]), [0, 2, 1]))


@gluon.jit
def panels_of(x, LAYOUT: gl.constexpr):
    """x [64, 64, 128 or 256] in panels of 64 columns: four, of which the last may be the first again."""
    PANELS: gl.constexpr = x.shape[1] // 64
    if PANELS == 4:
        left, right = halves(x)
        p0, p1 = halves(left)
        p2, p3 = halves(right)
    elif PANELS == 2:
        p0, p1 = halves(x)
        p2, p3 = p0, p1
    else:
        p0, p1, p2, p3 = x, x, x, x
    return (
        gl.convert_layout(p0, LAYOUT), gl.convert_layout(p1, LAYOUT),
        gl.convert_layout(p2, LAYOUT), gl.convert_layout(p3, LAYOUT),
    )  # fmt: skip


@gluon.jit
def load_panel(buffer, p: gl.constexpr, LAYOUT: gl.constexpr):
    return buffer.slice(p * 64, 64, dim=1).load(LAYOUT).to(gl.float32)


@gluon.jit
def norm_gradients_group(
    d_x, weight, shares, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K,
    GROUP: gl.constexpr, WEIGHT: gl.constexpr,
):  # fmt: skip
    """In panels of 64 columns, for registers: the product, rounded, is all that lives through both passes."""
    STAGES: gl.constexpr = full.shape[0]
    WIDTH: gl.constexpr = w_ring.shape[2]
    PANELS: gl.constexpr = WIDTH // 64
    CHUNKS: gl.constexpr = K + 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    PANEL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    DTYPE: gl.constexpr = d_x.dtype
    for number in range(tiles_of_program(TILES)):
        row, buffer = first_row(number) + 64 * GROUP, held.index(GROUP)
        d_out = rows_times_weights(a_ring, w_ring, full, free, number, K, CHUNKS, GROUP, LAYOUT, False).to(DTYPE)
        panels = panels_of(d_out, PANEL)
        mbarrier.wait(held_full, number % 2)
        sums = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, PANEL))
        for p in gl.static_range(PANELS):
            n = load_panel(buffer, p, PANEL)
            sums += gl.sum(n * n, 1)
        inverse = gl.expand_dims(gl.rsqrt(sums / D + eps), 1)
        for group in gl.static_range(2):
            chunk = number * CHUNKS + K + group
            mbarrier.wait(full.index(chunk % STAGES), chunk // STAGES % 2)
            if group != GROUP:  # before it came, this would free what the slot held before
                barrier()  # no warp waits for it any more
                mbarrier.arrive(free.index(chunk % STAGES), count=1)
        sums = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, PANEL))
        for p in gl.static_range(PANELS):
            product = panels[p].to(gl.float32) * load_panel(buffer, p, PANEL) * inverse
            if WEIGHT:
                at = p * 64 + gl.arange(0, 64, gl.SliceLayout(0, PANEL))
                gl.store(shares + (row // 64) * D + at, gl.sum(product, 0), mask=at < D)
                product *= along_columns(weight, p * 64, D, 64, PANEL)
            sums += gl.sum(product, 1)
        mean = gl.expand_dims(sums / D, 1)
        slot = (number * CHUNKS + K + GROUP) % STAGES
        for p in gl.static_range(PANELS):
            n, d_y = load_panel(buffer, p, PANEL) * inverse, panels[p].to(gl.float32)
            if WEIGHT:
                d_y *= along_columns(weight, p * 64, D, 64, PANEL)
            d_s = inverse * (d_y - n * mean) + load_panel(w_ring.index(slot), p, PANEL)
            buffer.slice(p * 64, 64, dim=1).store(d_s.to(DTYPE))
        fence_async_shared()
        barrier()
        mbarrier.arrive(free.index(slot), count=1)
        tma.async_copy_shared_to_global(d_x, [row, 0], buffer)
        tma.store_wait(0)
        barrier()
        mbarrier.arrive(held_free, count=1)


@gluon.jit(do_not_specialize=["TILES"])
def product_sum_norm(
    a, w, x, total, out, weight, eps, TILES, D: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
    WEIGHT: gl.constexpr,
):  # fmt: skip
    """total = x + a w^T, the product rounded first; out = total / sqrt(mean(total^2) + eps) [* weight].

    a [N, inner] in blocks [64, 64]; w [D, inner] in blocks [WIDTH, 64], WIDTH a power of two from D on; x, total and
    out [N, D] in blocks [64, WIDTH]. TILES = N / 128, K = inner / 64, rounded up."""
    DTYPE: gl.constexpr = x.dtype
    WIDTH: gl.constexpr = x.block_type.shape[1]
    a_ring = gl.allocate_shared_memory(DTYPE, [2 * STAGES, 64, 64], a.layout)
    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES, WIDTH, 64], w.layout)
    held = gl.allocate_shared_memory(DTYPE, [2, 64, WIDTH], x.layout)
    full, free = barriers(STAGES, 1), barriers(STAGES, 2)
    held_full, held_free = barriers(1, 1).index(0), barriers(1, 2).index(0)
    gl.warp_specialize(
        [
            (sum_norm_group, (
                total, out, weight, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K, 0, WEIGHT,
            )),
            (sum_norm_group, (
                total, out, weight, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K, 1, WEIGHT,
            )),
            (load_tiles, (a, w, x, x, a_ring, w_ring, held, full, free, held_full, held_free, TILES, K, True)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


@gluon.jit(do_not_specialize=["TILES"])
def product_norm_gradients(
    a, w, x, d_total, d_x, weight, shares, eps, TILES, D: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
    WEIGHT: gl.constexpr,
):  # fmt: skip
    """d_x = d_total + the gradient of x, where x / sqrt(mean(x^2) + eps) [* weight] has the gradient a w, rounded; and
    shares [2 TILES, D] of the weight's gradient, of 64 rows each.

    a [N, inner] in blocks [64, 64]; w [inner, D], x, d_total and d_x [N, D] in blocks [64, WIDTH]."""
    DTYPE: gl.constexpr = x.dtype
    WIDTH: gl.constexpr = x.block_type.shape[1]
    a_ring = gl.allocate_shared_memory(DTYPE, [2 * STAGES, 64, 64], a.layout)
    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES, 64, WIDTH], w.layout)
    held = gl.allocate_shared_memory(DTYPE, [2, 64, WIDTH], x.layout)
    full, free = barriers(STAGES, 1), barriers(STAGES, 2)
    held_full, held_free = barriers(1, 1).index(0), barriers(1, 2).index(0)
    gl.warp_specialize(
        [
            (norm_gradients_group, (
                d_x, weight, shares, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K, 0,
                WEIGHT,
            )),
            (norm_gradients_group, (
                d_x, weight, shares, a_ring, w_ring, held, full, free, held_full, held_free, eps, D, TILES, K, 1,
                WEIGHT,
            )),
            (load_tiles, (
                a, w, x, d_total, a_ring, w_ring, held, full, free, held_full, held_free, TILES, K, False,
            )),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip
