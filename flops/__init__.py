"""Analytic cost of a configuration: parameters and FLOPs, every FLOP number under a named convention. No torch."""

from .conventions import CONVENTIONS, conventions_of, cost_table, train_flops_per_token
from .mixers import Entry
from .params import ParamCount, count_params
from .registry import register
from .state import decode_state

__all__ = [
    "CONVENTIONS",
    "Entry",
    "ParamCount",
    "conventions_of",
    "cost_table",
    "count_params",
    "decode_state",
    "register",
    "train_flops_per_token",
]
