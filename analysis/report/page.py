"""report/index.html: the whole study on one page that needs no network, drawn from its fits and tables only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.costs import Cost
from analysis.figures.palette import name_of
from analysis.fits.pairwise import Compared
from analysis.fits.study_fits import StudyFits
from analysis.forecast.outcome import ForecastRound
from analysis.pages.export import KINDS, write_tables
from analysis.pages.html import render
from analysis.report.approach_figure import approach_figure
from analysis.report.approaches import (
    approach_notes,
    approach_reasons,
    approach_rows,
    check_rows,
)
from analysis.report.believed import believed_rows
from analysis.report.comparison import comparison_figure, comparison_notes, comparison_rows
from analysis.report.contamination import contamination_notes, contamination_rows
from analysis.report.costs import (
    choice_notes,
    choice_table,
    cost_notes,
    cost_rows,
    doubted_surfaces,
)
from analysis.report.figures import figure_one, rows_of_figure_one
from analysis.report.floors import floor_notes
from analysis.report.forecast import forecast_figure, forecast_lead, forecast_notes, forecast_rows, table_name, title_of
from analysis.report.frontier import frontier_text
from analysis.report.lengths import NOTE as LENGTHS
from analysis.report.lengths import length_rows, lengths_figure
from analysis.report.merged import merged_notes, merged_rows
from analysis.report.methods import baseline_text, convention_text, methods
from analysis.report.notes import common_lean, crossing_notes, crossing_reasons, extrapolation_text, law_notes
from analysis.report.nuisance import nuisance_notes, nuisance_rows
from analysis.report.rows import checkpoint_rows, checkpoint_values, corpus_rows, run_rows, training_rows
from analysis.report.tables import (
    HEADINGS,
    conventions_table,
    curvature_table,
    diagnostics_table,
    laws_table,
    optimum_table,
)
from analysis.report.task_tables import TASK_TABLES, downstream_notes, task_tables
from analysis.report.tasks import benchmarks_figure, tasks_figure
from analysis.report.validation import validation_figure
from analysis.report.variants import is_of_variants, variant_figure, variant_notes, variant_rows
from analysis.report.verdict import comparison_table, family_name, verdict_notes, verdict_parts
from analysis.run_table import RunTable
from arch.amounts import counted

TEMPLATE = Path(__file__).with_name("report.html.j2")
CURVATURE = (
    "For a pure power law the quadratic term of log L in log C is 0, apart from the steps that a few sizes make in the "
    "envelope, which are subtracted. Its distribution under a pure power law is simulated from the seed noise.",
    "Where no bend is found, the power law is not proven: the power says how often the test would have found a bend.",
)
OPTIMUM = (
    "Where the curves of two neighbouring sizes cross, the optimal size lies half way between them in log N. The "
    "crossings therefore estimate the optimum over a continuous choice of sizes. The points of the envelope, which the "
    "papers fit, take only the sizes of the grid; a line through their steps is too flat by about 1 / k^2 for k sizes "
    "that own points.",
    "Where the p-value of their scatter is small, the crossings lie further from a line than seed noise explains: "
    "N_opt is no power law here, or learning rates or training lengths do not suit all sizes alike. The intervals are "
    "widened for it.",
)
DIAGNOSTICS = (
    "A censored point says nothing about the optimal size, because another size may have been better: its owner is the "
    "smallest or the largest size, the point lies inside warm-up (its smoothing window included), a smaller size still "
    "had the lower loss when its run ended, or the next larger size has no curve there after its warm-up.",
    "Points left out of L(C): no size next to the optimal one has a curve at their compute.",
    "The last column says how flat the minimum is: the ratio of the largest to the smallest size within 0.5% of the "
    "lowest loss, median over the uncensored points.",
)


def figures(
    fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None, forecast: Sequence[ForecastRound] = ()
) -> dict[str, Any]:
    """The report's figures by file name."""
    found = {"validation": validation_figure(fits, tables, baseline)}
    if not is_of_variants(fits):
        found["figure1"] = figure_one(fits, tables, baseline)
    found["variants"] = variant_figure(fits)
    for name, compared in _compared(fits):
        found[name] = comparison_figure(compared, fits.conventions, doubted_surfaces(fits))
    found["approaches"] = approach_figure(fits)
    for round_ in forecast:
        found[table_name(round_)] = forecast_figure(round_)
    if fits.downstream:
        found["benchmarks"] = benchmarks_figure(fits)
        found["tasks"] = tasks_figure(fits)
        found["lengths"] = lengths_figure(fits.downstream.lengths)
    return {name: figure for name, figure in found.items() if figure is not None}


class Page(NamedTuple):
    """The page, and its tables by the names of their files (analysis.pages.export)."""

    html: str
    tables: dict[str, list[dict[str, str]]]

    def write(self, directory: Path) -> None:
        """index.html, and tables/ beside it."""
        (directory / "index.html").write_text(self.html, encoding="utf-8")
        write_tables(directory / "tables", self.tables)


