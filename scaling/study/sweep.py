"""The study of a sweep: the short runs over learning rates that a study's section `sweep` asks for, derived from the
study itself, so that corpus, training and evaluation are as ever. Its directory is <out>/<study>/sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arch.errors import InputError
from data.vocabulary import portable

from .axes import fields_of
from .batch_rule import beta2_at
from .law_file import OPTIMIZER, OWN_KEYS, schedule_of
from .own_law import OF_FILE, Where, swept_fields
from .rate_law import Recipe
from .run import RunSpec
from .sizes import SHAPE
from .spec import StudySpec


class SweepSpec(StudySpec):
    """The sweep of a study; tried: the rates of each cell, ascending."""

    tried: dict[Where, list[float]]

    def runs(self, only: str | None = None) -> list[RunSpec]:
        return [run for where in self.tried for run in self.runs_of(where)]

    def all_runs(self, only: str | None = None) -> list[RunSpec]:
        return self.runs(only)

    def runs_of(self, where: Where) -> Iterator[RunSpec]:
        """The runs of a cell, by rate and seed."""
        assert self.sweep is not None
        for lr in self.tried[where]:
            for seed in self.sweep.seeds:
                yield from self.runs_at(where.arch, where.size, where.at(lr), seed)

    def with_rates(self, more: Mapping[Where, float]) -> SweepSpec:
        """With one more rate in some of the cells."""
        tried = {
            where: sorted([*rates, *([more[where]] if where in more else [])]) for where, rates in self.tried.items()
        }
        return self.model_copy(update={"tried": tried})


def sweep_of(study: StudySpec) -> SweepSpec:
    """The sweep that the study file asks for. Raises InputError where it asks for none, or for what cannot be."""
    changed = [change for change in study.sets if change.partition(".")[0].strip() in OF_FILE]
    if changed:
        raise InputError(f"--set {changed[0]}: a sweep is of the study file's own runs: change a copy of the file")
    return SweepSpec.model_construct(**swept_fields(study))


def _alike(runs: list[RunSpec]) -> dict[str, Any]:
    """The fields of the model that all runs of an architecture share: what differs from size to size is shape."""
    models = [run.config.to_dict() for run in runs]
    told_otherwise = ("arch", "vocab_size", "context_length", *SHAPE)
    return {
        field: value
        for field, value in models[0].items()
        if field not in told_otherwise and all(one.get(field) == value for one in models)
    }


def not_swept(study: StudySpec) -> str | None:
    """What the axes of the grid are to the sweep, in one line; None where there are none but of rates and lengths."""
    fields = list(fields_of(study.grid.axes))
    judged = ("n_tokens", "lr", *OWN_KEYS, *(["batch_tokens"] if study.sweep and study.sweep.batch_tokens else []))
    left = [field for field in fields if field.removeprefix("training.") not in judged]
    if not left:
        return None
    swept: dict[str, list[str]] = {}
    for run in sweep_of(study).runs():
        for field in left:
            section, _, name = field.partition(".")
            known = run.config.to_dict() if section == "model" else run.training.model_dump()
            value = str(known.get(name))
            if name in known and value not in swept.setdefault(name, []):
                swept[name].append(value)
    told = ", ".join(f"{name}={'|'.join(values)}" for name, values in swept.items())
    return (
        f"axes are not swept ({', '.join(left)}): the rates of all points follow a sweep with {told}; a study file for "
        f"each point gets each a sweep of its own"
    )


def recipe_of(sweep: SweepSpec, corpus_fingerprint: str | None) -> Recipe:
    """What all runs of the sweep have in common. Raises InputError where they have not."""
    stated, batch = sweep.training.betas, sweep.training.beta2_batch_tokens
    found: dict[str, Any] = {}
    runs = sweep.runs()
    for run in runs:
        training = run.training
        own: dict[str, Any] = {"vocab_size": run.config.vocab_size, "context_length": run.context_length}
        own |= {"schedule": schedule_of(training.model_dump())} | {key: getattr(training, key) for key in OPTIMIZER}
        second = stated[1] if batch is None else beta2_at(stated[1], batch, training.batch_tokens)
        own["betas"] = training.betas if training.betas != [stated[0], second] else stated
        for key, value in own.items():
            if found.setdefault(key, value) != value:
                raise InputError(
                    f"{sweep.path}: the sweep's runs differ in {key} ({found[key]} and {value} of {run.run_id}), and a "
                    f"law file holds for one: leave the overrides out"
                )
    if found["betas"] != stated:
        raise InputError(f"{sweep.path}: give betas in training, not in overrides: a law file holds for one pair")
    warmup = [run.training.warmup_tokens for run in runs]
    return Recipe(
        tokenizer=portable(sweep.corpus.tokenizer),
        **{key: found[key] for key in ("vocab_size", "context_length", "schedule")},
        optimizer={key: found[key] for key in (*OPTIMIZER, "betas")},
        model={arch: _alike([run for run in runs if run.arch == arch]) for arch in sweep.grid.archs},
        beta2_batch_tokens=batch,
        warmup_tokens=[min(warmup), max(warmup)],
        corpus_fingerprint=corpus_fingerprint,
        loss=f"held-out loss over {sweep.evaluation.validation_tokens:,} tokens at the end of each run",
    )
