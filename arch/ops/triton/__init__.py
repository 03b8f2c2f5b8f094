"""The GPU backend of the sequence operations: Triton kernels, imported where they run. docs/research/kernels-*.md have
plans and times.

Importing this package registers the operators with their FLOP formulas; torch's counter knows those registered when it
is made, so import it before.
"""

from ..decay_attention.triton import operator as decay
from ..gated_attention.triton import operator as gated
from ..gated_delta.triton import operator as delta

__all__ = ["decay", "delta", "gated"]
