"""The study's predictions as a stage: made from its fits and stored, and read again with what was measured since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from analysis.forecast.stored import SCHEMA, VERSION, name_of_round, read_rounds, write_predictions
from analysis.source.choose import Source
from analysis.source.published import Published

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.run_table import RunTable
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec


def predict(
    study: StudySpec,
    runs: Sequence[RunSpec],
    fits: StudyFits,
    tables: RunTable,
    fit_version: int,
    commit: str | None,
    place: int = 0,
) -> dict[str, Any]:
    """Predict `runs`, those of one round of the forecast, from fits and the tables that they were made from, and store
    it. fit_version: of the method; commit: of the program, where it is known. Raises InputError where no run can be
    fitted."""
    from analysis.fits.fit import plain
    from analysis.fits.grouping import grouped
    from analysis.forecast.predict import fitted_runs, predictions

    level = study.rounds[place].level
    whole = grouped(replace(tables, name=study.name, settings=fits.settings))
    made = predictions(whole, fits, runs, level)
    used = fitted_runs(whole)
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "study": study.name,
        **({"round": place + 1} if place else {}),  # the file of the first stays what it was before there were others
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": {"linear-scaling": _version(), "commit": commit},
        "fit_version": fit_version,
        "inputs_hash": fits.inputs_hash,
        "fitted": {"n_runs": len(used), "of": sum(tables.runs["variant"] == ""), "spec_hashes": used},
        "conventions": fits.conventions,
        "settings": fits.settings.to_dict(),
        "level": level,
        "validation_tokens": study.evaluation.validation_tokens,
        **{key: made[key] for key in ("groups", "runs", "means", "rehearsals")},
    }
    found: dict[str, Any] = plain(content)
    write_predictions(study, found, place)
    return found


def told(study: StudySpec, source: Source, before: int | None = None) -> list[dict[str, Any]]:
    """The stored predictions with what was measured (analysis.forecast.outcome), and their round as "round": those of
    each round that is predicted (and comes before one)."""
    found = [(place, one) for place, one in enumerate(read_rounds(study, before), 1) if one is not None]
    if not found:
        return []
    if isinstance(source, Published):
        for place, _ in found:
            source.check_has(name_of_round(place - 1))
    from analysis.forecast.outcome import outcome

    measured = source.forecast()
    return [outcome(stored, measured) | {"round": place} for place, stored in found]


def _version() -> str | None:
    try:
        return version("linear-scaling")
    except PackageNotFoundError:
        return None
