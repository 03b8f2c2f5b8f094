"""The sequence operations, each with a `naive` reference and a `chunk` form in plain PyTorch."""

from .causal_filter import causal_filter
from .decay_attention import decay_attention
from .gated_attention import gated_attention

__all__ = ["causal_filter", "decay_attention", "gated_attention"]
