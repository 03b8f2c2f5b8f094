"""What the findings of the published study say of its own laws: how far verdicts and rankings depend on which runs are
fitted, and on how size and compute are counted."""

from __future__ import annotations

from analysis.figures.palette import name_of
from analysis.fits.settings import FITS
from analysis.fits.study_fits import read_fits
from analysis.report.laws import drawn_law, sizes_left_out
from analysis.report.section import markdown_table as table
from analysis.report.words import believed, times_cell
from data.files import read_json

from .of_study import FOLDER


def by_runs() -> str:
    """The verdict on each surface fitted to the runs of the first predictions, of the grid, and of the second
    predictions, with what speaks against the last, and the sizes that are left out of the surface of the grid."""
    fits = read_fits(FOLDER / FITS)
    first, second = (read_json(FOLDER / f"{name}.json") for name in ("predictions", "predictions-2"))
    rows = []
    for arch in (group.name for group in fits.groups):
        law = drawn_law(fits, arch)
        assert law is not None
        last = second["groups"][arch]["verdict"]
        rows.append(
            {
                "": name_of(arch),
                f"{first['fitted']['n_runs']} runs of the grid": first["groups"][arch]["verdict"]["believe"],
                "the whole grid": believed(law),
                "sizes left out of that fit": ", ".join(sizes_left_out(fits).get(arch, ())) or "none",
                "the grid and the runs of 55M": last["believe"],
                "why the last is so": "; ".join(last["reasons"]),
            }
        )
    return table(rows)


def by_count() -> str:
    """The compute of the other architectures over the best one's for the same loss, by every way of counting."""
    comparison = read_fits(FOLDER / FITS).comparisons[0]
    assert comparison.main is not None
    best, *others = comparison.main.archs
    rows = []
    for other in others:
        each = comparison.pair(other, best).compute.items()
        rows.append({"": name_of(other)} | {count: times_cell(one) for count, one in each})
    return table(rows)
