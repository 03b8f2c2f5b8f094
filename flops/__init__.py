"""Analytic cost of a configuration: parameters and FLOPs, every FLOP number under a named convention. No torch."""

from .conventions import CONVENTIONS, conventions_of, cost_table, train_flops_per_token
from .params import ParamCount, count_params

__all__ = ["CONVENTIONS", "ParamCount", "conventions_of", "cost_table", "count_params", "train_flops_per_token"]
