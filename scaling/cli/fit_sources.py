"""What `scaling fit` is given: one table of runs, or studies; and the points that are read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.fits.points import Points, Reading
    from analysis.run_table import RunTable

    from .request import Request

STUDY_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Source:
    """reading: the points that are fitted; curves: whole curves for the approach that needs them, None where there are
    none; study: where they come from studies; points: the value of --points, None where it was not given."""

    reading: Reading
    curves: Reading | None
    study: RunTable | None = None
    points: str | None = None

    @property
    def curve_points(self) -> Mapping[str, Points]:
        return self.curves.groups if self.curves is not None else {}


def check_table(path: str) -> None:
    """Raise InputError for what is no table."""
    from analysis.fits.tables.files import SUFFIXES, suffix_of

    if suffix_of(path) is None:
        raise InputError(f"{path}: is no table ({', '.join(SUFFIXES)}); a study is fitted by `scaling fit study`")


def check_studies(sources: Sequence[str]) -> None:
    """Raise InputError for a table or another file among studies."""
    from analysis.fits.tables.files import suffix_of

    for source in sources:
        path = Path(source)
        if suffix_of(source) is not None:
            raise InputError(f"{source}: is a table, and no study: `scaling fit table {source}` fits it")
        if path.suffix.lower() not in STUDY_FILES and path.is_file():
            raise InputError(f"{source}: is no study file ({', '.join(STUDY_FILES)}), and no published folder")


def of_studies(requests: Sequence[Request], convention: str | None) -> RunTable:
    """The runs of one study, or of several that agree, with C under a convention (None: their own)."""
    from analysis.fits.settings import settings_of
    from analysis.run_table import pool
    from analysis.source.choose import source_of

    from .fitting import check_results

    tables = []
    for request in requests:
        check_results(request)
        study, settings = request.study, settings_of(request.study.fit, request.study.grid)
        source, held_out = source_of(study, request.whole_grid), study.evaluation.validation_tokens
        tables.append(replace(source.table(settings, held_out, variants=False), name=study.name).under(convention))
    return pool(tables)


def of_runs(table: RunTable, points: str | None, drop_highest_loss: int = 0) -> Source:
    """The points of a table. points: of --points. By default curves of a study: under a constant learning rate
    each of their points is as good as an end; and ends of another table: under a schedule that decays over the
    whole run no point before its end is one that a shorter run would have reached. Curves are read for every approach:
    the noise between seeds is measured on them."""
    from analysis.fits.prepare import prepare, refuse_ends

    study = table if table.origin is None else None
    if study is not None and points == "curves":
        refuse_ends(study)
    reading = prepare(
        table, points=points or ("ends" if study is None else "curves"), drop_highest_loss=drop_highest_loss
    )
    curves = reading if reading.points == "curves" else None
    if curves is None:
        with suppress(InputError):  # ends of runs that have no curves
            curves = prepare(table, points="curves", drop_highest_loss=drop_highest_loss)
    return Source(reading, curves, study, points)
