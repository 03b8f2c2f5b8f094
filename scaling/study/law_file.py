"""Reading a law file, and the learning rate of a run that follows it (`training.lr: law`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.errors import InputError
from data.files import reading, regular, unsealed

from .batch_rule import beta2_at, lengths_of, or_default
from .rate_law import TERMS, WORDS, Rate, RateLaw, Recipe, Term
from .schedule import CONSTANT, READS

LAW = "law"
OWN_KEYS = ("lr_law", "lr_law_beyond")  # of a section `training`: gone into lr
OPTIMIZER = ("weight_decay", "eps", "grad_clip")


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
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != "scaling.rate-law":
        raise InputError(f"{path}: is no law file of learning rates (its schema is {schema!r})")
    if raw.get("version") != 1:
        raise InputError(f"{path}: is a law file of version {raw.get('version')!r}, this program reads 1: sweep again")
    for key in ("n_params", "n_tokens", "rate"):
        meant = RateLaw.model_fields[key].default
        if raw.get(key) != meant:
            raise InputError(
                f"{path}: counts {key} by another convention, {raw.get(key)!r}, not {meant!r}: sweep again"
            )
    try:
        law = RateLaw.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise InputError(f"{path}: is damaged: {where}: {first['msg']}{more}") from None
    return LawFile(path, law, hashlib.sha256(content).hexdigest())


def horizon_of(given: dict[str, Any], n_params: Callable[[], int]) -> float | None:
    """The tokens that a rate is chosen for: those of the run; of a trunk, whose branches share its rate, the geometric
    mean of the shortest and the longest branch. None where none are given."""
    tokens = lengths_of(given, n_params)
    return math.sqrt(min(tokens) * max(tokens)) if tokens else None


@dataclass(frozen=True)
class Followed:
    """The rate of a run, to three significant digits; `told`: what a run's record says of it; notes: what a reader must
    be told."""

    lr: float
    told: dict[str, Any]
    notes: list[str]


def follow(
    file: LawFile,
    arch: str,
    given: dict[str, Any],
    tokenizer: str,
    vocab_size: int,
    context_length: int,
    model: Mapping[str, Any],
    n_params: Callable[[], int],
    where: str,
) -> Followed:
    """The rate of a run of the keys `given` of a section `training`, its betas those of its batch. Raises InputError
    where the law is of something else."""
    law, origin = file.law, f"training.lr_law of {where}: {file.path}"
    if arch not in law.laws:
        why = law.without_law.get(arch)
        known = f"has laws of {', '.join(law.laws)}" if why is None else why
        raise InputError(
            f"{origin}: no law of {arch} ({known}): sweep it, or give overrides.by_arch.{arch}.lr a number"
        )
    of_run = {"tokenizer": tokenizer, "vocab_size": vocab_size, "schedule": schedule_of(given)}
    of_run |= {key: or_default(given, key) for key in OPTIMIZER}
    of_law = law.recipe.model_dump() | law.recipe.optimizer
    for key, value in of_run.items():
        if of_law.get(key) != value:
            raise InputError(f"{origin}: its sweep had {key} {_words(of_law.get(key))}, the run has {_words(value)}")
    batch = or_default(given, "batch_tokens")
    with reading(file.path, "sweep again"):
        betas = _betas_of(law.recipe, batch)
    if betas != or_default(given, "betas"):
        raise InputError(
            f"{origin}: its sweep had betas {betas} at this batch, the run has {or_default(given, 'betas')}"
        )
    horizon = horizon_of(given, n_params)
    assert horizon is not None, "judged before"
    with reading(file.path, "sweep again"):
        found = law.laws[arch].at(n_params(), horizon, batch)
    _refuse_far(found, law.laws[arch].terms, or_default(given, "lr_law_beyond"), origin)
    lr = float(f"{found.rate:.3g}")
    if not 0 < lr < math.inf:
        raise InputError(f"{origin}: is damaged: it gives a rate of {lr:g}; sweep again")
    told = {"law_sha256": file.sha256, "low": found.low, "high": found.high, "level": law.laws[arch].level}
    told |= {"n_tokens": horizon, "outside": dict(found.outside), "corpus_fingerprint": law.recipe.corpus_fingerprint}
    notes = [f"{where}: {_beyond(found)} than what its law of the learning rate was swept at"] if found.outside else []
    if law.recipe.context_length != context_length:
        notes.append(
            f"{where}: context_length {context_length}, the law of its learning rate {law.recipe.context_length}"
        )
    swept = {key: value for key, value in law.recipe.model.get(arch, {}).items() if model.get(key) != value}
    if swept:
        told["swept_model"] = swept
        has = ", ".join(f"{key}={model.get(key)}" for key in swept)
        was = ", ".join(f"{key}={value}" for key, value in swept.items())
        notes.append(f"{where}: its rate was swept with {was}, and the run has {has}")
    return Followed(lr, told, notes)


def schedule_of(given: dict[str, Any]) -> dict[str, Any]:
    """The schedule by name, with the fields that it reads."""
    schedule = given.get("schedule", CONSTANT)
    return {"schedule": schedule} | {key: or_default(given, key) for key in READS[schedule]}


def _betas_of(recipe: Recipe, batch: int) -> list[float]:
    first, second = recipe.optimizer["betas"]
    if recipe.beta2_batch_tokens is not None:
        second = beta2_at(second, recipe.beta2_batch_tokens, batch)
    return [first, second]


def _refuse_far(found: Rate, terms: list[Term], most: float, origin: str) -> None:
    for term in TERMS:
        times = found.outside.get(term, 1.0)
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


def _beyond(found: Rate) -> str:
    return ", ".join(f"{WORDS[term]} lies {times:.3g} times further" for term, times in found.outside.items())


def _words(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
