"""The learning rates of runs that follow a law (`training.lr: law`): from the lock file that the study's own sweep
wrote, or from the law file that the study names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from data.files import reading
from data.vocabulary import portable
from flops import count_params

from .batch_rule import beta2_at
from .law_file import OPTIMIZER, LawFile, read_law
from .rate_law import TERMS, WORDS, Rate, Recipe, Term
from .run import RunSpec
from .spec import StudySpec
from .sweep import RUNS, runs_hash

LOCK = "rates.json"  # in the study's directory: the laws of its own sweep


@dataclass(frozen=True)
class Followed:
    """The rate of a run, to three significant digits; `record`: what run.json says of it; notes: for the reader of a
    plan."""

    lr: float
    record: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class Lock:
    """Where the runs of a study find their rates. Each file is read once."""

    study: StudySpec
    _laws: dict[str, LawFile | InputError] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The lock file that the study's sweep writes; of a published study in its folder."""
        return (self.study.published or self.study.directory) / LOCK

    @property
    def files(self) -> list[Path]:
        """The law files that were read."""
        return list(dict.fromkeys(law.path for law in self._laws.values() if isinstance(law, LawFile)))

    def law(self, run: RunSpec) -> LawFile:
        """The law file that a run follows. Raises InputError where there is none, or, of the study's own sweep, none of
        the sweep that the study file asks for."""
        named = run.rate["law"]
        key = f"sweep of {run.arch}" if named is None else named
        if key not in self._laws:
            try:
                self._laws[key] = self._of_sweep(run.arch) if named is None else self._named(named)
            except InputError as error:
                self._laws[key] = error
        law = self._laws[key]
        if isinstance(law, InputError):
            raise law
        return law

    def _named(self, name: str) -> LawFile:
        return read_law(Path(self.study.path).parent / Path(name).expanduser())

    def _of_sweep(self, arch: str) -> LawFile:
        if not self.path.exists():
            raise InputError(f"{self.path} is not there yet")
        file = read_law(self.path)
        swept, expected = dict(file.law.sweep or {}), self.study.sweep.decisive if self.study.sweep else {}
        runs = swept.pop(RUNS, None)
        if swept != expected:
            other = ", ".join(key for key in expected if swept.get(key) != expected[key])
            raise InputError(f"{self.path} is of another section sweep than the study file has now ({other})")
        if not isinstance(runs, dict):
            raise InputError(f"{self.path} does not say which runs it was fitted to")
        if arch not in runs:
            raise InputError(f"{self.path}: its sweep had no {arch}")
        if runs[arch] != runs_hash(self.study, arch):
            raise InputError(
                f"{self.path}: its sweep had other runs of {arch} than the study file asks for now (model, sizes, text "
                f"or training)"
            )
        return file


def resolve(runs: Iterable[RunSpec], lock: Lock) -> list[RunSpec]:
    """`runs` with the rates of the laws that they follow. A run whose rate the study's own sweep has not given stays
    without one, and its `rate` says why: "pending", and "swept", whether another sweep would not give it either. Raises
    InputError where a law file that the study names does not hold for a run."""
    return [_resolved(run, lock) if run.is_pending else run for run in runs]


def _resolved(run: RunSpec, lock: Lock) -> RunSpec:
    swept = False
    try:
        file = lock.law(run)
        swept = True
        followed = follow(file, run)
    except InputError as error:
        if run.rate["law"] is not None:
            raise InputError(f"{lock.study.origin}: {error}") from None
        why = {"pending": str(error), "swept": swept}
        notes = [*run.notes, f"no learning rate yet: {error}"]
        return run.model_copy(update={"rate": run.rate | why, "notes": notes})
    training = run.training.model_copy(update={"lr": followed.lr})
    notes = [*run.notes, *followed.notes]
    return run.model_copy(update={"training": training, "rate": followed.record, "notes": notes})


