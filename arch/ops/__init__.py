"""The sequence operations: a `naive` reference, a `chunk` backend in plain PyTorch, kernels for a GPU (`triton`)."""

from .causal_filter import causal_filter
from .decay_attention import decay_attention
from .gated_attention import gated_attention
from .gated_delta import gated_delta
from .scan import scan
from .selective_scan import selective_scan

__all__ = ["causal_filter", "decay_attention", "gated_attention", "gated_delta", "scan", "selective_scan"]
