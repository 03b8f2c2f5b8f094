"""The page that --plot draws of fits: figure, table and reasons of every group; no file beside it, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.fits.approaches import Fits
from analysis.fits.points import Reading
from analysis.pages.html import render
from analysis.report.fit_figures import isoflop_figure, optimum_figure
from analysis.report.summary import fitted_on, legend, reason_lines, shown_at, summary_table, title

TEMPLATE = Path(__file__).parent / "fits.html.j2"


def fits_page(reading: Reading, fits: Fits, computes: Sequence[float]) -> str:
    """HTML. computes: C [FLOP] of the tables (none: `shown_at`). The fits need
    `Options.curve`."""
    groups = []
    for name, points in reading.groups.items():
        results = fits.of(name)
        failed = [fit for fit in fits.failed if fit.group == name]
        tables, notes = [], reason_lines(results, failed)
        for c in shown_at(results, computes) if results else ():
            tables.append((title(points, "", c, bool(computes)), summary_table(results, c, failed)))
        if results:
            notes += [
                fitted_on(results),
                legend(results, len(computes) or 1, "behind a value"),
            ]
        figure = optimum_figure(points, results) if results else None
        profiles = [isoflop_figure(points, fit) for fit in results if fit.isoflop]
        group = {"name": name, "figure": figure, "profiles": profiles, "tables": tables}
        groups.append(group | {"notes": [line for line in notes if line]})
    lead = f"{reading.n_kept:,} of {reading.n_read:,} {reading.unit} of {reading.source}"
    return render(TEMPLATE, figures=bool(fits.results), name=reading.source, lead=lead, groups=groups)
