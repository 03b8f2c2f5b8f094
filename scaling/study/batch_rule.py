"""What follows from a run's length and batch: a batch small enough for its steps, and betas that suit the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from arch.amounts import counted

from .training import Training
from .types import tokens_of

LOWEST_BETA2, HIGHEST_BETA2 = 0.9, 0.9999
BATCH_KEYS = ("min_steps", "beta2_batch_tokens")  # of a section `training`: gone into batch_tokens and betas


def or_default(given: dict[str, Any], key: str) -> Any:
    """What the keys of a section `training` say, or the section's default."""
    return given[key] if given.get(key) is not None else Training.model_fields[key].default


def lengths_of(given: dict[str, Any], n_params: Callable[[], int]) -> list[int]:
    """The tokens of the run, or of each branch; [] where none are given."""
    lengths = given.get("branches") or [given.get("n_tokens")]
    most = given.get("max_tokens") or math.inf
    return [int(min(tokens_of(length, n_params()), most)) for length in lengths if length is not None]


def with_batch(
    given: dict[str, Any], context_length: int, processes: int, n_params: Callable[[], int]
) -> dict[str, Any]:
    """The keys of a section `training`, its batch halved until the run, or the shortest branch, has `min_steps`. It
    stays a whole number of sequences for every process, so that a short run on long sequences may have fewer."""
    fewest, lengths = given.get("min_steps"), lengths_of(given, n_params)
    if fewest is None or not lengths:
        return given
    batch, whole = or_default(given, "batch_tokens"), context_length * processes
    while batch * fewest > min(lengths) and batch % (2 * whole) == 0:
        batch //= 2
    micro = given.get("micro_batch_tokens")
    if micro is not None and batch % (micro * processes):
        given = given | {"micro_batch_tokens": None}  # the share of a process is smaller by now
    return given | {"batch_tokens": batch}


def too_few_steps(given: dict[str, Any], batch_tokens: int, n_params: Callable[[], int]) -> list[str]:
    """A line where the shortest run has fewer than `min_steps` with the batch that the rule gives it."""
    fewest, lengths = given.get("min_steps"), lengths_of(given, n_params)
    if fewest is None or not lengths or (steps := -(-min(lengths) // batch_tokens)) >= fewest:
        return []
    return [
        f"min_steps={fewest} is not reached: {counted(steps, 'step')} of {batch_tokens:,} tokens, a batch that "
        f"cannot be halved"
    ]


def beta2_at(stated: float, stated_batch: int, batch_tokens: int) -> float:
    """clip(b0^(B / B0), 0.9, 0.9999), to six decimals: the second average forgets half within the same number of tokens
    at every batch (Marek et al. 2025, arXiv 2507.07101, hold this half-life fixed). A step of B tokens keeps b of it,
    so a half is left after B ln 2 / -ln b tokens, the same for all B where ln b is proportional to B. A beta2 that is
    stated outside of the limits stays what it is at its own batch."""
    if batch_tokens == stated_batch:
        return stated
    return round(min(max(stated ** (batch_tokens / stated_batch), LOWEST_BETA2), HIGHEST_BETA2), 6)


def with_betas(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section `training`, its betas those of its batch where `beta2_batch_tokens` says so."""
    stated = given.get("beta2_batch_tokens")
    if stated is None:
        return given
    first, second = or_default(given, "betas")
    return given | {"betas": [first, beta2_at(second, stated, or_default(given, "batch_tokens"))]}
