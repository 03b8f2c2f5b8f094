"""The learning rates of runs that follow a law (`training.lr: law`): from the lock file that the study's own sweep
wrote, or from the law file that the study names.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.errors import InputError
from data.files import reading, regular, unsealed
from data.vocabulary import portable
from flops import count_params
from flops.ladder import Ladder, rung

from .model_section import model_changes
from .rate_law import OPTIMIZER, TERMS, WORDS, Rate, RateLaw, Recipe, Term
from .recipe import BATCH, BETAS, decay_at
from .run import FollowedLaw, LawRate, RunSpec
from .schedule import CONSTANT
from .spec import StudySpec
from .sweep import RUNS, runs_hash
from .training import Training
from .training_rules import beta2_at

LOCK = "rates.json"  # in the study's directory: the laws of its own sweep
LADDER = Ladder(1e5, 1e7, 2)  # of any: fields that are no shape are the same at all sizes


@dataclass(frozen=True)
class LawFile:
    """A law file's path, what it says, and the SHA-256 of its bytes."""

    path: Path
    law: RateLaw
    sha256: str


def read_law(path: Path) -> LawFile:
    """Raises InputError, one line, where there is no law file that this version reads."""
    try:
        content = regular(path).read_bytes()
    except ValueError as error:
        raise InputError(f"{path}: no law file ({error}): give what `scaling sweep` wrote") from None
    except OSError as error:
        raise InputError(
            f"{path}: no such law file ({error.strerror}): `scaling sweep` of a study with a section `sweep` writes one"
        ) from None
    return _parsed(path, content)


