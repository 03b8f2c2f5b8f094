"""report/index.html: the whole study on one page that needs no network, drawn from its fits and tables only.

It begins with what the study says, one figure and one table; then come sections by subject, and at the end how it was
made. Each section is made by one function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from analysis.costs import Cost
from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits
from analysis.forecast.outcome import ForecastRound
from analysis.pages.export import write_tables
from analysis.pages.html import render
from analysis.report.comparison import comparison_figure, comparison_notes, comparison_rows
from analysis.report.contamination import contamination_notes, contamination_rows
from analysis.report.costs import choice_notes, choice_table, cost_notes, cost_rows, doubted_surfaces
from analysis.report.figures import figure_one
from analysis.report.forecast import forecast_figure, forecast_lead, forecast_notes, forecast_rows, table_name, title_of
from analysis.report.laws import approach_reasons, approach_rows, check_rows, law_notes, law_rows
from analysis.report.left_out import left_out_lines
from analysis.report.lengths import NOTE as LENGTHS
from analysis.report.lengths import length_rows, lengths_figure
from analysis.report.methods import baseline_text, convention_text, methods
from analysis.report.rows import checkpoint_rows, corpus_rows, run_rows, training_rows
from analysis.report.task_tables import downstream_notes, task_tables
from analysis.report.tasks import benchmarks_figure, tasks_figure
from analysis.report.validation import validation_figure
from analysis.report.variants import is_of_variants, variant_figure, variant_notes, variant_rows
from analysis.report.verdict import comparison_table, family_name, study_lines, verdict_notes
from analysis.run_table import RunTable
from arch.amounts import counted

TEMPLATE = Path(__file__).with_name("report.html.j2")
Rows = Sequence[Mapping[str, str]]
CURVES = (
    "Curves are the losses that the fits read; those of runs that are left out of the fits are dotted. Points are the "
    "lowest loss at each compute (the envelope), coloured by the size that has it; hollow ones are censored: they say "
    "nothing about the optimal size. Diamonds are the crossings of neighbouring sizes, open where extrapolated. Where "
    "another approach is believed more than the envelope, its law is drawn and the envelope is faint. The shaded "
    "compute is the one that the law was fitted to; laws are dashed where their checks do not believe them."
)


@dataclass(frozen=True)
class Study:
    """What a report is of. baseline: of the bigram model; corpus: its manifest; provenance: name -> value; evaluations:
    the address of the page of the other evaluations; contamination: what the training text holds of evaluation sets
    (analysis.contamination); tasks: those that have texts of their own. None and empty where there is none."""

    name: str
    fits: StudyFits
    tables: RunTable
    baseline: dict[str, Any] | None = None
    corpus: dict[str, Any] | None = None
    provenance: Mapping[str, str] | None = None
    evaluations: str | None = None
    contamination: dict[str, Any] | None = None
    tasks: Sequence[str] = ()
    costs: Sequence[Cost] = ()
    forecast: Sequence[ForecastRound] = ()


@dataclass(frozen=True)
class Table:
    """Rows with the name of their file. hidden: the words behind which they open; good: a column and its value in rows
    that are not marked; is_file: the page has its link alone; pairs: a row is a name and a value."""

    name: str
    rows: Rows
    hidden: str = ""
    good: tuple[str, str] | None = None
    is_file: bool = False
    pairs: bool = False


@dataclass(frozen=True)
class Section:
    """Figures by file name, tables and notes, in this order; more: words behind which further lines open, and these."""

    title: str
    lead: Sequence[str] = ()
    figures: Sequence[tuple[str, go.Figure | None]] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    more: tuple[str, Sequence[str]] = ("", ())

    @property
    def shown_figures(self) -> list[go.Figure]:
        return [figure for _, figure in self.figures if figure is not None]

    @property
    def shown_tables(self) -> list[Table]:
        return [table for table in self.tables if table.rows]

    @property
    def is_empty(self) -> bool:
        return not (self.shown_figures or self.shown_tables or self.notes or self.lead or self.more[1])


@dataclass(frozen=True)
class Page:
    """The page, and its tables and figures by the names of their files."""

    html: str
    tables: dict[str, Rows]
    figures: dict[str, go.Figure]

    def write(self, directory: Path) -> None:
        """index.html, and tables/ beside it."""
        (directory / "index.html").write_text(self.html, encoding="utf-8")
        write_tables(directory / "tables", self.tables)


def page(study: Study) -> Page:
    sections = [section for section in sections_of(study) if not section.is_empty]
    figures = dict(named for section in sections for named in section.figures)
    tables = {table.name: table.rows for section in sections for table in section.shown_tables}
    summary, *others = sections
    html = render(
        TEMPLATE,
        figures=True,
        exports=list(tables),
        name=study.name,
        lead=_lead(study.fits, study.tables),
        evaluations=study.evaluations,
        summary=summary,
        sections=others,
    )
    return Page(html, tables, {name: figure for name, figure in figures.items() if figure is not None})


def sections_of(study: Study) -> Iterator[Section]:
    fits = study.fits
    yield _summary(study)
    yield _variants(fits)
    if not is_of_variants(fits):
        yield _laws(fits)
        yield from _comparisons(fits)
    yield from map(_forecast, study.forecast)
    if not is_of_variants(fits):
        yield _curves(study)
    yield _held_out(study)
    yield from _tasks(fits)
    if not is_of_variants(fits):
        yield _choices(fits)
    yield Section("Runs that the fits do not use", notes=left_out_lines(fits))
    yield _runs(study)
    yield _costs(study)
    yield _corpus(study)
    yield _contamination(study)
    yield Section("Methods and caveats", methods(fits), notes=verdict_notes(fits))
    pairs = [{"what": what, "value": value} for what, value in (study.provenance or {}).items() if value]
    yield Section("Provenance", tables=[Table("provenance", pairs, pairs=True)])


def _one(name: str, figure: go.Figure | None) -> list[tuple[str, go.Figure | None]]:
    return [(name, figure)]


def _summary(study: Study) -> Section:
    """What the study says: sentences, the laws of all architectures in one figure, and the losses in one table."""
    fits = study.fits
    lines = [*study_lines(fits), *(f"{title_of(forecast)}: {forecast_lead(forecast)}" for forecast in study.forecast)]
    rows = comparison_table(fits) if any(verdict.archs for verdict in fits.verdicts) else []
    figure = None if is_of_variants(fits) else figure_one(fits, study.tables, study.baseline, [None])
    return Section(
        "What the study says",
        lines,
        _one("laws", figure),
        [Table("losses", rows)],
        [f"C: {convention_text(fits)}. Loss: {fits.conventions['L']}."],
    )


def _variants(fits: StudyFits) -> Section:
    return Section(
        "Variants after equal tokens",
        (),
        _one("variants", variant_figure(fits)),
        [Table("variants", variant_rows(fits))],
        variant_notes(fits),
    )


def _laws(fits: StudyFits) -> Section:
    return Section(
        "The optimal size by three approaches, and whether to believe it",
        tables=[
            Table("approaches", approach_rows(fits)),
            Table("checks", check_rows(fits), "What the verdicts rest on: the checks of each law at each compute"),
            Table("conventions", law_rows(fits), "Laws of the envelope under every FLOP convention"),
        ],
        notes=law_notes(fits),
        more=("The reasons of every verdict", approach_reasons(fits)),
    )


def _comparisons(fits: StudyFits) -> Iterator[Section]:
    for i, comparison in enumerate(fits.comparisons):
        name, at = f"comparison-{i + 1}" if i else "comparison", family_name(comparison.at) if comparison.at else ""
        yield Section(
            "Architectures compared along their optimal frontiers" + (f", {at}" if at else ""),
            (),
            _one(name, comparison_figure(comparison, fits.conventions, doubted_surfaces(fits))),
            [Table(name, comparison_rows(comparison, fits.lowest_losses(comparison.at)))],
            comparison_notes(comparison, fits.settings.level),
        )


def _forecast(forecast: ForecastRound) -> Section:
    name = table_name(forecast)
    return Section(
        title_of(forecast),
        [forecast_lead(forecast)],
        _one(name, forecast_figure(forecast)),
        [Table(name, forecast_rows(forecast))],
        forecast_notes(forecast),
    )


def _curves(study: Study) -> Section:
    rows = [(group.name, [group.name]) for group in study.fits.groups]
    figures = [
        (f"curves-{i + 1}", figure_one(study.fits, study.tables, study.baseline, row))
        for i, (_, row) in enumerate(rows)
    ]
    return Section("Training curves, envelope and laws", figures=figures, notes=[CURVES])


def _held_out(study: Study) -> Section:
    fits, unit = study.fits, study.fits.unit
    figure = validation_figure(fits, study.tables, study.baseline)
    return Section(
        "Held-out loss",
        [] if figure else ["No checkpoint has been evaluated."],
        _one("validation", figure),
        [Table("checkpoints", checkpoint_rows(study.tables), is_file=True)],
        [baseline_text(study.baseline, unit)] if study.baseline else [],
    )


def _tasks(fits: StudyFits) -> Iterator[Section]:
    scores = fits.downstream
    if not scores:
        return
    tables, notes = task_tables(scores), downstream_notes(scores)
    benchmarks, lengths = Table("benchmarks", tables["benchmarks"]), Table("lengths", length_rows(scores.lengths))
    yield Section("Benchmarks", (), _one("benchmarks", benchmarks_figure(fits)), [benchmarks], notes["benchmarks"])
    if lengths.rows:
        figure = _one("lengths", lengths_figure(scores.lengths))
        yield Section("Contexts longer than those of the training", (), figure, [lengths], [LENGTHS])
    yield Section(
        "Scores of the tasks",
        (),
        _one("tasks", tasks_figure(fits)),
        [Table("scores", tables["scores"])],
        notes["scores"],
        ("What is doubted, withheld or left out, and why", notes["reasons"]),
    )


def _choices(fits: StudyFits) -> Section:
    rows = choice_table(fits.wrong_choices)
    lead = (
        "Of the largest compute of each architecture, by its fitted surface: what a model of another size than the "
        "optimal one wastes, and what a loss wastes that is higher than it need be, as a wrong learning rate makes it. "
        "Intervals are in fits.json."
    )
    return Section(
        "What a wrong choice costs",
        [lead] if rows else [],
        tables=[Table("choices", rows)],
        notes=choice_notes(fits) if rows else [],
    )


def _runs(study: Study) -> Section:
    pairs = [{"what": what, "value": value} for what, value in training_rows(study.tables).items() if value]
    return Section(
        "Runs",
        tables=[
            Table("training", pairs, pairs=True),
            Table("runs", run_rows(study.fits, study.tables), good=("state", "done")),
        ],
    )


def _costs(study: Study) -> Section:
    table = Table("costs", cost_rows(study.costs), "Planned and spent, by run")
    return Section("What the training cost", tables=[table], notes=cost_notes(study.costs) if table.rows else [])


def _corpus(study: Study) -> Section:
    values = corpus_rows(study.corpus) if study.corpus else {}
    pairs = [{"what": what, "value": value} for what, value in values.items() if value]
    lead = [] if pairs else ["The corpus has no manifest."]
    return Section("Corpus", lead, tables=[Table("corpus", pairs, pairs=True)])


def _contamination(study: Study) -> Section:
    return Section(
        "Evaluation sets in the training text",
        tables=[Table("contamination", contamination_rows(study.contamination))],
        notes=contamination_notes(study.contamination, list(study.tasks), study.name),
    )


def _lead(fits: StudyFits, tables: RunTable) -> str:
    """The study's own runs, as its plan counts them without the forecast's: variants are told apart."""
    own = tables.runs[tables.runs["variant"] == ""]
    by_state = ", ".join(f"{count} {state}" for state, count in own["state"].value_counts().to_dict().items())
    variants = f" and {n} of variants" if (n := len(tables.runs) - len(own)) else ""
    several = "; " if any(group.point for group in fits.groups) else ", "
    archs = several.join(name_of(group.name) for group in fits.groups)
    return f"{archs}. {counted(len(own), 'run')} ({by_state}){variants}."
