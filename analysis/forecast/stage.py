"""The study's predictions as a stage: made from its fits and stored, and read again with what was measured since."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from analysis.forecast.stored import SCHEMA, VERSION, read_predictions, write_predictions
from analysis.source.base import Source

if TYPE_CHECKING:
    from analysis.runs import Tables
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec


def predict(
    study: StudySpec,
    runs: Sequence[RunSpec],
    fits: dict[str, Any],
    tables: Tables,
    fit_version: int,
    commit: str | None,
) -> dict[str, Any]:
    """Predict the forecast `runs` from the study's stored fits and the tables beside them, and store it. fit_version:
    of the method; commit: of the program, where it is known. Raises InputError where no run can be fitted."""
    from analysis.fits.grouping import grouped
    from analysis.fits.result import plain
    from analysis.fits.settings import FitSettings
    from analysis.fits.study_points import StudyRuns
    from analysis.forecast.predict import fitted_runs, predictions

    assert study.forecast is not None
    settings = FitSettings(**fits["settings"])
    whole = grouped(tables, settings)
    made = predictions(StudyRuns(study.name, whole, settings), fits, runs, study.forecast.level)
    used = fitted_runs(whole)
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "study": study.name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": {"linear-scaling": _version(), "commit": commit},
        "fit_version": fit_version,
        "inputs_hash": fits["inputs_hash"],
        "fitted": {"n_runs": len(used), "of": sum(tables.runs["variant"] == ""), "spec_hashes": used},
        "conventions": fits["conventions"],
        "settings": fits["settings"],
        "level": study.forecast.level,
        "validation_tokens": study.evaluation.validation_tokens,
        **{key: made[key] for key in ("groups", "runs", "means", "rehearsals")},
    }
    found: dict[str, Any] = plain(content)
    write_predictions(study, found)
    return found


def told(study: StudySpec, source: Source) -> dict[str, Any] | None:
    """The stored predictions with what was measured (analysis.forecast.outcome); None where nothing was predicted."""
    stored = read_predictions(study)
    if stored is None:
        return None
    from analysis.fits.settings import FitSettings
    from analysis.forecast.outcome import outcome
    from analysis.units import loss_unit

    measured = source.forecast()
    if measured is not None:  # earlier versions stored nats a token where a token is a byte
        unit = loss_unit(measured.runs["tokenizer"])
        stored |= {"conventions": stored["conventions"] | {"L": FitSettings(**stored["settings"]).loss_name(unit)}}
    return outcome(stored, measured)


def _version() -> str | None:
    try:
        return version("linear-scaling")
    except PackageNotFoundError:
        return None
