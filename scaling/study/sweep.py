"""The study of a sweep: the short runs over learning rates that a study's section `sweep` asks for, derived from the
study itself, so that corpus, training and evaluation are as ever. Its directory is <out>/<study>/sweep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from arch.errors import InputError, nearest
from data.vocabulary import portable
from flops import count_params

from .axes import Point, fields_of
from .file import given_in, read_study
from .model_section import ModelSection
from .rate_law import OPTIMIZER, Recipe
from .recipe import BETAS
from .run import RunSpec
from .schema import EVERY, Sweep
from .sizes import SHAPE
from .spec import StudySpec
from .training import Overrides, Training
from .training_rules import LAW_KEYS, beta2_at, schedule_of

RUNS = "runs"  # in a law file, beside the section's keys: {architecture: hash of its runs}
OF_FILE = ("training", "model", "grid")  # sections of which a sweep takes what the study file says, whatever --set says
N_SIZES = 3
OF_MAIN_RUNS = ("lr", "n_tokens", "max_tokens", "branches", "checkpoint_tokens", "max_steps", *LAW_KEYS)


class Where(NamedTuple):
    """A cell as the study file says it; batch_tokens: None is the batch of `training`."""

    arch: str
    size: str
    tokens: int | str
    batch_tokens: int | None

    def at(self, lr: float) -> Point:
        """The point of its runs at a rate."""
        batch = () if self.batch_tokens is None else (("training.batch_tokens", self.batch_tokens),)
        return ("training.lr", lr), ("training.n_tokens", self.tokens), *batch


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
        """The sweep with one more rate in some of its cells."""
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


def swept_fields(study: StudySpec) -> dict[str, Any]:
    """The fields of a study file's sweep, and "tried", the rates of each cell, ascending. Raises InputError where the
    file asks for none, or for what cannot be."""
    if study.sweep is None:
        raise InputError(
            f"{study.path}: has no section sweep: add one, `sweep: {{}}` takes its defaults (docs/rates.md)"
        )
    sizes = swept_sizes(study, study.sweep)
    rates = {size: study.sweep.rates.get(size, study.sweep.rates.get(EVERY, [])) for size in sizes}
    for key in study.sweep.rates:
        if key not in (EVERY, *sizes):
            raise InputError(f"{study.path}: sweep.rates.{key}: this sweep has no size {key}{nearest(key, sizes)}")
    if without := [size for size in sizes if not rates[size]]:
        raise InputError(f"{study.path}: sweep.rates has none for {', '.join(without)}: add them")
    _check_batches(study, study.sweep)
    batches: list[int | None] = [*study.sweep.batch_tokens] if study.sweep.batch_tokens else [None]
    tried = {
        Where(arch, size, tokens, batch): list(rates[size])
        for arch in study.grid.archs
        for size in sizes
        for tokens in study.sweep.tokens
        for batch in batches
    }
    overrides: dict[str, Any] = {
        by: {key: _short(change) for key, change in table.items()} for by, table in study.overrides
    }
    fields = {name: getattr(study, name) for name in type(study).model_fields if name != "tried"}
    return fields | {
        **{"name": "sweep", "out": str(study.directory), "tried": tried, "sets": (), "set_results": {}},
        "training": Training(**_short(study.training), n_checkpoints=1),
        "overrides": Overrides(**overrides),
        "evaluation": study.evaluation.model_copy(update={"tasks": None, "settings": {}, "data": None}),
        "grid": study.grid.model_copy(update={"axes": {}, "nuisance": {}}),
        **{"set_model": ModelSection(), "set_training": Training()},
    }


def _check_batches(study: StudySpec, sweep: Sweep) -> None:
    """Raise InputError where a rule for short runs would make two batches one."""
    sections = [study.training, *(change for _, table in study.overrides for change in table.values())]
    if sweep.batch_tokens and any(section.min_steps is not None for section in sections):
        raise InputError(
            f"{study.path}: sweep.batch_tokens: training.min_steps would halve these batches until some are equal: "
            f"leave out one of the two"
        )


def swept_sizes(study: StudySpec, sweep: Sweep) -> list[str]:
    """The sizes of the sweep, the smallest first: those of the first architecture decide."""
    size_names = list(study.grid.sizes)
    for size in sweep.sizes or []:
        if size not in size_names:
            raise InputError(f"{study.path}: sweep.sizes: this study has no size {size}{nearest(size, size_names)}")
    arch = study.grid.archs[0]

    def n_params(size: str) -> int:
        return count_params(study.grid.sizes.config(arch, size, {}, {})).non_embedding

    ordered = sorted(sweep.sizes or size_names, key=n_params)
    return ordered if sweep.sizes else ordered[:N_SIZES]


def _short(section: Training) -> dict[str, Any]:
    """What a section says, but for what decides rates, lengths and checkpoints."""
    return {key: value for key, value in given_in(section).items() if key not in (*OF_MAIN_RUNS, "n_checkpoints")}


def sweep_identity(study: StudySpec) -> dict[str, Any]:
    """The identity of the study's sweep in a law file: the section, and a hash of each architecture's runs."""
    assert study.sweep is not None
    return study.sweep.decisive | {RUNS: {arch: runs_hash(study, arch) for arch in study.grid.archs}}


def runs_hash(study: StudySpec, arch: str) -> str:
    """16 hex digits over what the runs of an architecture in the study file's sweep are, whatever their rates: model,
    corpus with its source, training of every cell. The seeds are those of the section."""
    kept = tuple(change for change in study.sets if _section(change) not in OF_FILE)
    kind = type(study)
    if any(_section(change) == "grid" for change in study.sets):
        study = kind.model_construct(**read_study(Path(study.path), list(kept), study.out))
    fields = swept_fields(study)
    first_seed = kind.model_construct(**{key: value for key, value in fields.items() if key != "tried"})
    parts = [json.dumps(study.corpus.model_dump(mode="json", include={"source"}))]
    for where in fields["tried"]:
        if where.arch == arch:
            (run,) = first_seed.runs_at(arch, where.size, where.at(1.0), 0)
            parts.append(run.spec_hash)
    return hashlib.sha256(",".join(parts).encode()).hexdigest()[:16]


def _section(change: str) -> str:
    return change.partition(".")[0].strip()


def _alike(runs: list[RunSpec]) -> dict[str, Any]:
    """The fields of the model that all runs of an architecture share: what differs from size to size is shape."""
    models = [run.config.to_dict() for run in runs]
    named_elsewhere = ("arch", "vocab_size", "context_length", *SHAPE)
    return {
        field: value
        for field, value in models[0].items()
        if field not in named_elsewhere and all(model.get(field) == value for model in models)
    }


def not_swept(study: StudySpec) -> str | None:
    """What the axes of the grid are to the sweep, in one line; None where there are none but of rates and lengths."""
    fields = list(fields_of(study.grid.axes))
    judged = ("n_tokens", "lr", *LAW_KEYS, *(["batch_tokens"] if study.sweep and study.sweep.batch_tokens else []))
    left = [field for field in fields if field.removeprefix("training.") not in judged]
    if not left:
        return None
    return (
        f"axes are not swept ({', '.join(left)}): the rates of all points follow a sweep of the study without axes; a "
        f"study file for each point gets each a sweep of its own"
    )


def recipe_of(sweep: SweepSpec, corpus_fingerprint: str | None) -> Recipe:
    """What all runs of the sweep have in common. Raises InputError where they have not."""
    stated, batch = sweep.training.betas, sweep.training.beta2_batch_tokens
    shared: dict[str, Any] = {}
    runs = sweep.runs()
    for run in runs:
        training = run.training
        recipe: dict[str, Any] = {"vocab_size": run.config.vocab_size, "context_length": run.context_length}
        recipe |= {"schedule": schedule_of(training.model_dump()), "rules": run.rules}
        recipe |= {key: getattr(training, key) for key in OPTIMIZER if key not in run.rules}
        second = stated[1] if batch is None else beta2_at(stated[1], batch, training.batch_tokens)
        if BETAS not in run.rules:
            recipe["betas"] = training.betas if training.betas != [stated[0], second] else stated
        for key, value in recipe.items():
            if shared.setdefault(key, value) != value:
                raise InputError(
                    f"{sweep.path}: the sweep's runs differ in {key} ({shared[key]} and {value} of {run.run_id}), and "
                    f"a law file holds for one: leave the overrides out"
                )
    if shared.get("betas", stated) != stated:
        raise InputError(f"{sweep.path}: give betas in training, not in overrides: a law file holds for one pair")
    warmup = [run.training.warmup_tokens for run in runs]
    return Recipe(
        tokenizer=portable(sweep.corpus.tokenizer),
        **{key: shared[key] for key in ("vocab_size", "context_length", "schedule", "rules")},
        optimizer={key: shared[key] for key in (*OPTIMIZER, "betas") if key in shared},
        model={arch: _alike([run for run in runs if run.arch == arch]) for arch in sweep.grid.archs},
        beta2_batch_tokens=batch,
        warmup_tokens=[min(warmup), max(warmup)],
        corpus_fingerprint=corpus_fingerprint,
        loss=f"held-out loss over {sweep.evaluation.validation_tokens:,} tokens at the end of each run",
    )
