"""The files of a published study that follow from its others: the fits, the costs, and what both say, for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.costs import Cost, costs_table, study_costs
from analysis.forecast.outcome import ForecastRound, read_forecast
from analysis.report.comparison import comparison_rows
from analysis.report.costs import cost_notes
from analysis.report.forecast import forecast_lead, forecast_notes, forecast_rows, title_of
from analysis.report.laws import approach_reasons, approach_rows, law_rows
from analysis.report.variants import is_of_variants
from analysis.report.verdict import comparison_table, verdict_notes, verdict_text
from analysis.stage import fits_of
from data.files import json_bytes

if TYPE_CHECKING:
    from analysis.fits.study_fits import StudyFits
    from analysis.run_table import RunTable
    from analysis.source.base import Provenance
    from analysis.source.choose import Source
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

FITS, COSTS, RESULTS = "fits.json", "costs.csv", "RESULTS.md"
DERIVED = (FITS, COSTS, RESULTS)


def derived(study: StudySpec, runs: Sequence[RunSpec], source: Source) -> dict[str, bytes]:
    """The bytes of the derived files, by name."""
    fits, tables = fits_of(study, runs, source)
    forecast = source.forecast()
    costs = study_costs(study, runs, tables.runs, None if forecast is None else forecast.runs)
    rounds = read_forecast(study, source)
    text = results_text(fits, tables, costs, source.provenance(), source.corpus(), rounds)
    return {
        FITS: json_bytes(fits.to_dict()),
        COSTS: costs_table(costs).to_csv(index=False, lineterminator="\n").encode(),
        RESULTS: text.encode(),
    }


def results_text(
    fits: StudyFits,
    tables: RunTable,
    costs: Sequence[Cost],
    came: Provenance,
    corpus: Mapping[str, Any] | None,
    forecast: Sequence[ForecastRound] = (),
) -> str:
    """The text of RESULTS.md."""
    named, runs = fits.conventions, tables.runs
    states = ", ".join(f"{count} {state}" for state, count in runs["state"].value_counts().to_dict().items())
    days = sorted(runs["started"].dropna().unique())
    parts = [
        f"# {fits.study}: what the tables say",
        "This page is made from the tables beside it: `scaling publish --check` of this folder makes it again. Do not "
        "write into it.",
        "\n".join(f"{line}  " for line in verdict_text(fits)),
        *([table(rows)] if (rows := comparison_table(fits)) else []),
        listed([*verdict_notes(fits), f"C: FLOP of the convention {named['C']}; N: {named['N']}; L: {named['L']}."]),
    ]
    if not is_of_variants(fits):
        parts += ["## Laws of the envelope", table(law_rows(fits, (None,), digits=3))]
    if rows := approach_rows(fits):
        reasons = approach_reasons(fits, not_fitted=False)
        parts += ["## The optimal size by three approaches", table(rows), listed(reasons)]
    if rows := [
        row for comparison in fits.comparisons for row in comparison_rows(comparison, fits.lowest_losses(comparison.at))
    ]:
        parts += ["## Compute for the same loss, along the optimal frontiers of fitted surfaces", table(rows)]
    for round_ in forecast:
        parts += [f"## {title_of(round_)}", forecast_lead(round_)]
        parts += [table(forecast_rows(round_)), listed(forecast_notes(round_))]
    parts += ["## Costs", listed([*cost_notes(costs), f"By run: {COSTS}."])]
    facts = {
        "runs": states,
        "trained": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not recorded",
        "on": "; ".join(runs["hardware"].dropna().unique()) or "not recorded",
        "commit": ", ".join(came["git_commits"]) or "unknown",
        "versions": ", ".join(f"{package} {'/'.join(numbers)}" for package, numbers in came["versions"].items()),
        "corpus": (corpus or {}).get("fingerprint") or ", ".join(came["corpus_fingerprints"]) or "unknown",
        "hash of the fit's inputs": fits.inputs_hash,
    }
    parts += ["## Provenance", listed([f"{name}: {value}" for name, value in facts.items()])]
    return "\n\n".join(part for part in parts if part) + "\n"


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows as a table of Markdown."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    lines = [heads, ["---"] * len(heads), *([str(row.get(name, "")) for name in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
