"""`causal_filter`: reference (naive.py), plain PyTorch (chunk.py), kernels (triton/), the choice (operation.py)."""

from .chunk import chunk
from .naive import naive
from .operation import causal_filter

__all__ = ["causal_filter", "chunk", "naive"]
