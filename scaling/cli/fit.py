"""`scaling fit`: the laws of a study, of the runs of several, and of a table of anybody's runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arch.commands import Application, Plugins, with_options
from arch.errors import InputError
from flops.quantity import MOST_PARAMS, MOST_TOKENS, flop, quantity

from .fit_laws import Output, check_studies, check_table, fit_points, of_runs, of_studies
from .options import ChangedFittedOptions, Force, Out, Sets, print_json

if TYPE_CHECKING:
    from analysis.fits.approaches import Options

REPLICATES, LEVEL, SEED = 1000, 0.95, 0  # of intervals: those of FitSettings, which takes long to import
MOST_REPLICATES = 1_000_000  # more are a slip, and would not end

Text = str | None

app = Application(help="Fit scaling laws to a study, or to anybody's runs.")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """By which approaches runs are fitted, how their intervals are made, and what is predicted."""

    approach: Annotated[str, typer.Option(help="envelope, isoflop, parametric or all.")] = "all"
    objective: Annotated[
        Text, typer.Option(help="Objective of parametric: huber or least_squares; default: huber for tables.")
    ] = None
    huber_delta: Annotated[float | None, typer.Option(help="delta of the Huber loss; default: 1e-3.")] = None
    form: Annotated[
        Text,
        typer.Option(
            help="Form of parametric, as over-training or data-constrained; default: the study's, else plain."
        ),
    ] = None
    minimum: Annotated[
        Text,
        typer.Option(help="How isoflop finds the lowest loss: local (about it) or akima; default: local."),
    ] = None
    optimum: Annotated[
        Text,
        typer.Option(help="How envelope finds the optimal size: crossings, envelope or hull; default: crossings."),
    ] = None
    near_sizes: Annotated[
        float | None, typer.Option(help="Factor within which sizes are one to the envelope; default: 1.1.")
    ] = None
    points: Annotated[
        Text, typer.Option(help="Fit the ends of runs or whole curves; default: ends for tables, curves for studies.")
    ] = None
    convention: Annotated[
        Text, typer.Option(help="Convention of C: 6nd, exact, ...; a missing column C or D follows from C = 6 N D.")
    ] = None
    replicates: Annotated[
        int, typer.Option(min=1, max=MOST_REPLICATES, help="Replicates of the laws' intervals, up to 1,000,000.")
    ] = REPLICATES
    level: Annotated[
        float | None,
        typer.Option(help="Nominal level of the intervals; default: the study's fit.level, 0.95 for tables."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the replicates.")] = SEED
    at: Annotated[Text, typer.Option(help="Print N_opt, D_opt and L_opt at these C in FLOP, as 1e22,1e23.")] = None
    predict: Annotated[
        list[str] | None,
        typer.Option(metavar="N,D", help="Predict the loss of a run, as 7e9,2e12; repeatable."),
    ] = None

    def resolved(self, objective: str, level: float, draws_curves: bool) -> tuple[tuple[str, ...], str | None, Options]:
        """The approaches, the points, and the settings of the fits; objective and level: where none is given. Raises
        InputError for unknown names, and for what none of the approaches reads."""
        from analysis.fits.approaches import CURVE, ENVELOPE, ISOFLOP, NEEDS_CURVES, PARAMETRIC, Options, named

        approaches, points = named(self.approach), self.points
        settings = Options(
            at=[flop(c, "--at") for c in self.at.split(",")] if self.at else (),
            predict=[_pair(pair) for pair in self.predict or ()],
            objective=self.objective or objective,
            huber_delta=self.huber_delta,
            form=self.form,
            minimum=self.minimum or "local",
            optimum=self.optimum,
            near_sizes=self.near_sizes,
            n_replicates=self.replicates,
            level=level if self.level is None else self.level,
            seed=self.seed,
            curve=CURVE if draws_curves else 0,
        )
        of_parametric: dict[str, object] = {
            "--objective": self.objective,
            "--huber-delta": self.huber_delta,
            "--form": self.form,
            "--predict": self.predict,
        }
        of_envelope = {"--optimum": self.optimum, "--near-sizes": self.near_sizes}
        of_isoflop = {"--minimum": self.minimum}
        for owner, given in ((PARAMETRIC, of_parametric), (ISOFLOP, of_isoflop), (ENVELOPE, of_envelope)):
            if owner not in approaches and (names := [name for name, value in given.items() if value is not None]):
                raise InputError(f"{names[0]}: belongs to the approach {owner}")
        if all(name in NEEDS_CURVES for name in approaches):
            if points == "ends":
                raise InputError(f"--points ends: the approach {approaches[0]} needs curves: fit another approach")
            points = "curves"
        return approaches, points, settings


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Which rows of a table are fitted, and what its columns mean."""

    columns: Annotated[
        Text,
        typer.Option(help='Name the columns, as n_params="Model Size",run=model+lr; default: by their names.'),
    ] = None
    where: Annotated[list[str] | None, typer.Option(help='Keep these rows, as "loss<5"; repeatable.')] = None
    group: Annotated[Text, typer.Option(help="Fit each value of this column, or of several by commas, by itself.")] = (
        None
    )
    drop_highest_loss: Annotated[int | None, typer.Option(help="Leave out so many points of each group.")] = None
    loss_unit: Annotated[Text, typer.Option(help="nats or bits, a token; default: by the column's name.")] = None
    runs: Annotated[
        Path | None, typer.Option(help="Table with more columns of the runs, by their names, as of a wandb chart's.")
    ] = None
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Count rows and runs of the same numbers or seed as repeats.")
    ] = False


