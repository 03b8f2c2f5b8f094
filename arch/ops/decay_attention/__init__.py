"""`decay_attention`: reference (naive.py), plain PyTorch (chunk.py), kernels (triton/), the choice (operation.py)."""

from .chunk import chunk
from .naive import naive
from .operation import decay_attention

__all__ = ["chunk", "decay_attention", "naive"]
