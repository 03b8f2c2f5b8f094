"""The target of a classifier as one whole number: a class, or a mixture of two, some of it spread over all classes.

A class below 65,536 is the target that is all its own. Weights are kept in units of 2^-14. Imports no torch."""

from __future__ import annotations

from typing import Any

CLASSES = 1 << 16  # at most
UNIT = 1 << 14


def soft_target(first: int, second: int, weight: float, smoothing: float) -> int:
    """The target of which (1 - smoothing) is on two classes, `weight` of that on the second, and the rest evenly on all
    classes."""
    share = round(weight * UNIT)
    return first | (second << 16 | share << 32 if share else 0) | round(smoothing * UNIT) << 47


def parts_of(targets: Any) -> tuple[Any, Any, Any, Any]:
    """first, second, weight and smoothing of a target, or of an int64 array or tensor of them."""
    weight, smoothing = targets >> 32 & 2 * UNIT - 1, targets >> 47
    return targets & CLASSES - 1, targets >> 16 & CLASSES - 1, weight / UNIT, smoothing / UNIT
