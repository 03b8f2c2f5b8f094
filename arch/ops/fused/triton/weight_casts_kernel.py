"""Casts tensors that lie anywhere, by a table of their pieces."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast_pieces(table, out, BLOCK: tl.constexpr):
    """table [pieces, 3], a piece a program: address of fp32 numbers, their place in `out`, how many (at most BLOCK)."""
    piece = table + tl.program_id(0) * 3
    source = tl.load(piece).to(tl.pointer_type(tl.float32))
    place, numbers = tl.load(piece + 1), tl.arange(0, BLOCK)
    there = numbers < tl.load(piece + 2)
    x = tl.load(source + numbers, mask=there)
    tl.store(out + place + numbers, x.to(out.dtype.element_ty), mask=there)