@app.command()
@with_options
def study(
    study: ChangedFittedOptions,
    force: Force = False,
    details: Annotated[bool, typer.Option("--details", help="Print all laws and their checks.")] = False,
) -> None:
    """Fit a study's laws as its file says.

    They are kept in results/ (with --set of fit or grid in a folder of their own), and the report is drawn from them.
    """
    from . import fitting as commands

    Output(details=details, as_json=study.as_json).check()
    request = study.request()
    commands.check_results(request)
    with request.writing(rates=False):
        fits = commands.fit_stage(request, force)
    if study.as_json:
        print_json(fits.to_dict())
    else:
        from .show import show_laws, show_summary

        more = ["more: --details (all laws and their checks), --json (everything)"]
        more += [f"next: {study.command('report')}"]
        print(show_laws(fits) if details else show_summary(fits, more))


@app.command()
@with_options
def runs(
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY..", help="Study files, names of the package's, or published folders.")
    ],
    options: FitOptions,
    output: Output,
    sets: Sets = None,
    out: Out = None,
    plugin: Plugins = None,
) -> None:
    """Fit the runs of one study or of several, by any approach.

    Gives laws with intervals, and optima at the compute of --at. Nothing is kept but --save, --plot and --figures.
    Several studies are pooled where they agree in corpus, tokenizer, context and convention.
    """
    from analysis.fits.approaches import STUDY_OBJECTIVE
    from analysis.fits.tables.read import check_choices

    output.check(studies)
    check_studies(studies)
    check_choices(options.points, None, None)
    chosen = (
        ChangedFittedOptions(study=name, sets=sets, out=out, plugin=plugin, as_json=output.as_json) for name in studies
    )
    requests = [study.request() for study in chosen]
    level = requests[0].study.fit.level  # studies of several levels are not pooled
    approaches, points, settings = options.resolved(STUDY_OBJECTIVE, level, output.draws_curves)
    pooled = of_studies(requests, options.convention)
    fit_points(of_runs(pooled, points), approaches, settings, output)


@app.command()
@with_options
def table(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="CSV, TSV, JSONL, JSON array, Parquet or .xlsx.")],
    rows: RowOptions,
    options: FitOptions,
    output: Output,
) -> None:
    """Fit a table of anybody's runs, by any approach.

    Gives laws with intervals, and optima at the compute of --at. Nothing is kept but --save, --plot and --figures. A
    study's results/curves.parquet gives the numbers of `fit runs STUDY`.
    """
    from analysis.fits.approaches import STUDY_OBJECTIVE
    from analysis.fits.solver import HUBER
    from analysis.fits.tables.columns import parse_columns
    from analysis.fits.tables.read import check_choices, read_table
    from analysis.source.parquet import study_of_file

    output.check([table])
    check_table(table)
    study = study_of_file(Path(table)) if rows == RowOptions() else None
    check_choices(options.points, options.convention if study is None else None, rows.loss_unit)
    objective, level = (HUBER, LEVEL) if study is None else (STUDY_OBJECTIVE, study.settings.level)
    approaches, points, settings = options.resolved(objective, level, output.draws_curves)
    if study is not None:
        of_table = study.under(options.convention)
    else:
        of_table = read_table(
            table,
            parse_columns(rows.columns) if rows.columns is not None else {},
            where=rows.where or (),
            group=rows.group,
            convention=options.convention,
            loss_unit=rows.loss_unit,
            keep_duplicates=rows.keep_duplicates,
            runs=rows.runs,
        )
    fit_points(of_runs(of_table, points, rows.drop_highest_loss or 0), approaches, settings, output)


def _pair(text: str) -> tuple[float, float]:
    """--predict: N and D."""
    numbers = text.split(",")
    if len(numbers) != 2:
        raise InputError(f"--predict: {text!r} is not N and D by a comma, as 7e9,2e12")
    return quantity(numbers[0], "--predict", MOST_PARAMS), quantity(numbers[1], "--predict", MOST_TOKENS)
