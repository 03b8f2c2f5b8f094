"""Merged points: where the mean of a trunk's last weights is evaluated, in the place of a decay (Li et al. 2025, "Model
Merging in Pre-training of LLMs"; Kaddour 2022, LAWA; Haegele et al. 2024, section 4). Pure functions of training and
step; nothing of it decides what a run learns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

from .schedule import decay_start, planned_steps, warmup_steps

if TYPE_CHECKING:
    from .training import Training

MERGE_KEYS = ("merge_last", "merge_fraction")  # fields of training


def source_steps(step: int, training: Training) -> list[int]:
    """The steps whose weights are averaged into the merged point at `step`, ascending, the last of which is `step`:
    merge_last of them, each merge_fraction / merge_last of the tokens after the one before. Empty where they are fewer
    than that many steps after the warm-up."""
    assert training.merge_last is not None
    gap = round(training.merge_fraction * step / training.merge_last)
    steps = [step - i * gap for i in reversed(range(training.merge_last))]
    return steps if gap and steps[0] > warmup_steps(training) else []


def are_source_steps(steps: Any, point: int, training: Training) -> bool:
    """Whether weights that were averaged over `steps` are what `training` asks for at `point`: merge_last and
    merge_fraction are in no hash, and may have been others."""
    return training.merge_last is not None and steps == source_steps(point, training)


def merged_after(steps: Iterable[int], training: Training) -> list[int]:
    """The steps of these at which there is a merged point, ascending; none where training does not merge."""
    if training.merge_last is None:
        return []
    return [step for step in sorted(set(steps)) if source_steps(step, training)]


def most_sources(points: Iterable[int], training: Training) -> int:
    """Weights for merged points that lie on disk at once, at most: each from its step until the last point that it is
    of is written."""
    sources = {point: source_steps(point, training) for point in points}
    return max(
        (
            len({source for point, steps in sources.items() if point >= step for source in steps if source <= step})
            for step in {source for steps in sources.values() for source in steps}
        ),
        default=0,
    )


def check_merging(training: Training, where: str) -> None:
    """Raises InputError where the rate of a run whose weights are to be averaged falls towards its end."""
    if training.merge_last is not None and decay_start(training) < planned_steps(training):
        raise InputError(
            f"training.merge_last of {where} needs a rate that does not fall: the mean of weights from inside a decay "
            "replaces no decay; give training.branches, whose trunk is merged, or schedule constant or inverse_sqrt, "
            "or leave it out"
        )
