"""The files of a published study that follow from its others: the fits, the costs, and what both say, for reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.costs import costs_table, study_costs
from analysis.forecast.outcome import read_forecast
from analysis.report.accuracy import accuracy_section
from analysis.report.page import laws_of
from analysis.report.runs import cost_notes, provenance_facts, training_facts
from analysis.report.section import Section, markdown
from analysis.stage import accuracies, fits_of
from data.files import json_bytes

if TYPE_CHECKING:
    from analysis.source.choose import Source
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

FITS, COSTS, RESULTS = "fits.json", "costs.csv", "RESULTS.md"
DERIVED = (FITS, COSTS, RESULTS)
INTRODUCTION = (
    "This page is made from the tables beside it: `scaling publish --check` of this folder makes it again. Do not "
    "write into it."
)


def derived(study: StudySpec, runs: Sequence[RunSpec], source: Source) -> dict[str, bytes]:
    """The bytes of the derived files, by name."""
    fits, tables = fits_of(study, runs, source)
    forecast = source.forecast
    costs = study_costs(study, runs, tables.runs, None if forecast is None else forecast.runs)
    states = ", ".join(f"{count} {state}" for state, count in tables.runs["state"].value_counts().to_dict().items())
    facts = {"runs": states} | training_facts(tables.runs) | provenance_facts(fits, source.provenance())
    sections = [
        *laws_of(fits, read_forecast(study, source)),
        accuracy_section(accuracies(study, tables.runs, source)),
        Section("Costs", notes=[*cost_notes(costs), f"By run: {COSTS}."]),
        Section("Provenance", notes=[f"{name}: {value}" for name, value in facts.items() if value]),
    ]
    text = "\n\n".join([f"# {fits.study}: what the tables say", INTRODUCTION, *filter(None, map(markdown, sections))])
    return {
        FITS: json_bytes(fits.to_dict()),
        COSTS: costs_table(costs).to_csv(index=False, lineterminator="\n").encode(),
        RESULTS: f"{text}\n".encode(),
    }
