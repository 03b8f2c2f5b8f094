"""The sweep that a study file asks for, as fields of a study; and the law file of it, which runs follow where it is of
this very sweep.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from arch.errors import InputError, nearest
from flops import count_params

from .axes import Point
from .file import read_study
from .law_file import OWN_KEYS, LawFile, read_law
from .model_section import ModelSection
from .sweep_section import EVERY, Sweep
from .training import Overrides, Training

if TYPE_CHECKING:
    from .spec import StudySpec

LAW_NAME = "rates.json"  # in the study's directory
RUNS = "runs"  # in a law file, beside the section's keys: {architecture: hash of its runs}
OF_FILE = ("training", "model", "grid")  # sections of which a sweep takes what the study file says, whatever --set says
N_SIZES = 3
OF_MAIN_RUNS = ("lr", "n_tokens", "max_tokens", "branches", "checkpoint_tokens", "max_steps", *OWN_KEYS)


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
    known = list(study.grid.sizes)
    for size in sweep.sizes or []:
        if size not in known:
            raise InputError(f"{study.path}: sweep.sizes: this study has no size {size}{nearest(size, known)}")
    arch = study.grid.archs[0]

    def n_params(size: str) -> int:
        return count_params(study.grid.sizes.config(arch, size, {}, {})).non_embedding

    ordered = sorted(sweep.sizes or known, key=n_params)
    return ordered if sweep.sizes else ordered[:N_SIZES]


def _short(section: Training) -> dict[str, Any]:
    """What a section says, but for what decides rates, lengths and checkpoints."""
    found = section.model_dump(exclude_unset=True, serialize_as_any=True)
    return {key: value for key, value in found.items() if key not in (*OF_MAIN_RUNS, "n_checkpoints")}


def sweep_told(study: StudySpec) -> dict[str, Any]:
    """What a law file says of the study's sweep: the section, and a hash of each architecture's runs."""
    assert study.sweep is not None
    return study.sweep.asked | {RUNS: {arch: runs_hash(study, arch) for arch in study.grid.archs}}


def runs_hash(study: StudySpec, arch: str) -> str:
    """16 hex digits over what the runs of an architecture in the study file's sweep are, whatever their rates: model,
    corpus with its source, training of every cell. The seeds are those of the section."""
    kept = tuple(change for change in study.sets if _section(change) not in OF_FILE)
    kind = type(study)
    if any(_section(change) == "grid" for change in study.sets):
        study = kind.model_construct(**read_study(Path(study.path), list(kept), study.out))
    fields = swept_fields(study)
    one = kind.model_construct(**{key: value for key, value in fields.items() if key != "tried"})
    found = [json.dumps(study.corpus.model_dump(mode="json", include={"source"}))]
    for where in fields["tried"]:
        if where.arch == arch:
            (run,) = one.runs_at(arch, where.size, where.at(1.0), 0)
            found.append(run.spec_hash)
    return hashlib.sha256(",".join(found).encode()).hexdigest()[:16]


def _section(change: str) -> str:
    return change.partition(".")[0].strip()


def read_own_law(study: StudySpec, arch: str) -> LawFile:
    """The law file of the study's own sweep. Raises InputError where there is none of the sweep that the study file
    asks for."""
    path = (study.published or study.directory) / LAW_NAME
    if not path.exists():
        raise InputError(f"{path} is not there yet")
    file = read_law(path)
    told, asked = dict(file.law.sweep or {}), study.sweep.asked if study.sweep else {}
    runs = told.pop(RUNS, None)
    if told != asked:
        other = ", ".join(key for key in asked if told.get(key) != asked[key])
        raise InputError(f"{path} is of another section sweep than the study file has now ({other})")
    if not isinstance(runs, dict):
        raise InputError(f"{path} does not say of which runs it is")
    if arch not in runs:
        raise InputError(f"{path}: its sweep had no {arch}")
    if runs[arch] != runs_hash(study, arch):
        raise InputError(
            f"{path}: its sweep had other runs of {arch} than the study file asks for now (model, sizes, text or "
            f"training)"
        )
    return file
