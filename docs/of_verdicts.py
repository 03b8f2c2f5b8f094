"""What the findings of the published study say of its own laws: how far verdicts and rankings depend on which runs are
fitted, and on how size and compute are counted."""

from __future__ import annotations

from typing import Any

from analysis.figures.palette import name_of
from analysis.fits.settings import FITS
from analysis.fits.study_fits import read_fits
from analysis.pages.cells import shown
from analysis.publish.derived import table
from analysis.report.believed import drawn_law
from analysis.report.laws import believed, sizes_left_out
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
    best = next(iter(comparison["views"].values()))["archs"][0]
    rows: dict[str, dict[str, str]] = {}
    for count, view in comparison["views"].items():
        for pair in view["pairs"]:
            if best in (pair["reference"], pair["other"]):
                other = pair["other"] if pair["reference"] == best else pair["reference"]
                rows.setdefault(other, {"": name_of(other)})[count] = _times(view, pair, best)
    return table(list(rows.values()))


def _times(view: dict[str, Any], pair: dict[str, Any], best: str) -> str:
    """At the largest compute that all reached; the stored gain is the reference's compute over the other's."""
    at = next(row for row in pair["gains"] if row["c"] == view["range"][1])
    gain, (low, high) = at["gain"], at["joint"]
    if pair["reference"] == best:
        gain, low, high = 1 / gain, 1 / high, 1 / low
    return shown(gain, ".3g", (low, high))
