"""What changes a run: what a section of the file or of --set says, and whether it goes with the rest."""

from __future__ import annotations

from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError

from .schedule import CONSTANT, FIELDS, READS
from .training import Training
from .types import Section


def said(section: Section) -> dict[str, Any]:
    """What a section says, without its defaults."""
    return section.model_dump(exclude_unset=True, serialize_as_any=True)  # the fields of a model: of its options too


def check_target(target: int | None, training: Training, branches: bool, where: str) -> None:
    """Raises InputError for a run that is longer than the one that the laws are for, and for branches, whose trunk
    would read as much text for each of them."""
    if target is None:
        return
    if branches:
        raise InputError(
            f"corpus.target_tokens of {where} with training.branches: runs of several lengths read several shares of "
            f"the text, so they share no trunk; give training.n_tokens in place of branches"
        )
    assert isinstance(training.n_tokens, int)
    if training.n_tokens > target:
        raise InputError(
            f"corpus.target_tokens: {target:,} are fewer than the {training.n_tokens:,} tokens of {where}: plan fewer, "
            f"or give the tokens of a longer target"
        )


def check_read(training: dict[str, Any], changes: dict[str, Any], where: str) -> None:
    """Raises InputError for what shapes another schedule than the run's, but where the command line or an axis
    chose it."""
    schedule = training.get("schedule", CONSTANT)
    for field in FIELDS[1:]:
        chosen = "schedule" in changes and field not in changes
        if field in training and field not in READS[schedule] and not chosen:
            raise InputError(
                f"training.{field} of {where} means nothing to schedule {schedule}, only to "
                f"{', '.join(name for name in READS if field in READS[name])}: leave it out"
            )


def differing(changes: dict[str, Any], one: Any, other: Any) -> dict[str, Any]:
    """The changes to fields that two sections or configurations do not agree on; all where there is no other."""
    if other is None:
        return changes
    first, second = (each.to_dict() if isinstance(each, ModelConfig) else each.model_dump() for each in (one, other))
    return {field: value for field, value in changes.items() if first[field] != second[field]}
