"""`scaling fit`: the laws of a study, of several, or of a table of anybody's runs; and a check of published laws."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.errors import InputError

from .options import AsJson, DryRun, Force, Out, Sets, print_json, request_of, tell

if TYPE_CHECKING:
    from analysis.fits.approaches import Fits, Options

    from .fit_sources import Source

SLOW = 5.0  # seconds after which the time left is told
OF_TABLES = ("--columns", "--drop-highest-loss", "--where", "--group", "--loss-unit")
OF_PARAMETRIC = ("--objective", "--form", "--predict")
OF_STUDIES = ("--set", "--out", "--force")

Text = str | None
Number = int | None


def fit(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY...|TABLE", help="Studies, or one table: CSV, TSV, JSONL, JSON array, Parquet."),
    ] = None,
    approach: Annotated[
        Text, typer.Option(help="envelope, isoflop, parametric or all; a study without it: its fit stage.")
    ] = None,
    objective: Annotated[
        Text, typer.Option(help="Of parametric; default: huber of tables, least_squares of studies.")
    ] = None,
    form: Annotated[
        Text,
        typer.Option(
            help="Of parametric: plain, over-training, data-constrained or data-constrained-both; default: plain."
        ),
    ] = None,
    points: Annotated[
        Text, typer.Option(help="ends (last of each run) or curves; default: ends of tables, curves of studies.")
    ] = None,
    columns: Annotated[
        Text, typer.Option(help='Columns of a table, as n_params="Model Size",flops=C; default: by their names.')
    ] = None,
    where: Annotated[list[str] | None, typer.Option(help='Rows to keep, as "loss<5"; repeatable.')] = None,
    group: Annotated[Text, typer.Option(help="Column of a table; each of its values is fitted.")] = None,
    drop_highest_loss: Annotated[Number, typer.Option(help="Leave out so many points of each group.")] = None,
    convention: Annotated[
        Text, typer.Option(help="Of C: 6nd, exact, ...; what a table lacks of C and D is C = 6 N D.")
    ] = None,
    loss_unit: Annotated[Text, typer.Option(help="nats or bits, a token; default: nats.")] = None,
    replicates: Annotated[int, typer.Option(min=1, help="Of the intervals.")] = 1000,
    level: Annotated[float, typer.Option(help="Nominal level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the replicates.")] = 0,
    at: Annotated[Text, typer.Option(help="C in FLOP for N_opt, D_opt and L_opt, as 1e22,1e23.")] = None,
    predict: Annotated[
        list[str] | None, typer.Option(metavar="N,D", help="Loss of N parameters on D tokens, as 7e9,2e12; repeatable.")
    ] = None,
    check_law: Annotated[
        Text, typer.Option(help='Check a published law instead: "N=1.8e8 C^0.71,D=2.6e10 C^0.51", or a CSV of laws.')
    ] = None,
    unit: Annotated[Text, typer.Option(help="Of C in --check-law: auto, flop or pf-days; default: auto.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write what --json prints to this file too.")] = None,
    sets: Sets = None,
    out: Out = None,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fit scaling laws to runs that are done, and print them.

    A study alone: its power laws, kept in results/ (with --set of fit or grid in a folder of their own). With
    --approach, several studies, or a table: laws with intervals, and optima at the compute asked for; nothing is
    written but --save. Several studies are pooled where they agree in corpus, tokenizer, context and convention.
    """
    given = {
        "--approach": approach,
        "--objective": objective,
        "--form": form,
        "--points": points,
        "--columns": columns,
        "--where": where,
        "--group": group,
        "--drop-highest-loss": drop_highest_loss,
        "--convention": convention,
        "--loss-unit": loss_unit,
        "--at": at,
        "--predict": predict,
        "--save": save,
        "--set": sets,
        "--out": out,
        "--force": force or None,
        "--dry-run": dry_run or None,
    }
    told = [name for name, value in given.items() if value is not None]
    if save is not None:
        _check_save(save)
    if check_law is not None:
        return _check_law(check_law, sources, unit, at, save, [n for n in told if n not in ("--at", "--save")], as_json)
    if unit is not None:
        raise InputError("--unit: goes with --check-law alone")
    if not sources:
        raise InputError("fit: give a study, or a table of runs (CSV, JSONL, Parquet)")

    from .fit_sources import of_studies, of_table, table_among

    table = table_among(sources)
    wrong = [name for name in told if name in (OF_STUDIES if table else OF_TABLES)]
    if wrong:
        what = (
            f"{table}: is a table, and {wrong[0]} is of studies"
            if table
            else f"{wrong[0]}: is of tables, not of studies"
        )
        raise InputError(what)
    if table is None and len(sources) == 1 and approach is None:
        if more := [name for name in told if name not in OF_STUDIES]:
            raise InputError(f"{more[0]}: goes with --approach; without it a study's fit stage follows the study file")
        return _fit_stage(sources[0], sets, out, force, as_json)
    if force:
        raise InputError("--force: is of a study's fit stage; with --approach nothing is kept, so all is fitted anew")

    from analysis.fits.approaches import ALL, NEEDS_CURVES, PARAMETRIC, Options, named
    from analysis.fits.parametric.many import HUBER
    from analysis.fits.published import number_list
    from analysis.fits.study_approaches import OBJECTIVE
    from analysis.fits.tables.columns import parse_columns

    wanted = named(approach or ALL)
    options = Options(
        at=number_list(at, "--at") if at else (),
        predict=[_pair(one) for one in predict or ()],
        objective=objective or (OBJECTIVE if table is None else HUBER),
        form=form or "plain",
        n_replicates=replicates,
        level=level,
        seed=seed,
    )
    if PARAMETRIC not in wanted and (more := [name for name in told if name in OF_PARAMETRIC]):
        raise InputError(f"{more[0]}: is of the approach {PARAMETRIC}")
    needs_curves = any(name in NEEDS_CURVES for name in wanted)
    if points is None and all(name in NEEDS_CURVES for name in wanted):
        points = "curves"
    if table is not None:
        how: dict[str, Any] = {"columns": parse_columns(columns) if columns is not None else {}, "where": where or ()}
        how |= {"group": group, "drop_highest_loss": drop_highest_loss or 0, "convention": convention}
        source = of_table(table, how | {"loss_unit": loss_unit or "nats"}, points, needs_curves)
    else:
        requests = [request_of(one, None, sets, out, as_json) for one in sources]
        source = of_studies(requests, points, convention, needs_curves)
    _fit_points(source, wanted, options, save, dry_run, as_json)


