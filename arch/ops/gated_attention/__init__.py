"""`gated_attention`: reference (naive.py), plain PyTorch (chunk.py), kernels (triton/), the choice (operation.py)."""

from .chunk import chunk
from .naive import naive
from .operation import gated_attention

__all__ = ["chunk", "gated_attention", "naive"]
