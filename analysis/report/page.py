"""report/index.html: the whole study on one page that needs no network, drawn from its fits and tables only.

It begins with what the study says, one figure and one table; then come sections by subject, and at the end how it was
made. Each section is made by one function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from analysis.costs import Cost
from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits
from analysis.forecast.outcome import ForecastRound
from analysis.pages.html import render
from analysis.report.accuracy import accuracy_section
from analysis.report.comparison import comparison_sections, losses_table, study_lines, verdict_notes
from analysis.report.figures import laws_figure, tokens_figure, validation_figure
from analysis.report.fit_figures import PROFILES, profiles_figure
from analysis.report.forecast import forecast_lead, forecast_section, title_of
from analysis.report.laws import envelope_section, laws_section
from analysis.report.methods import baseline_text, convention_text, methods_section, phase_notes
from analysis.report.runs import checkpoints_table, contamination_section, corpus_section, runs_section, unused_lines
from analysis.report.section import Page, Rows, Section, pairs
from analysis.report.tasks import task_sections
from analysis.report.variants import is_of_variants, variants_section
from analysis.run_table import RunTable
from arch.amounts import counted

TEMPLATE = Path(__file__).with_name("report.html.j2")
CURVES = (
    "Curves (of decayed runs their ends) are the losses that the fits read; those of runs that are left out of the "
    "fits are dotted. Points are the lowest loss at each compute (the envelope), coloured by the size that has it; "
    "hollow ones are censored: they say nothing about the optimal size. Diamonds are the crossings of neighbouring "
    "sizes, open where extrapolated. Where another approach is believed more than the envelope, its law is drawn and "
    "the envelope is faint. The shaded compute is the one that the law was fitted to; laws are dashed where their "
    "checks do not believe them."
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
    accuracies: Rows = field(default_factory=list)  # of classifiers (accuracy_rows)

    @property
    def bigram(self) -> float | None:
        """The loss of the bigram model."""
        return None if self.baseline is None else float(self.baseline["loss"])


def page(study: Study, live: bool = False) -> Page:
    """live: a browser that shows it reads it again every minute."""
    sections, figures = [], dict[str, go.Figure]()
    for section in sections_of(study):
        drawn = {name: figure for name, draw in section.figures.items() if (figure := draw()) is not None}
        if drawn or section.has_text:
            sections.append((section, list(drawn.values())))
        figures |= drawn
    tables = {table.name: table.rows for section, _ in sections for table in section.shown_tables}
    html = render(
        TEMPLATE,
        figures=True,
        exports=list(tables),
        live=live,
        name=study.name,
        lead=_lead(study.fits, study.tables),
        evaluations=study.evaluations,
        sections=sections,
    )
    return Page(html, tables, figures)


def sections_of(study: Study) -> Iterator[Section]:
    fits = study.fits
    summary, *laws = laws_of(fits, study.forecast)
    figures = {"laws": partial(laws_figure, fits, study.tables, study.bigram, [None])}
    # its notes are at the end of the page
    yield replace(summary, figures={} if is_of_variants(fits) else figures, notes=summary.notes[-1:])
    yield from laws
    if not is_of_variants(fits):
        yield _curves(study)
    yield _held_out(study)
    yield accuracy_section(study.accuracies)
    if fits.downstream:
        yield from task_sections(fits.downstream, fits.conventions)
    yield runs_section(fits, study.tables, study.costs)
    yield corpus_section(study.corpus)
    yield contamination_section(study.contamination, study.tasks, study.name)
    yield methods_section(fits)
    yield Section("Provenance", tables=[pairs("provenance", study.provenance or {})])


def laws_of(fits: StudyFits, forecast: Sequence[ForecastRound] = ()) -> Iterator[Section]:
    """What the study says: sentences with the losses in one table; then the laws and comparisons behind them."""
    lines = [*study_lines(fits), *(f"{title_of(round_)}: {forecast_lead(round_)}" for round_ in forecast)]
    where = f"C: {convention_text(fits)}. Loss: {fits.conventions['L']}."
    notes = [*verdict_notes(fits), *phase_notes(fits), where]
    yield Section("What the study says", lines, tables=[losses_table(fits)], notes=notes)
    yield variants_section(fits)
    if not is_of_variants(fits):
        yield laws_section(fits)
        yield envelope_section(fits)
        yield from comparison_sections(fits)
    yield from map(forecast_section, forecast)
    yield Section("Runs that the fits do not use", notes=unused_lines(fits))


def _curves(study: Study) -> Section:
    budgets = any(fit.isoflop and fit.isoflop.used for fit in study.fits.laws)
    if study.fits.settings.is_of_ends and budgets:  # decayed losses are points, no curves
        draw = partial(profiles_figure, study.fits, study.tables)
        return Section("IsoFLOP profiles", figures={"profiles": draw}, notes=[PROFILES])
    figures = {
        f"curves-{i}": partial(laws_figure, study.fits, study.tables, study.bigram, [group.name])
        for i, group in enumerate(study.fits.groups, start=1)
    }
    figures["curves-tokens"] = partial(tokens_figure, study.fits, study.tables, study.bigram)
    return Section("Training curves, envelope and laws", figures=figures, notes=[CURVES])


def _held_out(study: Study) -> Section:
    table = checkpoints_table(study.tables)
    figure = partial(validation_figure, study.fits, study.tables, study.bigram)
    return Section(
        "Held-out loss",
        [] if table.rows else ["No checkpoint has been evaluated."],
        {} if study.fits.settings.loss == "validation" else {"validation": figure},  # else they are the curves above
        [table],
        [baseline_text(study.baseline, study.fits.unit)] if study.baseline else [],
    )


def _lead(fits: StudyFits, tables: RunTable) -> str:
    """The study's own runs, as its plan counts them without the forecast's: those of variants apart."""
    own = tables.runs[tables.runs["variant"] == ""]
    by_state = ", ".join(f"{count} {state}" for state, count in own["state"].value_counts().to_dict().items())
    variants = f" and {n} of variants" if (n := len(tables.runs) - len(own)) else ""
    several = "; " if any(group.point for group in fits.groups) else ", "
    archs = several.join(name_of(group.name) for group in fits.groups)
    columns = ("arch", "checked")  # tables of earlier versions lack the second
    known = tables.runs.reindex(columns=columns)
    unchecked = dict.fromkeys(map(name_of, known.loc[known["checked"] == "no", "arch"]))
    without = f" Trained without the checks of their architecture: {', '.join(unchecked)}." if unchecked else ""
    return f"{archs}. {counted(len(own), 'run')} ({by_state}){variants}.{without}"