@lru_cache(maxsize=16)
def _parsed(path: Path, content: bytes) -> LawFile:
    try:
        raw = unsealed(content)
    except ValueError as error:
        raise InputError(f"{path}: is no law file: {error}") from None
    for key in ("schema", "version", "n_params", "n_tokens", "rate"):
        meant = RateLaw.model_fields["schema_" if key == "schema" else key].default
        value = raw.get(key) if isinstance(raw, dict) else None
        if value != meant:
            raise InputError(f"{path}: is no law file that this program reads: its {key} is {value!r}, not {meant!r}")
    try:
        law = RateLaw.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise InputError(f"{path}: is damaged: {where}: {first['msg']}{more}") from None
    return LawFile(path, law, hashlib.sha256(content).hexdigest())


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
    def laws(self) -> list[LawFile]:
        """The law files that were read."""
        return list({law.path: law for law in self._laws.values() if isinstance(law, LawFile)}.values())

    def law(self, run: RunSpec, named: str | None) -> LawFile:
        """The law file that a run follows: `named`, or None for the study's own sweep. Raises InputError where there is
        none, or, of the sweep, none of the one that the study file asks for."""
        key = f"sweep of {run.arch}" if named is None else named
        if key not in self._laws:
            try:
                if named is None:
                    self._laws[key] = self._of_sweep(run.arch)
                else:
                    self._laws[key] = read_law(Path(self.study.path).parent / Path(named).expanduser())
            except InputError as error:
                self._laws[key] = error
        law = self._laws[key]
        if isinstance(law, InputError):
            raise law
        return law

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
    without one, and its `rate` says why. Raises InputError where a law file that the study names does not hold for a
    run."""
    return [run if run.rate is None or not run.is_pending else _resolved(run, run.rate, lock) for run in runs]


def _resolved(run: RunSpec, rate: LawRate, lock: Lock) -> RunSpec:
    swept = False
    try:
        file = lock.law(run, rate.law)
        swept = True
        lr, followed, notes = _follow(file, run, rate)
    except InputError as error:
        if rate.law is not None:
            raise InputError(f"{lock.study.origin}: {error}") from None
        pending = rate.model_copy(update={"pending": str(error), "swept": swept})
        return run.model_copy(update={"rate": pending, "notes": [*run.notes, f"no learning rate yet: {error}"]})
    given: dict[str, Any] = {"lr": lr}
    if rate.timescale is not None:
        given["weight_decay"] = decay_at(lr, run.training.batch_tokens, rate.horizon, rate.timescale)
    training = run.training.model_copy(update=given)
    rate = rate.model_copy(update={"followed": followed})
    return run.model_copy(update={"training": training, "rate": rate, "notes": [*run.notes, *notes]})


def _follow(file: LawFile, run: RunSpec, asked: LawRate) -> tuple[float, FollowedLaw, list[str]]:
    """The rate to three significant digits, its record, and notes for the reader of a plan. Raises InputError where the
    law is of something else."""
    law, config, arch = file.law, run.config, run.arch
    origin = f"training.lr_law of {run.where}: {file.path}"
    if arch not in law.laws:
        reason = law.without_law.get(arch) or f"has laws of {', '.join(law.laws)}"
        raise InputError(
            f"{origin}: no law of {arch} ({reason}): sweep it, or give overrides.by_arch.{arch}.lr a number"
        )
    _check_recipe(law.recipe, file.path, run, asked, origin)
    arch_law = law.laws[arch]
    with reading(file.path, "sweep again"):
        rate = arch_law.at(count_params(config).non_embedding, asked.horizon, run.training.batch_tokens)
    if BATCH in run.rules:  # as its sweep had
        rate.outside.pop("batch_tokens", None)
    _check_reach(rate, arch_law.terms, asked.beyond, origin)
    lr = float(f"{rate.rate:.3g}")
    if not 0 < lr < math.inf:
        raise InputError(f"{origin}: is damaged: it gives a rate of {lr:g}; sweep again")
    notes = []
    if rate.outside:
        beyond = ", ".join(f"{WORDS[term]} lies {times:.3g} times further" for term, times in rate.outside.items())
        notes.append(f"{run.where}: {beyond} than what its law of the learning rate was swept at")
    if (swept_length := law.recipe.context_length) != run.context_length:
        notes.append(f"{run.where}: context_length {run.context_length}, the law of its learning rate {swept_length}")
    model = config.to_dict()
    swept = {key: value for key, value in law.recipe.model.get(arch, {}).items() if model.get(key) != value}
    if swept:
        has = ", ".join(f"{key}={_words(model.get(key))}" for key in swept)
        was = ", ".join(f"{key}={_words(value)}" for key, value in swept.items())
        notes.append(f"{run.where}: its rate was swept with {was}, and the run has {has}")
    followed = FollowedLaw(
        law_sha256=file.sha256,
        low=rate.low,
        high=rate.high,
        level=arch_law.level,
        outside=dict(rate.outside),
        corpus_fingerprint=law.recipe.corpus_fingerprint,
        swept_model=swept,
    )
    return lr, followed, notes


def _check_recipe(recipe: Recipe, path: Path, run: RunSpec, asked: LawRate, origin: str) -> None:
    """Raise InputError where the sweep was of another tokenizer, schedule or optimizer."""
    training = run.training
    for rule in sorted({*recipe.rules, *run.rules}):
        swept, now = recipe.rules.get(rule, "given by hand"), run.rules.get(rule, "given by hand")
        if swept != now:
            raise InputError(f"{origin}: its sweep had {rule} {swept}, the run has {now}")
    of_run = {"tokenizer": portable(run.corpus.tokenizer), "vocab_size": run.config.vocab_size}
    of_run |= {"schedule": asked.schedule}
    of_run |= {key: getattr(training, key) for key in OPTIMIZER if key not in run.rules}
    of_law = recipe.model_dump() | {"optimizer": "adamw"} | recipe.optimizer  # older files have AdamW's alone
    for key, value in of_run.items():
        if of_law.get(key) != value:
            raise InputError(f"{origin}: its sweep had {key} {_words(of_law.get(key))}, the run has {_words(value)}")
    if BETAS in run.rules:
        return
    with reading(path, "sweep again"):
        first, second = recipe.optimizer["betas"]
        if recipe.beta2_batch_tokens is not None:
            second = beta2_at(second, recipe.beta2_batch_tokens, training.batch_tokens)
    if [first, second] != training.betas:
        raise InputError(f"{origin}: its sweep had betas {[first, second]} at this batch, the run has {training.betas}")


def _check_reach(rate: Rate, terms: list[Term], most: float, origin: str) -> None:
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


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    return "null" if value is None else str(value)


@dataclass(frozen=True)
class SweptAs:
    """What a study file must say so that its runs are as those that a law was swept with. model, training: what the
    sections must give beside their defaults, for all architectures; batch: tokens of a step, None where the law has a
    term in it; warmup: [fewest, most] tokens; decays: whether losses were decayed."""

    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None
    warmup: tuple[int, int] | None = None
    decays: bool | None = None


def swept_as(law: RateLaw, archs: Sequence[str]) -> SweptAs:
    """The recipe for the architectures, which the law has. A field of the model that they do not share is left out: a
    plan names it."""
    recipe, defaults = law.recipe, Training().model_dump()
    training = {key: value for key, value in recipe.optimizer.items() if defaults[key] != value}
    if recipe.beta2_batch_tokens is not None:
        training["beta2_batch_tokens"] = recipe.beta2_batch_tokens
    ranges = [law.laws[arch].ranges["batch_tokens"] for arch in archs if "batch_tokens" not in law.laws[arch].terms]
    batches = {value for ends in ranges for value in ends}
    shared = [_swept_model(recipe.model.get(arch, {}), arch) for arch in archs]
    return SweptAs(
        {key: value for key, value in shared[0].items() if all(other.get(key) == value for other in shared)},
        training,
        int(batches.pop()) if len(batches) == 1 else None,
        (min(recipe.warmup_tokens), max(recipe.warmup_tokens)),
        recipe.schedule["schedule"] != CONSTANT,
    )


def _swept_model(swept: dict[str, Any], arch: str) -> dict[str, Any]:
    """The fields of an architecture's swept runs that the ladders' models have otherwise."""
    allowed, usual = model_changes().model_fields, rung(arch, LADDER, LADDER.end, {}).cfg.to_dict()
    return {key: value for key, value in swept.items() if key in usual and key in allowed and usual[key] != value}