def _pair(text: str) -> tuple[float, float]:
    """--predict: N and D."""
    from analysis.fits.published import number_list

    found = number_list(text, "--predict")
    if len(found) != 2:
        raise InputError(f"--predict: {text!r} is not N and D by a comma, as 7e9,2e12")
    return found[0], found[1]


def _fit_stage(study: str, sets: list[str] | None, out: Path | None, force: bool, as_json: bool) -> None:
    from ..stages import pipeline as commands

    request = request_of(study, None, sets, out, as_json)
    commands.check_results(request)
    with request.writing():
        fits = commands.fit_stage(request, force)
    if as_json:
        print_json(fits)
    else:
        from ..stages.show import show_laws

        print(show_laws(fits))


def _fit_points(
    source: Source, wanted: Sequence[str], options: Options, save: Path | None, dry_run: bool, as_json: bool
) -> None:
    from analysis.fits.study_approaches import laws_of_study

    from ..stages.show import comparison_text
    from .fit_view import failed_lines, reading_text, result_text, side_by_side_text

    read: dict[str, Any] = {"input": source.reading.to_dict(), "approaches": list(wanted)}
    if dry_run:
        return print_json(read) if as_json else print(f"{reading_text(source.reading)}\nwould fit: {', '.join(wanted)}")
    stage = {} if source.study is None else laws_of_study(source.study, options)
    fits = _fitted(source, wanted, options, stage)
    if source.reading.points == "ends" and source.reading.several_rows:
        whole = "; --points curves fits whole curves"
        fits = replace(fits, failed=tuple({**one, "reason": one["reason"] + whole} for one in fits.failed))
    if not fits.results:
        raise InputError("; ".join(failed_lines(fits.failed)) or "nothing to fit")
    found = read | {"results": [one.to_dict() for one in fits.results], "not_fitted": [dict(f) for f in fits.failed]}
    found |= {"side_by_side": {group: one for group, one in fits.compared.items() if one["pairs"]}}
    compared = _architectures(source, wanted, options, stage)
    found |= {"comparison": compared}
    _save(save, found)
    if as_json:
        print_json(found)
    else:
        parts = [reading_text(source.reading), *map(result_text, fits.results), side_by_side_text(fits.compared)]
        parts.append(comparison_text(compared, options.level))
        print("\n\n".join(part for part in parts if part))
    for line in failed_lines(fits.failed):
        tell(f"not fitted: {line}")


