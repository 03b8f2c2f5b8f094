"""`scaling fit`: the laws of a study, of several, or of a table of anybody's runs; and a check of published laws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arch.errors import InputError

from .fit_laws import Output, fit_points
from .options import AsJson, DryRun, Force, Out, Plugin, Sets, print_json, request_of

OF_TABLES = ("--columns", "--drop-highest-loss", "--where", "--group", "--loss-unit")
OF_PARAMETRIC = ("--objective", "--form", "--predict")
OF_STUDIES = ("--set", "--out", "--force", "--plugin")
OF_CHECKS = ("--at", "--save")
REPLICATES, LEVEL, SEED = 1000, 0.95, 0  # of intervals: those of FitSettings, which takes long to import

Text = str | None
Number = int | None


def fit(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY...|TABLE",
            help="Studies, published folders, or one table: CSV, TSV, JSONL, JSON array, Parquet.",
        ),
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
    minimum: Annotated[
        Text, typer.Option(help="Of isoflop, the lowest loss of a budget: local (about it) or akima; default: local.")
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
        Text, typer.Option(help="Of C: 6nd, exact, ...; a column C or D that a table lacks follows from C = 6 N D.")
    ] = None,
    loss_unit: Annotated[Text, typer.Option(help="nats or bits, a token; default: as the column's name says.")] = None,
    replicates: Annotated[int, typer.Option(min=1, help="Of the laws' intervals.")] = REPLICATES,
    level: Annotated[float, typer.Option(help="Nominal level of the intervals.")] = LEVEL,
    seed: Annotated[int, typer.Option(min=0, help="Of the replicates.")] = SEED,
    at: Annotated[Text, typer.Option(help="C in FLOP for N_opt, D_opt and L_opt, as 1e22,1e23.")] = None,
    predict: Annotated[
        list[str] | None, typer.Option(metavar="N,D", help="Loss of N parameters on D tokens, as 7e9,2e12; repeatable.")
    ] = None,
    check_law: Annotated[
        Text, typer.Option(help='Check a published law instead: "N=1.8e8 C^0.71,D=2.6e10 C^0.51", or a CSV of laws.')
    ] = None,
    unit: Annotated[Text, typer.Option(help="Of C in --check-law: auto, flop or pf-days; default: auto.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write what --json prints to this file too.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw N_opt and D_opt over C, with tables, on a page.")
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Print all parameters, C and what was left out.")] = False,
    sets: Sets = None,
    out: Out = None,
    force: Force = False,
    plugin: Plugin = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fit scaling laws to runs that are done, and print them.

    A study alone: its power laws, kept in results/ (with --set of fit or grid in a folder of their own). With
    --approach, several studies, or a table: laws with intervals, and optima at the compute of --at; nothing is
    written but --save and --plot. Several studies are pooled where they agree in corpus, tokenizer, context and
    convention.
    """
    given = {
        "--approach": approach,
        "--objective": objective,
        "--form": form,
        "--minimum": minimum,
        "--points": points,
        "--columns": columns,
        "--where": where,
        "--group": group,
        "--drop-highest-loss": drop_highest_loss,
        "--convention": convention,
        "--loss-unit": loss_unit,
        "--replicates": replicates if replicates != REPLICATES else None,
        "--level": level if level != LEVEL else None,
        "--seed": seed if seed != SEED else None,
        "--at": at,
        "--predict": predict,
        "--save": save,
        "--plot": plot,
        "--details": details or None,
        "--set": sets,
        "--out": out,
        "--force": force or None,
        "--plugin": plugin,
        "--dry-run": dry_run or None,
    }
    stated = [name for name, value in given.items() if value is not None]
    output = Output(save, plot, details, dry_run, as_json)
    output.check([*(sources or ()), *([check_law] if check_law else ())])
    if check_law is not None:
        from . import fit_check

        if wrong := [*(sources or ()), *(name for name in stated if name not in OF_CHECKS)]:
            raise InputError(f"--check-law: checks a law by itself, without {wrong[0]}")
        return fit_check.check_law(check_law, unit, at, save, as_json)
    if unit is not None:
        raise InputError("--unit: goes with --check-law alone")
    if not sources:
        raise InputError("fit: give a study, or a table of runs (CSV, JSONL, Parquet)")

    from .fit_sources import of_runs, of_studies, table_among

    table = table_among(sources)
    wrong = [name for name in stated if name in (OF_STUDIES if table else OF_TABLES)]
    if wrong:
        what = (
            f"{table}: is a table, and {wrong[0]} is for studies"
            if table
            else f"{wrong[0]}: is for tables, not for studies"
        )
        raise InputError(what)
    if table is None and len(sources) == 1 and approach is None:
        if more := [name for name in stated if name not in (*OF_STUDIES, "--details")]:
            raise InputError(f"{more[0]}: goes with --approach; without it a study's fit stage follows the study file")
        return _fit_stage(sources[0], sets, out, force, plugin, as_json, details)
    if force:
        raise InputError("--force: is for a study's fit stage; with --approach nothing is stored, so every fit is new")

    from analysis.fits.approaches import ALL, CURVE, ISOFLOP, NEEDS_CURVES, PARAMETRIC, STUDY_OBJECTIVE, Options, named
    from analysis.fits.published import number_list
    from analysis.fits.solver import HUBER
    from analysis.fits.tables.columns import parse_columns
    from analysis.fits.tables.read import check_choices, read_table
    from analysis.source.parquet import study_of_file

    study = None if table is None or any(name in stated for name in OF_TABLES) else study_of_file(Path(table))
    is_other = table is not None and study is None
    check_choices(points, convention if is_other else None, loss_unit)
    approaches = named(approach or ALL)
    options = Options(
        at=number_list(at, "--at") if at else (),
        predict=[_pair(pair) for pair in predict or ()],
        objective=objective or (HUBER if is_other else STUDY_OBJECTIVE),
        form=form or "plain",
        minimum=minimum or "local",
        n_replicates=replicates,
        level=level,
        seed=seed,
        curve=CURVE if plot is not None and not dry_run else 0,
    )
    if PARAMETRIC not in approaches and (more := [name for name in stated if name in OF_PARAMETRIC]):
        raise InputError(f"{more[0]}: belongs to the approach {PARAMETRIC}")
    if ISOFLOP not in approaches and minimum is not None:
        raise InputError(f"--minimum: belongs to the approach {ISOFLOP}")
    if all(name in NEEDS_CURVES for name in approaches):
        if points == "ends":
            raise InputError(f"--points ends: the approach {approaches[0]} needs curves; leave it out")
        points = "curves"
    if study is not None:
        runs = study.under(convention)
    elif table is not None:
        names = parse_columns(columns) if columns is not None else {}
        runs = read_table(table, names, where=where or (), group=group, convention=convention, loss_unit=loss_unit)
    else:
        runs = of_studies([request_of(name, None, sets, out, as_json, True, plugin) for name in sources], convention)
    fit_points(of_runs(runs, points, drop_highest_loss or 0), approaches, options, output)


def _pair(text: str) -> tuple[float, float]:
    """--predict: N and D."""
    from analysis.fits.published import number_list

    numbers = number_list(text, "--predict")
    if len(numbers) != 2:
        raise InputError(f"--predict: {text!r} is not N and D by a comma, as 7e9,2e12")
    return numbers[0], numbers[1]


def _fit_stage(
    study: str,
    sets: list[str] | None,
    out: Path | None,
    force: bool,
    plugin: list[str] | None,
    as_json: bool,
    details: bool,
) -> None:
    from ..stages import pipeline as commands

    request = request_of(study, None, sets, out, as_json, True, plugin)
    commands.check_results(request)
    with request.writing(rates=False):
        fits = commands.fit_stage(request, force)
    if as_json:
        print_json(fits.to_dict())
    else:
        from ..stages.show import show_laws, show_summary

        more = ["more: --details (all laws and their checks), --json (everything)"]
        print(show_laws(fits) if details else show_summary(fits, more))
