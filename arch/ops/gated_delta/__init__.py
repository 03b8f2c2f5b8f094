"""`gated_delta`: reference (naive.py), plain PyTorch (chunk.py), the choice (operation.py)."""

from .chunk import chunk
from .naive import naive
from .operation import gated_delta

__all__ = ["chunk", "gated_delta", "naive"]
