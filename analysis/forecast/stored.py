"""The predictions of a study's forecast and their files, one a round: written once, before its runs are trained."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.fits.settings import FitSettings
from arch.errors import InputError
from data.files import read_json, write_json

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

PREDICTIONS, LATER = "predictions.json", re.compile(r"predictions-([2-9]|[1-9]\d+)\.json")
SCHEMA, VERSION = "scaling.predictions", 1
OF_RUN = ("run_id", "spec_hash", "arch", "group", "size", "n_params", "n_tokens", "c", "loss", "interval", "reason")
REMEDY = "take it from where the study was bundled or published, or remove it while none of its runs is trained"
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class PredictedRun(_Part):
    """One run that is to come. read_at: the tokens at which its loss lies; c: its FLOP there; loss: None where `reason`
    says why nothing is predicted; interval: None where `rests_on` says why there is none; lr: its highest learning
    rate; other_forms: the loss by forms of the surface beside that of the settings; baselines: the loss by rules that a
    forecast should beat."""

    run_id: str
    spec_hash: str | None
    arch: str
    group: str
    size: str
    n_params: int
    n_tokens: int
    read_at: Positive
    c: Positive
    loss: float | None = None
    interval: tuple[float, float] | None = None
    reason: str | None = None
    rests_on: str | None = None
    seed: int | None = None
    lr: Positive | None = None
    other_forms: dict[str, float] = {}
    baselines: dict[str, float] = {}


class Largest(_Part):
    """The largest compute `c` [FLOP] that was fitted."""

    c: Positive


class Group(_Part):
    """What a group's runs are predicted from; `reason` where nothing is."""

    reason: str | None
    largest: Largest | None = None


class Program(_Part):
    """code: digest of this program's packages as they were."""

    commit: str | None
    code: str | None = None


class HeldOutText(_Part):
    """The held-out text that losses are read on; sha256: of its shards' files, or a labelled set's."""

    tokens: int
    bytes: int
    sha256: tuple[str, ...]


class Fitted(_Part):
    """The runs that were fitted, by id the hash of their spec, of how many the study had."""

    n_runs: int
    of: int
    spec_hashes: dict[str, str]


class Conventions(_Part):
    C: str
    L: str


class Predictions(_Part):
    """What was predicted of one round, when, and from what; level: of the intervals; if_missed: what is tested of a run
    whose loss lies outside of its interval."""

    study: str
    round: int = 1
    made: str
    program: Program
    inputs_hash: str
    fitted: Fitted
    conventions: Conventions
    settings: FitSettings
    level: Annotated[float, Field(gt=0, lt=1)]
    validation_tokens: int | None = None
    held_out: HeldOutText | None = None
    if_missed: tuple[str, ...] = ()
    groups: dict[str, Group]
    runs: Annotated[tuple[PredictedRun, ...], Field(min_length=1)]

    def digest(self, run: PredictedRun) -> str:
        """Of what was predicted of a run, when, and from which fits: the run's record keeps it when it is trained."""
        content = self.model_dump(mode="json", include={"made", "inputs_hash", "level"})
        content |= run.model_dump(mode="json", include=set(OF_RUN))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def reach(self, run: PredictedRun) -> float | None:
        """A run's compute over the largest that was fitted of its group."""
        largest = self.groups[run.group].largest
        return None if largest is None else run.c / largest.c

    def check(self, number: int) -> None:
        """Raise ValueError where this is not what a file of round `number` holds."""
        if self.round != number:
            raise ValueError(f"it is of round {self.round}")
        if len({run.run_id for run in self.runs}) < len(self.runs):
            raise ValueError("it has a run twice")
        for run in self.runs:
            group = self.groups.get(run.group)
            if group is None:
                raise ValueError(f"groups: lacks {run.group}")
            if run.loss is not None and group.largest is None:
                raise ValueError(f"{run.run_id}: has a loss, and its group no largest compute")


def name_of_round(place: int) -> str:
    """The file of a round; the first has place 0."""
    return f"predictions-{place + 1}.json" if place else PREDICTIONS


def path_of(study: StudySpec, place: int = 0) -> Path:
    """Of the study's own predictions, whatever --set changes of its fits; of a published study in its folder."""
    return (study.published or study.directory / "results") / name_of_round(place)


