"""`scan`: reference (naive.py), plain PyTorch (chunk.py), kernels (triton/), the choice (operation.py)."""

from .chunk import chunk
from .naive import naive
from .operation import scan

__all__ = ["chunk", "naive", "scan"]