def follow(file: LawFile, run: RunSpec) -> Followed:
    """The rate of a run that has none yet. Raises InputError where the law is of something else."""
    law, config, training, arch = file.law, run.config, run.training, run.arch
    origin = f"training.lr_law of {run.where}: {file.path}"
    if arch not in law.laws:
        why = law.without_law.get(arch)
        reason = f"has laws of {', '.join(law.laws)}" if why is None else why
        raise InputError(
            f"{origin}: no law of {arch} ({reason}): sweep it, or give overrides.by_arch.{arch}.lr a number"
        )
    of_run = {"tokenizer": portable(run.corpus.tokenizer), "vocab_size": config.vocab_size}
    of_run |= {"schedule": run.rate["schedule"]} | {key: getattr(training, key) for key in OPTIMIZER}
    of_law = law.recipe.model_dump() | law.recipe.optimizer
    for key, value in of_run.items():
        if of_law.get(key) != value:
            raise InputError(f"{origin}: its sweep had {key} {_words(of_law.get(key))}, the run has {_words(value)}")
    with reading(file.path, "sweep again"):
        betas = _betas_of(law.recipe, training.batch_tokens)
    if betas != training.betas:
        raise InputError(f"{origin}: its sweep had betas {betas} at this batch, the run has {training.betas}")
    horizon = run.rate["horizon"]
    with reading(file.path, "sweep again"):
        rate = law.laws[arch].at(count_params(config).non_embedding, horizon, training.batch_tokens)
    _refuse_far(rate, law.laws[arch].terms, run.rate["beyond"], origin)
    lr = float(f"{rate.rate:.3g}")
    if not 0 < lr < math.inf:
        raise InputError(f"{origin}: is damaged: it gives a rate of {lr:g}; sweep again")
    record = {"law_sha256": file.sha256, "low": rate.low, "high": rate.high, "level": law.laws[arch].level}
    record |= {"n_tokens": horizon, "outside": dict(rate.outside), "corpus_fingerprint": law.recipe.corpus_fingerprint}
    notes = []
    if rate.outside:
        notes.append(f"{run.where}: {_beyond(rate)} than what its law of the learning rate was swept at")
    if law.recipe.context_length != run.context_length:
        notes.append(
            f"{run.where}: context_length {run.context_length}, the law of its learning rate "
            f"{law.recipe.context_length}"
        )
    model = config.to_dict()
    swept = {key: value for key, value in law.recipe.model.get(arch, {}).items() if model.get(key) != value}
    if swept:
        record["swept_model"] = swept
        has = ", ".join(f"{key}={model.get(key)}" for key in swept)
        was = ", ".join(f"{key}={value}" for key, value in swept.items())
        notes.append(f"{run.where}: its rate was swept with {was}, and the run has {has}")
    return Followed(lr, record, notes)


def _betas_of(recipe: Recipe, batch: int) -> list[float]:
    first, second = recipe.optimizer["betas"]
    if recipe.beta2_batch_tokens is not None:
        second = beta2_at(second, recipe.beta2_batch_tokens, batch)
    return [first, second]


def _refuse_far(rate: Rate, terms: list[Term], most: float, origin: str) -> None:
    for term in TERMS:
        times = rate.outside.get(term, 1.0)
        if times > 1 and term not in terms:
            raise InputError(
                f"{origin}: it has no term in {WORDS[term]}, and the run lies {times:.3g} times outside of what was "
                f"swept of it: sweep two values of it, or give the run's lr a number"
            )
        if times > most:
            raise InputError(
                f"{origin}: {WORDS[term]} of the run lies {times:.3g} times outside of what was swept, and "
                f"training.lr_law_beyond allows {most:g}: sweep nearer to it, or raise that"
            )


def _beyond(rate: Rate) -> str:
    return ", ".join(f"{WORDS[term]} lies {times:.3g} times further" for term, times in rate.outside.items())


def _words(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
