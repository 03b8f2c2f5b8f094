"""Branches: one trunk at a constant rate, from which runs of several lengths are decayed (Haegele et al. 2024, section
5; Hu et al. 2024, section 4). Each branch is the wsd run of its length, of which it trains the decay alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from arch.errors import InputError

from .merging import without_merging
from .schedule import CONSTANT, FIELDS, WSD, decay_start
from .training import Training
from .types import tokens_of

Resolve = Callable[[dict[str, Any]], Training]  # given keys -> the whole section, its counts filled in


class Branched(NamedTuple):
    """The trunk's training, that of each branch by the ending of its run's id, and notes for the reader of the plan."""

    trunk: Training
    branches: dict[str, Training]
    notes: list[str]


def branched(given: dict[str, Any], resolve: Resolve, n_params: Callable[[], int], where: str) -> Branched:
    """`given`: the keys of a section `training` with `branches`. The trunk trains to where the decay of the longest
    branch begins. Raises InputError where there can be no branches."""
    if given.get("schedule", CONSTANT) != WSD:
        raise InputError(
            f"training.branches of {where} needs schedule wsd, not {given.get('schedule', CONSTANT)}: a branch is the "
            f"fall at the end of such a run"
        )
    for key in ("n_tokens", "max_steps"):
        if given.get(key) is not None:
            raise InputError(
                f"training.{key} of {where} and training.branches both say how long its runs are: leave one of them out"
            )
    trunk_keys = {key: value for key, value in given.items() if key not in ("branches", "max_tokens")}
    points, notes = _points(given["branches"], given.get("max_tokens"), n_params, where)
    branches = {label: resolve(_ending_at(without_merging(trunk_keys), tokens)) for label, tokens in points.items()}
    starts = {label: decay_start(training) for label, training in branches.items()}
    if (first := min(starts, key=lambda label: starts[label])) and not starts[first]:
        raise InputError(
            f"training.branches of {where}: the rate of {first} falls from its first step, so it has no trunk: make it "
            f"longer, or lower training.decay_fraction"
        )
    longest = max(starts.values())
    batch = next(iter(branches.values())).batch_tokens
    kept = {key: value for key, value in trunk_keys.items() if key not in FIELDS}
    return Branched(resolve(_ending_at(kept, longest * batch)), branches, notes)


def _points(
    lengths: list[int | str], most: int | None, n_params: Callable[[], int], where: str
) -> tuple[dict[str, int], list[str]]:
    """{label: tokens}, shortest first; of several of one length the first is kept, and notes name the others."""
    points: dict[str, int] = {}
    same: dict[str, list[str]] = {}
    for item in lengths:
        tokens = item if isinstance(item, int) else tokens_of(item, n_params())
        label = label_of(tokens) if isinstance(item, int) else f"d{item.lower()}"
        if most is not None and tokens > most:
            original, tokens, label = label, most, label_of(most)
            same.setdefault(label, []).append(original)
        if (existing := next((name for name, n in points.items() if n == tokens), None)) is not None:
            if label != existing:
                same.setdefault(existing, []).append(label)
        else:
            points[label] = tokens
    points = dict(sorted(points.items(), key=lambda point: point[1]))
    notes = [f"{where}: {', '.join(dict.fromkeys(others))} cut to one run, {label}" for label, others in same.items()]
    return points, notes


def _ending_at(given: dict[str, Any], n_tokens: int) -> dict[str, Any]:
    """The keys for a run of `n_tokens`; of stated checkpoints those that it comes to."""
    checkpoints = [tokens for tokens in given.get("checkpoint_tokens") or [] if tokens <= n_tokens]
    return given | {"n_tokens": n_tokens, "checkpoint_tokens": checkpoints or None}


def label_of(tokens: int) -> str:
    """d5m of 5,000,000: exact, whatever the number."""
    for unit, letter in ((10**9, "b"), (10**6, "m"), (10**3, "k")):
        if tokens % (unit // 100 or 1) == 0 and tokens >= unit:
            return f"d{tokens / unit:.2f}".rstrip("0").rstrip(".") + letter
    return f"d{tokens}"
