"""The files of a study's predictions, one a round: written once, before the runs that it is of are trained."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.forecast.form import check_form
from arch.errors import InputError
from data.files import read_json, write_json

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

PREDICTIONS, LATER = "predictions.json", re.compile(r"predictions-([2-9]|[1-9]\d+)\.json")
SCHEMA, VERSION = "scaling.predictions", 1
OF_RUN = ("run_id", "spec_hash", "arch", "group", "size", "n_params", "n_tokens", "c", "loss", "interval", "reason")
REMEDY = "take it from where the study was bundled or published, or remove it while none of its runs is trained"


def name_of_round(place: int) -> str:
    """The file of a round; the first has place 0."""
    return f"predictions-{place + 1}.json" if place else PREDICTIONS


def path_of(study: StudySpec, place: int = 0) -> Path:
    """Of the study's own predictions, whatever --set changes of its fits; of a published study in its folder."""
    return (study.published or study.directory / "results") / name_of_round(place)


def n_stored(study: StudySpec) -> int:
    """How many rounds have a file, the first ones. Raises InputError where one before them has none, and where a round
    is predicted that the study file does not have (any longer)."""
    if not study.rounds:
        return 0
    first = path_of(study)
    places = [0] * first.exists()
    places += [int(found[1]) - 1 for path in first.parent.glob("*.json") if (found := LATER.fullmatch(path.name))]
    places.sort()
    if not places:
        return 0
    last = path_of(study, places[-1])
    if (number := places[-1] + 1) > len(study.rounds):
        raise InputError(
            f"{last}: predicts round {number}, the study file has {len(study.rounds)} of its forecast: undo the change "
            f"of the study file, or remove it while none of its runs is trained"
        )
    if gone := set(range(number)) - {*places}:
        raise InputError(
            f"{path_of(study, min(gone))}: is missing, while round {number} is predicted: take it from where the study "
            f"was bundled or published, or remove {last.name} while none of its runs is trained"
        )
    return len(places)


def read_rounds(study: StudySpec, before: int | None = None) -> list[dict[str, Any] | None]:
    """What is predicted of each round of the study's forecast (of those before one); raises InputError as n_stored and
    read_predictions do."""
    wanted = len(study.rounds) if before is None else before
    there = min(n_stored(study), wanted)
    runs = _own_runs(study) if there else []
    return [read_predictions(study, runs, place) if place < there else None for place in range(wanted)]


def read_predictions(study: StudySpec, runs: Sequence[RunSpec] | None = None, place: int = 0) -> dict[str, Any] | None:
    """What the file of a round holds; None where there is none, or the study has no such round. runs: the study's
    forecast runs, if they are at hand. Raises InputError where it is damaged, of another study, or of runs that are no
    longer the study's (`spec_hash`)."""
    path = path_of(study, place)
    if place >= len(study.rounds) or not path.exists():
        return None
    found = read_whole(study, place)
    over, now = found.get("validation_tokens"), study.evaluation.validation_tokens
    if over is not None and over != now:
        raise InputError(
            f"{path}: predicts losses over {over:,} held-out tokens, the study file has evaluation.validation_tokens "
            f"{now:,}: undo the change, or predict anew (--force) while none of the runs is trained"
        )
    own = _own_runs(study) if runs is None else runs
    _check_runs(path, found["runs"], [run for run in own if run.round == place])
    return found


def read_whole(study: StudySpec, place: int) -> dict[str, Any]:
    """What the file of a round holds, whatever the study file asks for now. Raises InputError where it is damaged or
    of another study."""
    path = path_of(study, place)
    try:
        found = dict(read_json(path))
        if (found.get("schema"), found.get("version")) != (SCHEMA, VERSION):
            raise ValueError(f"it is no {SCHEMA} of version {VERSION}")
        check_form(found, place)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error}): {REMEDY}") from None
    if found["study"] != study.name:
        raise InputError(f"{path}: is of study {found['study']}, not of {study.name}: {REMEDY}")
    return found


def _own_runs(study: StudySpec) -> list[RunSpec]:
    """The forecast runs as the study file alone has them: --set makes other runs, and predictions are of none."""
    from scaling.study.rates import Lock, resolve
    from scaling.study.spec import load_study

    own = load_study(study.path, [], study.out) if study.sets else study
    return resolve(own.forecast_runs(), Lock(own))


def _check_runs(path: Path, rows: Iterable[dict[str, Any]], runs: Sequence[RunSpec]) -> None:
    known = {run.run_id: run for run in runs}
    for row in rows:
        run = known.get(row["run_id"])
        now = "no such run" if run is None else f"spec_hash {run.spec_hash}"
        if run is None or (not run.is_pending and row["spec_hash"] not in (None, run.spec_hash)):
            raise InputError(
                f"{path}: predicts {row['run_id']} with spec_hash {row['spec_hash']}, the study file has {now}: undo "
                f"the change of the study file, or predict anew (--force) while none of the runs is trained"
            )


def write_predictions(study: StudySpec, content: dict[str, Any], place: int) -> None:
    path = path_of(study, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content, kind="predictions")


def digest(stored: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Of what was predicted of a run, when, and from which fits: the run's record keeps it when it is trained."""
    told = {key: stored[key] for key in ("made", "inputs_hash", "level")} | {key: row[key] for key in OF_RUN}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def digests(study: StudySpec) -> dict[str, str]:
    """By run id, of the study's stored predictions."""
    rounds = [one for one in read_rounds(study) if one is not None]
    return {str(row["run_id"]): digest(one, row) for one in rounds for row in one["runs"]}


def predicted_ids(rounds: Iterable[dict[str, Any] | None]) -> set[str]:
    """The runs that have a predicted loss."""
    return {str(row["run_id"]) for one in rounds if one for row in one["runs"] if row["loss"] is not None}
