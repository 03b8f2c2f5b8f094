"""The sequence operations: a `naive` reference, a `chunk` backend in plain PyTorch, kernels for a GPU (`triton`), and
one `step` of decoding each."""

from .causal_filter import causal_filter
from .causal_filter import step as causal_filter_step
from .decay_attention import decay_attention
from .decay_attention import step as decay_attention_step
from .gated_attention import gated_attention
from .gated_attention import step as gated_attention_step
from .gated_delta import gated_delta
from .gated_delta import step as gated_delta_step
from .scan import scan
from .scan import step as scan_step
from .selective_scan import selective_scan
from .selective_scan import step as selective_scan_step

__all__ = [
    "causal_filter",
    "causal_filter_step",
    "decay_attention",
    "decay_attention_step",
    "gated_attention",
    "gated_attention_step",
    "gated_delta",
    "gated_delta_step",
    "scan",
    "scan_step",
    "selective_scan",
    "selective_scan_step",
]
