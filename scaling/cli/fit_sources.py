"""What `scaling fit` is given: one table of runs, or studies; and the points that are read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.fits.points import Points, Reading
    from analysis.run_table import RunTable

    from ..stages.pipeline import Request

STUDY_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Source:
    """reading: the points that are fitted; curves: whole curves for the approach that needs them, None where there are
    none; study: where they come from studies; asked: of --points, None where it was not given."""

    reading: Reading
    curves: Reading | None
    study: RunTable | None = None
    asked: str | None = None

    @property
    def curve_points(self) -> Mapping[str, Points]:
        return self.curves.groups if self.curves is not None else {}


def table_among(sources: Sequence[str]) -> str | None:
    """The table that was given; None for studies. Raises InputError for several tables, tables among studies, and a
    file that is neither."""
    from analysis.fits.tables.files import SUFFIXES, suffix_of

    tables = [one for one in sources if suffix_of(one) is not None]
    for one in sources:
        path = Path(one)
        if one not in tables and path.suffix.lower() not in STUDY_FILES and path.is_file():
            raise InputError(f"{one}: is no table ({', '.join(SUFFIXES)}) and no study file ({STUDY_FILES[0]})")
    if not tables:
        return None
    if len(sources) > 1:
        raise InputError(f"{tables[0]}: is a table, and one table is fitted by itself; only studies can be pooled")
    return tables[0]


def of_table(path: str, options: Mapping[str, Any], points: str | None) -> Source:
    """The points of a table, read by `options` of read_points. points: what was asked for, by default ends: under a
    schedule that decays over the whole run no point before its end is one that a shorter run would have reached."""
    from analysis.fits.tables import read_points

    reading = read_points(path, points=points or "ends", **options)
    curves = None
    if reading.several_rows:
        curves = reading if reading.points == "curves" else read_points(path, points="curves", **options)
    return Source(reading, curves, None, points)


def of_studies(requests: Sequence[Request], points: str | None, convention: str | None) -> Source:
    """The points of one study, or of several that agree. points: what was asked for, by default curves: under a
    constant learning rate each of their points is as good as an end. Curves are read for every approach: the noise
    between seeds is told by them."""
    from analysis.fits.prepare import prepare, refuse_ends
    from analysis.fits.settings import settings_of
    from analysis.run_table import pool
    from analysis.source.choose import source_of

    from ..stages.pipeline import check_results

    studies = []
    for request in requests:
        check_results(request)
        study, settings = request.study, settings_of(request.study.fit, request.study.grid)
        source, held_out = source_of(study, study.runs()), study.evaluation.validation_tokens
        table = replace(source.table(settings, held_out, variants=False), name=study.name)
        studies.append(table.under(convention))
    runs = pool(studies)
    if points == "curves":
        refuse_ends(runs)
    reading = prepare(runs, points=points or "curves")
    curves = reading if reading.points == "curves" else None
    if curves is None:
        with suppress(InputError):  # ends of runs that have no curves
            curves = prepare(runs, points="curves")
    return Source(reading, curves, runs, points)
