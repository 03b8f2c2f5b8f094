"""What the kernels are built from: matrix products, sums of log-decays and gates of one tile of rows.

Operands of matrix products are bf16 with fp32 accumulation, or with EXACT fp32 (fp32 inputs, and Triton's interpreter,
whose bf16 products are wrong). Log-decays are in units of log 2 and at least -128: 2^-128 is flushed to 0, so a decay
of 0 needs no infinity, which would make NaN in differences and in the 0s of the matrices of sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-128.0)
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """a @ b in fp32."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3")
    else:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))


@triton.jit
def operand(x, EXACT: tl.constexpr):
    """x as `product` reads it."""
    if EXACT:
        return x.to(tl.float32)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def rounded(x, EXACT: tl.constexpr):
    """The same, in fp32."""
    return operand(x, EXACT).to(tl.float32)


@triton.jit
def matrix(table, number, SIZE: tl.constexpr):
    """Matrix `number` of a table of [SIZE, SIZE] matrices."""
    rows = tl.arange(0, SIZE)
    return tl.load(table + number * SIZE * SIZE + rows[:, None] * SIZE + rows[None, :])


@triton.jit
def transposed(table, number, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)
    return tl.load(table + number * SIZE * SIZE + rows[:, None] + rows[None, :] * SIZE)


