"""`selective_scan`: reference (naive.py), plain PyTorch (chunk.py), kernels (triton/), the choice (operation.py)."""

from .naive import naive
from .operation import selective_scan

__all__ = ["naive", "selective_scan"]
