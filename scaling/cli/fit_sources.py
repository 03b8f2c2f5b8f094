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


def of_table(path: str, options: Mapping[str, Any], points: str | None, drop_highest_loss: int = 0) -> Source:
    """The points of somebody else's table, read by `options` of read_table. points: what was asked for, by default
    ends: under a schedule that decays over the whole run no point before its end is one that a shorter run would have
    reached."""
    from analysis.fits.prepare import prepare
    from analysis.fits.tables import read_table

    table = read_table(path, **options)
    reading = prepare(table, points=points or "ends", drop_highest_loss=drop_highest_loss)
    curves = None
    if reading.several_rows:
        is_whole = reading.points == "curves"
        curves = reading if is_whole else prepare(table, points="curves", drop_highest_loss=drop_highest_loss)
    return Source(reading, curves, None, points)


def study_tables(requests: Sequence[Request]) -> list[RunTable]:
    """The table of each study. Raises InputError where its results are not those of its runs."""
    from analysis.fits.settings import settings_of
    from analysis.source.choose import source_of

    from ..stages.pipeline import check_results

    found = []
    for request in requests:
        check_results(request)
        study, settings = request.study, settings_of(request.study.fit, request.study.grid)
        source, held_out = source_of(study, study.runs()), study.evaluation.validation_tokens
        found.append(replace(source.table(settings, held_out), name=study.name))
    return found


def of_studies(studies: Sequence[RunTable], points: str | None, convention: str | None) -> Source:
    """The points of one study, or of several that agree. points: what was asked for, by default curves: under a
    constant learning rate each of their points is as good as an end. Curves are read for every approach: the noise
    between seeds is told by them."""
    from analysis.fits.prepare import prepare, refuse_ends
    from analysis.run_table import pool

    runs = pool([one.own_runs().under(convention) for one in studies])
    if points == "curves":
        refuse_ends(runs)
    reading = prepare(runs, points=points or "curves")
    curves = reading if reading.points == "curves" else None
    if curves is None:
        with suppress(InputError):  # ends of runs that have no curves
            curves = prepare(runs, points="curves")
    return Source(reading, curves, runs, points)
