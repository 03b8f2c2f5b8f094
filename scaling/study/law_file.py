"""Reading a law file, and what a run whose rate it gives (`training.lr: law`) asks of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arch.errors import InputError
from data.files import regular, unsealed

from .batch_rule import lengths_of, or_default
from .rate_law import RateLaw
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


def rate_request(given: dict[str, Any], horizon: float) -> dict[str, Any]:
    """What a run of the keys `given` of a section `training` asks of a law, as its RunSpec.rate has it until it has a
    rate: the law's file (null: the study's own sweep), the tokens that the rate is chosen for, how far outside of the
    swept ones it may lie, and the schedule, which a trunk has of its branches."""
    beyond = or_default(given, "lr_law_beyond")
    return {"law": given.get("lr_law"), "horizon": horizon, "beyond": beyond, "schedule": schedule_of(given)}


def schedule_of(given: dict[str, Any]) -> dict[str, Any]:
    """The schedule by name, with the fields that it reads."""
    schedule = given.get("schedule", CONSTANT)
    return {"schedule": schedule} | {key: or_default(given, key) for key in READS[schedule]}