@triton.jit
def two_parts(x):
    """fp32 x as the sum of two bf16 numbers, to 2^-17; the first rounded by hand: the instruction for it is slow."""
    high = ((x.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def row_sums(which, x, EXACT: tl.constexpr):
    """which @ x for a matrix of 0 and 1: sums of the rows of fp32 x, to 2^-17, by products that are exact."""
    if EXACT:
        return tl.dot(which, x, input_precision="tf32x3")
    else:
        high, low = two_parts(x)
        return tl.dot(which, high, tl.dot(which, low))


@triton.jit
def power(x, FAST: tl.constexpr):
    """2^x, in one instruction; results below 2^-126 are 0."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def inverse(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def log2_of(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def sigmoids(x, FAST: tl.constexpr):
    """sigmoid(x) and sigmoid(-x), each to its own precision; x below -86 counts as -86: 2^-124 and 1."""
    e = power(tl.maximum(x, -86.0) * -LOG2E, FAST)
    up = inverse(1.0 + e, FAST)
    return up, e * up


@triton.jit
def silu(x, FAST: tl.constexpr):
    """x sigmoid(x) and its derivative, fp32."""
    x = x.to(tl.float32)
    up = inverse(1.0 + power(x * -LOG2E, FAST), FAST)
    y = x * up
    return y, y * (1.0 - up) + up


@triton.jit
def forget(x, bound, FAST: tl.constexpr):
    """log2 f and c = 1 - f for f = bound + (1 - bound) sigmoid(x): near 1 by the series of log(1 - c), else from f."""
    up, down = sigmoids(x, FAST)
    complement = (1.0 - bound) * down
    f = bound + (1.0 - bound) * up
    series = -LOG2E + complement * (-LOG2E / 2 + complement * (-LOG2E / 3 + complement * (-LOG2E / 4)))
    return tl.where(complement < 1.0 / 32, complement * series, log2_of(f, FAST)), complement


@triton.jit
def complement_of(log_f):
    """1 - exp(log_f), without cancellation near 0."""
    x = tl.maximum(log_f, -100.0)
    series = -x * (1.0 + x / 2 * (1.0 + x / 3 * (1.0 + x / 4 * (1.0 + x / 5 * (1.0 + x / 6)))))
    return tl.where(x > -0.25, series, 1.0 - tl.exp2(x * LOG2E))


@triton.jit
def load_gates(gate, offsets, inside, LOGITS: tl.constexpr):
    """Logits or log f, as they are; rows not inside forget nothing and have k = 0."""
    return tl.load(gate + offsets, mask=inside, other=1e30 if LOGITS else 0.0)


@triton.jit
def gates_of(x, bound, cut, LOGITS: tl.constexpr, RESET: tl.constexpr, FAST: tl.constexpr):
    """log2 f and 1 - f of fp32 logits with their bound, or of log f; none where cut (`documents`)."""
    if LOGITS:
        log_f, k = forget(x, bound, FAST)
    else:
        log_f = tl.maximum(x * LOG2E, LOWEST)
        k = complement_of(x)
    if RESET:
        log_f = tl.where(cut, 0.0, log_f)
    return log_f, k


@triton.jit
def documents(reset, first, inside, C: tl.constexpr, RESET: tl.constexpr):
    """The number of each row's document in a chunk [C], from 0 for the one that goes on from before it, and the last
    row's. Pairs of rows of two documents count nothing, the state before the chunk is document 0's alone, and that
    behind it the last one's: so no decay stands for a reset."""
    if RESET:
        numbers = tl.cumsum(tl.load(reset + first + tl.arange(0, C), mask=inside, other=0).to(tl.int32), 0)
    else:
        numbers = tl.zeros([C], tl.int32)
    return numbers, tl.max(numbers, 0)


@triton.jit
def gate_gradients(d_log, dk, x, bound, LOGITS: tl.constexpr, KEY: tl.constexpr, FAST: tl.constexpr):
    """The gradients of fp32 logits or log f and every row's share of the bound's; dk: without KEY of 1 - f."""
    if LOGITS:
        up, down = sigmoids(x, FAST)
        slope = (1.0 - bound) * up
        d_f = d_log * inverse(tl.maximum(bound + slope, 1e-30), FAST)
        d_bound = tl.where(bound > 0, d_f, 0.0)
        if not KEY:
            d_f -= dk
            d_bound -= dk
        return d_f * slope * down, d_bound * down
    else:
        d_gates = d_log
        if not KEY:
            d_gates -= dk * tl.exp(tl.maximum(x, -100.0))
        return d_gates, d_gates


@triton.jit
def accumulated(x, identity, EXACT: tl.constexpr):
    """x [BK, C] in fp32 and in the layout of a product's result, by an exact product with `identity`: no infinities
    in it. Gates that come otherwise are computed twice by the compiler, for the layouts before and behind them."""
    if EXACT or x.dtype != tl.bfloat16:
        return x.to(tl.float32)
    else:
        finite = tl.inline_asm_elementwise(
            "{.reg .b32 x, y; mov.b32 y, 0xf149f149; max.bf16x2 x, $1, y; mov.b32 y, 0x71497149; min.bf16x2 $0, x, y;}",
            "=r,r",
            [x],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
        return tl.dot(finite, identity)


@triton.jit
def laid_as(like, x, FAST: tl.constexpr):
    """fp32 x in the layout of fp32 `like`, which must not be cheap to compute in another one. What is made of x alone
    the compiler else makes in the layout of its load, or twice."""
    if FAST:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f,f", [x, like], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return x


@triton.jit
def packed(x):
    """fp32 numbers that are bf16, as bf16: two in a register, which the compiler's own conversion would not do."""
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def time_sums(x, which, EXACT: tl.constexpr):
    """x @ which for a matrix of 0 and 1 (`transposed`): sums of the columns of fp32 x [BK, C], to 2^-17."""
    if EXACT:
        return tl.dot(x, which, input_precision="tf32x3")
    else:
        high, low = two_parts(x)
        return tl.dot(high, which, tl.dot(low, which))


@triton.jit
def sums_from_own(x, later, EXACT: tl.constexpr):
    """`time_sums` and x itself: with the matrix of the columns behind each, the sums from each on."""
    if EXACT:
        return tl.dot(x, later, x, input_precision="tf32x3")
    else:
        high, low = two_parts(x)
        return tl.dot(high, later, tl.dot(low, later, x))


@triton.jit
def cos_sin(angle, FAST: tl.constexpr):
    """Cosine and sine of |angle| of at most about pi."""
    if FAST:
        cos = tl.inline_asm_elementwise(
            "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
        sin = tl.inline_asm_elementwise(
            "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        cos, sin = tl.cos(angle), tl.sin(angle)
    return cos, sin


@triton.jit
def load_rows(pointer, rows, inside, stride, first, WIDTH: tl.constexpr):
    """[C, WIDTH] of a [.., stride] row-major matrix, columns from `first`; 0 for rows not inside."""
    columns = first + tl.arange(0, WIDTH)
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def load_tile(tensor, batch, row, column, C: tl.constexpr, WIDTH: tl.constexpr):
    """[C, WIDTH] of a descriptor of [B, T, columns], from `row` and `column` on; 0 for rows beyond T."""
    return tl.reshape(tensor.load([batch, row, column]), [C, WIDTH])


@triton.jit
def in_registers(x, EXACT: tl.constexpr):
    """x, which the compiler cannot see through: as a left operand it is read from registers. A tile that Hopper's
    instructions alone read from shared memory would get one buffer more, too much for two programs."""
    if EXACT:
        return x
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=True, pack=2)


@triton.jit
def store_rows(pointer, x, rows, inside, stride, first, WIDTH: tl.constexpr):
    columns = first + tl.arange(0, WIDTH)
    offsets = rows[:, None] * stride + columns[None, :]
    tl.store(pointer + offsets, x.to(pointer.dtype.element_ty), mask=inside[:, None])


@triton.jit
def block_offsets(first_row, first_column, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets [ROWS, COLUMNS] into a state, row-major and WIDTH wide."""
    return (first_row + tl.arange(0, ROWS))[:, None] * WIDTH + (first_column + tl.arange(0, COLUMNS))[None, :]
