"""What `scaling fit` is given, one table of runs or studies, and what it does with their points: fits them, shows the
time left, and prints the results."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.arguments import file_to_write
from arch.errors import InputError

from .options import AsJson, DryRun, Figures, notify, page_to_write, print_json, write_option_file, written_figures
from .passing import Passing

if TYPE_CHECKING:
    from analysis.fits.approaches import Fits, Options
    from analysis.fits.fit import Fit
    from analysis.fits.pairwise import Compared
    from analysis.fits.points import Points, Reading
    from analysis.run_table import RunTable

    from .request import Request

STUDY_FILES = (".yaml", ".yml")
WEIGHTS = {"parametric": 1.0, "checks": 0.7}  # of steps, by their time on tables of 240 to 10,000 rows
LITTLE = 0.15  # of all others
SURE = 0.02  # share that must be done before the time left is shown


@dataclass(frozen=True, kw_only=True)
class Output:
    """The files that the results are written to, and how much of them is shown on the screen."""

    save: Annotated[Path | None, typer.Option(help="Write what --json prints to this file too.")] = None
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw N_opt and D_opt over C, with tables, on a page.")
    ] = None
    figures: Figures = None
    details: Annotated[bool, typer.Option("--details", help="Print all parameters, C and what was left out.")] = False
    dry_run: DryRun = False
    as_json: AsJson = False

    @property
    def draws_curves(self) -> bool:
        return (self.plot is not None or self.figures is not None) and not self.dry_run

    def check(self, sources: Sequence[str] = ()) -> None:
        """Before anything is fitted: raise InputError for a file that cannot be written, or that is read."""
        reasons = {os.path.realpath(path): "is what is fitted" for path in sources if os.path.exists(path)}
        for option, path in (("--save", self.save), ("--plot", self.plot)):
            file_to_write(path, option)
            if path is not None:
                if why := reasons.get(os.path.realpath(path)):
                    raise InputError(f"{option} {path}: {why}, and would be replaced; name another file")
                reasons[os.path.realpath(path)] = f"is the file of {option}"
        page_to_write(self.plot)
        if self.figures is not None and not self.dry_run:
            from analysis.figures.paper import check_paper

            check_paper(self.figures)
        if self.details and self.as_json:
            raise InputError("--details: is text, and --json has everything: leave one out")


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


def fit_points(source: Source, approaches: Sequence[str], options: Options, output: Output) -> None:
    """Fit, then print, save and draw the results. Raises InputError where no approach can be fitted."""
    from analysis.fits.approaches import NEEDS_CURVES, needs_curves

    from .fit_view import all_text, failed_lines, reading_text, summary_text

    read: dict[str, Any] = {"input": source.reading.to_dict(), "approaches": list(approaches)}
    if output.dry_run:
        has_curves = source.points != "ends" and bool(source.curve_points)
        fitted = [name for name in approaches if has_curves or name not in NEEDS_CURVES]
        lines = [reading_text(source.reading), f"would fit: {', '.join(fitted)}"]
        lines += [f"not {name}: {needs_curves(source.points == 'ends')}" for name in approaches if name not in fitted]
        return print_json(read | {"approaches": fitted}) if output.as_json else print("\n".join(lines))
    fits = _fitted(source, approaches, options)
    if source.reading.points == "ends" and source.reading.several_rows:
        whole = "; --points curves fits whole curves"  # once a group
        first = {failed.group: failed for failed in reversed(fits.failed)}
        more = (replace(fit, reason=fit.reason + whole) if fit is first[fit.group] else fit for fit in fits.failed)
        fits = replace(fits, failed=tuple(more))
    if not fits.results:
        raise InputError("; ".join(failed_lines(fits.failed)) or "nothing to fit")
    output_json = read | {
        "results": [result.to_dict() for result in fits.results],
        "not_fitted": [failed.to_dict() for failed in fits.failed],
    }
    compared = _architectures(source, approaches, options, fits.results)
    output_json |= {"comparisons": None if compared is None else [comparison.to_dict() for comparison in compared]}
    page = None
    if output.draws_curves:
        from analysis.report.summary import fits_page

        page = fits_page(source.reading, fits, options.at)
    if output.as_json:
        print_json(output_json)
        for line in failed_lines(fits.failed):
            notify(f"not fitted: {line}")
    else:
        parts = [reading_text(source.reading)]
        if output.details:
            from analysis.report.comparison import comparison_section
            from analysis.report.section import terminal

            from .fit_details import result_text

            parts += [*all_text(source.reading, fits, options.at), *map(result_text, fits.results)]
            parts += [terminal(comparison_section(comparison, options.level)) for comparison in compared or ()]
        else:
            parts += summary_text(source.reading, fits, options.at, compared or ())
        print("\n\n".join(part for part in parts if part))
    if output.save is not None:
        write_option_file("--save", output.save, json.dumps(output_json, indent=1, allow_nan=False) + "\n")
        notify(f"saved: {output.save}")
    if output.plot is not None and page is not None:
        write_option_file("--plot", output.plot, page.html)
        notify(f"written: {output.plot}")
    if output.figures is not None and page is not None:
        page.write_paper(output.figures)
        notify(written_figures(output.figures))


def _architectures(
    source: Source, approaches: Sequence[str], options: Options, fits: Sequence[Fit]
) -> list[Compared] | None:
    """The groups compared by their surfaces; None where there is one, or without the approach parametric."""
    from analysis.fits.fit import PARAMETRIC

    if PARAMETRIC not in approaches or len(source.reading.groups) < 2:
        return None
    from analysis.fits.compared import compare_points, compare_study

    if source.study is None:
        return compare_points(list(source.reading.groups.values()), options, fits)
    from analysis.fits.study import seed_noise_of_study

    return compare_study(source.study, options, seed_noise_of_study(source.study), source.points or "curves", fits)


class Progress:
    """What is being done and the time left; a step is a fit, or a group's checks."""

    def __init__(self, steps: Sequence[str], passing: Passing) -> None:
        self.passing, self.whole = passing, sum(WEIGHTS.get(step, LITTLE) for step in steps)
        self.done, self.begun, self.step = 0.0, 0, ("", "")
        self.n_steps = len(steps)
        self.start: tuple[float, float] | None = None  # when replicates began, and what was done then

    def __call__(self, group: str, approach: str, share: float) -> None:
        if (group, approach) != self.step:
            self.done += WEIGHTS.get(self.step[1], LITTLE) if self.begun else 0.0
            self.begun, self.step = self.begun + 1, (group, approach)
        done = (self.done + share * WEIGHTS.get(approach, LITTLE)) / self.whole
        if self.start is None and share > 0:
            self.start = time.monotonic(), done
        self.passing.show(lambda: self._line(done))

    def _line(self, done: float) -> str:
        (group, approach), (began, before), left = self.step, self.start or (0.0, done), ""
        if done - before > SURE:
            left = f", about {(time.monotonic() - began) / (done - before) * (1 - done):.0f} s left"
        what = f"{group}: {approach}" if group else approach
        return f"fit: {what} (step {self.begun} of {self.n_steps}){left}"


def _fitted(source: Source, approaches: Sequence[str], options: Options) -> Fits:
    """All approaches on all groups."""
    from analysis.fits.approaches import CHECKS, Runs, fit_groups

    groups, curves, ends_alone = source.reading.groups, source.curve_points, source.points == "ends"
    if source.study is None:
        runs = Runs(groups, curves, ends_alone)
    else:
        from analysis.fits.study import runs_of_study

        runs = runs_of_study(source.study, groups, curves, ends_alone)
    with Passing(sys.stderr) as passing:
        return fit_groups(runs, approaches, options, Progress([*approaches, CHECKS] * len(groups), passing))
