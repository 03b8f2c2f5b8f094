"""What changes a run: what a section of the file or of --set says, and whether it goes with the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arch.amounts import counted
from arch.config import ModelConfig
from arch.errors import InputError

from .law_file import LAW
from .schedule import CONSTANT, FIELDS, READS, planned_steps
from .training import Training
from .types import Section

if TYPE_CHECKING:
    from .run import RunSpec


def given_in(section: Section) -> dict[str, Any]:
    """The keys that a section gives, without its defaults."""
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


NEEDED = {  # a key of training: whether another section says what it goes with, and what that is
    "lr_law": (lambda given: given.get("lr") == LAW, "lr: law"),
    "lr_law_beyond": (lambda given: given.get("lr") == LAW, "lr: law"),
    "merge_fraction": (lambda given: given.get("merge_last") is not None, "merge_last"),
}


def unread(sections: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """(the place and key, what is wrong with it) of the first key that no run can read; sections: what each of a
    study's sections of training says, by its place."""
    for place, given in sections.items():
        for key, (is_there, what) in NEEDED.items():
            if given.get(key) is not None and not any(map(is_there, sections.values())):
                return f"{place}.{key}", f"is read with {what} alone, which is not given: add that, or leave it out"
        if given.get("n_checkpoints") is not None and given.get("checkpoint_tokens") is not None:
            return f"{place}.n_checkpoints", "means nothing beside checkpoint_tokens: leave one of them out"
    return None


def check_logged(runs: Sequence[RunSpec], origin: str) -> None:
    """Raises InputError for a run whose losses are written at its checkpoints alone."""
    for run in runs:
        every, steps = run.training.log_every, planned_steps(run.training)
        if every > steps and run.trunk is None:
            raise InputError(
                f"{origin}: training.log_every={every} of {run.run_id} is more than its {counted(steps, 'step')}: no "
                f"loss would be written between its checkpoints; give fewer steps"
            )


def differing(changes: dict[str, Any], section: Any, other: Any) -> dict[str, Any]:
    """The changes to fields that two sections or configurations do not agree on; all where there is no other."""
    if other is None:
        return changes
    first, second = (
        each.to_dict() if isinstance(each, ModelConfig) else each.model_dump() for each in (section, other)
    )
    return {field: value for field, value in changes.items() if first[field] != second[field]}
