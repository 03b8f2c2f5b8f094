"""What a study file must say so that its runs are as those that a law of rates was swept with. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flops.ladder import Ladder, rung

from .model_section import model_changes
from .rate_law import RateLaw
from .schedule import CONSTANT
from .training import Training

LADDER = Ladder(1e5, 1e7, 2)  # of any: fields that are no shape are the same at all sizes


@dataclass(frozen=True)
class SweptAs:
    """model, training: what the sections must give beside their defaults, for all architectures; batch: tokens of a
    step, None where the law has a term in it; warmup: [fewest, most] tokens; decays: whether losses were decayed."""

    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None
    warmup: tuple[int, int] | None = None
    decays: bool | None = None


def swept_as(law: RateLaw, archs: Sequence[str]) -> SweptAs:
    """The recipe for the architectures, which the law has. A field of the model that they do not share is left out: a
    plan names it."""
    recipe = law.recipe
    defaults = Training().model_dump()
    training = {key: value for key, value in recipe.optimizer.items() if defaults[key] != value}
    if recipe.beta2_batch_tokens is not None:
        training["beta2_batch_tokens"] = recipe.beta2_batch_tokens
    ranges = [law.laws[arch].ranges["batch_tokens"] for arch in archs if "batch_tokens" not in law.laws[arch].terms]
    same = {value for ends in ranges for value in ends}
    return SweptAs(
        _model(recipe.model, archs),
        training,
        int(same.pop()) if len(same) == 1 else None,
        (min(recipe.warmup_tokens), max(recipe.warmup_tokens)),
        recipe.schedule["schedule"] != CONSTANT,
    )


def _model(swept: dict[str, dict[str, Any]], archs: Sequence[str]) -> dict[str, Any]:
    """The fields that all had alike, and the ladders' models have not."""
    allowed = model_changes().model_fields
    shared: dict[str, Any] = {}
    for i, arch in enumerate(archs):
        usual = rung(arch, LADDER, LADDER.end, {}).cfg.to_dict()
        other = {
            key: value
            for key, value in swept.get(arch, {}).items()
            if key in usual and key in allowed and usual[key] != value
        }
        shared = other if i == 0 else {key: value for key, value in shared.items() if other.get(key) == value}
    return shared