def n_stored(study: StudySpec) -> int:
    """How many rounds have a file, the first ones. Raises InputError where these are others than the first of the study
    file."""
    if not study.rounds:
        return 0
    first = path_of(study)
    places = [0] * first.exists()
    places += [int(name[1]) - 1 for path in first.parent.glob("*.json") if (name := LATER.fullmatch(path.name))]
    if sorted(places) != list(range(len(places))) or len(places) > len(study.rounds):
        rounds = ", ".join(str(place + 1) for place in sorted(places))
        raise InputError(
            f"{first.parent}: has predictions of round {rounds}, and the study file has rounds 1 to "
            f"{len(study.rounds)}, which are predicted one after the other: undo the change of the study file, take "
            f"the missing file from where the study was bundled or published, or remove the last one while none of its "
            f"runs is trained"
        )
    return len(places)


def read_rounds(study: StudySpec, before: int | None = None) -> list[Predictions]:
    """The stored predictions of the first rounds, at most of those before one. Raises InputError where a file is
    damaged or missing, of another study, or of runs that are no longer the study's (`spec_hash`)."""
    known = n_stored(study)
    places = range(known if before is None else min(known, before))
    runs = _own_runs(study) if places else []
    return [_checked(study, read_round(study, place), [run for run in runs if run.round == place]) for place in places]


def read_round(study: StudySpec, place: int) -> Predictions:
    """What the file of a round holds, whatever the study file asks for now. Raises InputError where it is damaged or
    of another study."""
    path = path_of(study, place)
    try:
        content = dict(read_json(path))
        if (content.get("schema"), content.get("version")) != (SCHEMA, VERSION):
            raise ValueError(f"it is no {SCHEMA} of version {VERSION}")
        predictions = Predictions.model_validate(content)
        predictions.check(place + 1)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg'].splitlines()[0]}"
        raise InputError(f"{path}: is damaged ({why}): {REMEDY}") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error}): {REMEDY}") from None
    if predictions.study != study.name:
        raise InputError(f"{path}: is of study {predictions.study}, not of {study.name}: {REMEDY}")
    return predictions


def _own_runs(study: StudySpec) -> list[RunSpec]:
    """The forecast runs as the study file alone has them: --set makes other runs, and predictions are of none."""
    from scaling.study.rates import Lock, resolve
    from scaling.study.spec import load_study

    own = load_study(study.path, [], study.out) if study.sets else study
    return resolve(own.forecast_runs(), Lock(own))


def _checked(study: StudySpec, predictions: Predictions, runs: Sequence[RunSpec]) -> Predictions:
    path = path_of(study, predictions.round - 1)
    over, now = predictions.validation_tokens, study.evaluation.validation_tokens
    if over is not None and over != now:
        raise InputError(
            f"{path}: predicts losses over {over:,} held-out tokens, the study file has evaluation.validation_tokens "
            f"{now:,}: undo the change, or predict anew (--force) while none of the runs is trained"
        )
    known = {run.run_id: run for run in runs}
    for row in predictions.runs:
        run = known.get(row.run_id)
        if run is None or (not run.is_pending and row.spec_hash not in (None, run.spec_hash)):
            has = "no such run" if run is None else f"spec_hash {run.spec_hash}"
            raise InputError(
                f"{path}: predicts {row.run_id} with spec_hash {row.spec_hash}, the study file has {has}: undo the "
                f"change of the study file, or predict anew (--force) while none of the runs is trained"
            )
    return predictions


def write_round(study: StudySpec, predictions: Predictions) -> None:
    path = path_of(study, predictions.round - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"schema": SCHEMA, "version": VERSION} | predictions.model_dump(mode="json")
    write_json(path, content, kind="predictions")


def digests(study: StudySpec) -> dict[str, str]:
    """By run id, of the study's stored predictions."""
    return {run.run_id: stored.digest(run) for stored in read_rounds(study) for run in stored.runs}


def predicted_ids(rounds: Iterable[Predictions]) -> set[str]:
    """The runs that have a predicted loss."""
    return {run.run_id for stored in rounds for run in stored.runs if run.loss is not None}