def _architectures(
    source: Source, wanted: Sequence[str], options: Options, stage: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The groups compared by their surfaces; None where there is one, or no surface was asked for."""
    from analysis.fits.approaches import PARAMETRIC
    from analysis.fits.study_approaches import architectures_of_study
    from analysis.fits.study_comparison import compare_points

    if PARAMETRIC not in wanted or len(source.reading.groups) < 2:
        return None
    if source.study is not None:
        return architectures_of_study(source.study, options, stage)
    return compare_points(list(source.reading.groups.values()), options.seed, options.level)


class _Progress:
    """What is being done and the time left, on stderr every SLOW seconds; a step is a fit, or a group's checks."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.begun = jobs, 0
        self.told = self.start = time.monotonic()

    def __call__(self, group: str, approach: str, share: float) -> None:
        now = time.monotonic()
        self.begun += share == 0
        if now - self.told < SLOW:
            return
        self.told, done = now, self.begun - 1 + share
        left = f", about {(now - self.start) / done * (self.jobs - done):.0f} s left" if done > 0 else ""
        tell(f"fit: {approach} {group} ({self.begun} of {self.jobs} steps){left}")


def _fitted(source: Source, wanted: Sequence[str], options: Options, stage: Mapping[str, Any]) -> Fits:
    """All approaches on all groups; stage: the laws of a study's fit stage."""
    from analysis.fits.approaches import fit_groups
    from analysis.fits.study_approaches import fit_study_groups

    groups, curves = source.reading.groups, source.curve_points
    anew = len([name for name in wanted if source.study is None or name != "envelope"])
    progress = _Progress(len(groups) * (anew + 1))
    if source.study is None:
        return fit_groups(groups, curves, wanted, options, progress)
    return fit_study_groups(source.study, groups, curves, wanted, options, stage, progress)


def _check_law(
    law: str,
    sources: list[str] | None,
    unit: str | None,
    at: str | None,
    save: Path | None,
    wrong: Sequence[str],
    as_json: bool,
) -> None:
    from analysis.fits.published import AUTO, check_stated, number_list, read_stated

    from .fit_view import law_check_text

    if sources or wrong:
        raise InputError(f"--check-law: checks a law by itself, without {sources[0] if sources else wrong[0]}")
    found = check_stated(read_stated(law), unit or AUTO, number_list(at, "--at") if at else ())
    _save(save, found)
    print_json(found) if as_json else print(law_check_text(found))


def _check_save(path: Path) -> None:
    """Before anything is fitted: raise InputError where the file cannot be written."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"--save: {path}: {'is a directory' if path.is_dir() else 'its directory does not exist'}")


def _save(path: Path | None, found: Mapping[str, Any]) -> None:
    if path is not None:
        from data.files import write_json

        write_json(path, dict(found))
        print(f"saved: {path}", file=sys.stderr)
