"""Analytic cost of a configuration: parameters, FLOPs, memory, every FLOP number under a named convention. No torch."""

from .architectures import register_all
from .conventions import (
    CONVENTIONS,
    by_module,
    conventions_of,
    cost_table,
    hardware_by_module,
    hardware_flops_per_token,
    train_flops_per_token,
)
from .entry import Entry, Memory, Times
from .memory import checkpoint_bytes, state_bytes, training_memory
from .params import ParamCount, count_params
from .registry import register
from .state import decode_state

__all__ = [
    "CONVENTIONS",
    "Entry",
    "Memory",
    "ParamCount",
    "Times",
    "by_module",
    "checkpoint_bytes",
    "conventions_of",
    "cost_table",
    "count_params",
    "decode_state",
    "hardware_by_module",
    "hardware_flops_per_token",
    "register",
    "state_bytes",
    "train_flops_per_token",
    "training_memory",
]

register_all()