def page(
    name: str,
    fits: StudyFits,
    tables: RunTable,
    drawn: Mapping[str, Any],
    baseline: dict[str, Any] | None = None,
    corpus: dict[str, Any] | None = None,
    provenance: Mapping[str, str] | None = None,
    evaluations: str | None = None,
    contamination: dict[str, Any] | None = None,
    tasks: Sequence[str] = (),
    costs: Sequence[Cost] = (),
    forecast: Sequence[ForecastRound] = (),
) -> Page:
    """`drawn` from `figures`, `corpus` the corpus manifest, `provenance` name -> value, `evaluations` the address of
    the page of the other evaluations, None where there is none, `contamination` what the training text holds of
    evaluation sets (analysis.contamination), `tasks` those of the study that have texts of their own, `costs`
    of its runs, `forecast` its predictions, round by round."""
    downstream = fits.downstream
    laws_of_size = not is_of_variants(fits)
    pairs = {"training": training_rows(tables), "corpus": corpus_rows(corpus) if corpus else {}}
    pairs["provenance"] = dict(provenance or {})
    shown = _tables(fits, tables, contamination) | {"costs": cost_rows(costs)}
    for round_ in forecast:
        shown[table_name(round_)] = forecast_rows(round_)
    comparisons = []
    for figure, compared in _compared(fits):
        shown[figure] = comparison_rows(compared, fits.lowest_losses(compared.at))
        at = family_name(compared.at) if compared.at else ""
        notes = comparison_notes(compared, fits.settings.level)
        comparisons.append({"at": at, "figure": drawn.get(figure), "name": figure, "notes": notes})
    files = {key: rows for key, rows in shown.items() if rows}
    files |= {key: [{"what": what, "value": told} for what, told in of.items() if told] for key, of in pairs.items()}
    files["checkpoints"] = checkpoint_values(tables)
    files = {key: rows for key, rows in files.items() if rows}
    html = render(
        TEMPLATE,
        figures=True,
        exports=dict.fromkeys(files, KINDS),
        tables=shown,
        pairs_of=pairs,
        name=name,
        lead=_lead(fits, tables),
        evaluations=evaluations,
        drawn=drawn,
        figure1=rows_of_figure_one(fits, tables, baseline) if laws_of_size else [],
        verdict=verdict_parts(fits),
        verdict_notes=[*verdict_notes(fits), f"C: {convention_text(fits)}. Loss: {fits.conventions['L']}."],
        law_notes=[*law_notes(fits), extrapolation_text(fits)],
        curvature_notes=[*common_lean(fits), *CURVATURE],
        optimum_notes=[*crossing_notes(fits), *OPTIMUM],
        crossing_reasons=crossing_reasons(fits),
        diagnostics_notes=DIAGNOSTICS,
        frontiers=frontier_text(fits),
        baseline=baseline_text(baseline, fits.unit) if baseline else None,
        approach_notes=[
            *floor_notes(fits),
            *approach_notes(),
        ],
        lengths_note=LENGTHS,
        approach_reasons=approach_reasons(fits),
        comparisons=comparisons,
        laws_of_size=laws_of_size,
        variant_notes=variant_notes(fits),
        merged_notes=merged_notes(fits),
        nuisance_notes=nuisance_notes(fits),
        choice_notes=choice_notes(fits),
        downstream=downstream_notes(downstream) if downstream else None,
        shown_checkpoints=checkpoint_rows(tables),
        loss_unit=fits.unit,
        unfinished=lambda row: row["state"] != "done",
        cost_notes=cost_notes(costs),
        rounds=[(title_of(one), forecast_lead(one), table_name(one), forecast_notes(one)) for one in forecast],
        contamination_notes=contamination_notes(contamination, list(tasks), name),
        methods=methods(fits),
    )
    return Page(html, files)


def _tables(fits: StudyFits, tables: RunTable, contamination: dict[str, Any] | None) -> dict[str, list[dict[str, str]]]:
    """The page's tables by name, in their order."""
    downstream = fits.downstream
    compared = any(one.archs for one in fits.verdicts)
    return {
        "losses": comparison_table(fits) if compared else [],
        "optimum": believed_rows(fits),
        "nuisance": nuisance_rows(fits),
        "variants": variant_rows(fits),
        "merged": merged_rows(fits),
        "laws": [{HEADINGS[key]: value for key, value in row.items()} for row in laws_table(fits)],
        "approaches": approach_rows(fits),
        "checks": check_rows(fits),
        "choices": choice_table(fits.wrong_choices),
        **({name: [] for name in TASK_TABLES} if downstream is None else task_tables(downstream)),
        "lengths": length_rows(downstream.lengths) if downstream else [],
        "power_law": curvature_table(fits),
        "crossings": optimum_table(fits),
        "conventions": conventions_table(fits),
        "diagnostics": diagnostics_table(fits),
        "runs": run_rows(fits, tables),
        "contamination": contamination_rows(contamination),
    }


def _compared(fits: StudyFits) -> list[tuple[str, Compared]]:
    """The comparisons by the names of their figures."""
    return [("comparison" if i == 0 else f"comparison-{i + 1}", one) for i, one in enumerate(fits.comparisons)]


def _lead(fits: StudyFits, tables: RunTable) -> str:
    """The study's own runs, as its plan counts them without the forecast's: variants are told apart."""
    own = tables.runs[tables.runs["variant"] == ""]
    by_state = ", ".join(f"{count} {state}" for state, count in own["state"].value_counts().to_dict().items())
    variants = f" and {n} of variants" if (n := len(tables.runs) - len(own)) else ""
    several = "; " if any(one.point for one in fits.groups) else ", "
    archs = several.join(name_of(one.name) for one in fits.groups)
    return f"{archs}. {counted(len(own), 'run')} ({by_state}){variants}."
