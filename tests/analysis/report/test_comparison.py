"""Architectures compared and what runs wasted, as the report and the terminal show them."""

import pytest

from analysis.fits.comparison.views import across
from analysis.fits.fit import Estimate
from analysis.fits.study_fits import Waste
from analysis.report.comparison import comparison_figure, comparison_notes, comparison_rows, waste_notes, waste_table

from ..fits.built import fit_of, study_of
from ..fits.comparison.worlds import NEAR, ONE, study

LEVEL = 0.95


@pytest.fixture(scope="module")
def compared():
    """Three architectures of which b and c are alike, under two ways of counting."""
    groups = study([ONE, NEAR, NEAR], 0.005, 0.001, seed=3)
    return {"reason": None} | across({"C 6nd": groups, "C exact": groups}, 199)


def test_rows_say_how_much_compute_the_others_need(compared):
    rows = comparison_rows(compared)
    best, second = compared["views"]["C 6nd"]["archs"][:2]
    assert {best, second} == {"b", "c"}
    worse = next(row for row in rows if row["pair"] == f"a against {best}")
    times = float(worse["compute for the same loss"].split()[0])
    assert times == pytest.approx(1.2, abs=0.08) and worse["under every count"] == f"{best} is ahead"
    assert worse["ahead (share of draws)"] == f"{best} > 99%"
    low, high = (float(end) for end in worse["compute for the same loss"].split("[")[1].rstrip("]").split(", "))
    assert low < times < high
    alike = next(row for row in rows if row["pair"] == f"{second} against {best}")
    assert alike["under every count"] == "not told apart"
    assert worse["tokens for the same loss"].startswith("1.")
    view = next(iter(compared["views"].values()))
    never = [pair | {"savings": {"value": 0.8, "interval": [0.0, 1.0], "reason": None}} for pair in view["pairs"]]
    told = comparison_rows(compared | {"views": {"C 6nd": view | {"pairs": never}}})
    assert told[0]["tokens for the same loss"] == "1.25 times [1, ∞]"


def test_a_verdict_that_depends_on_the_count_says_so(compared):
    for second, told in (("b", "depends on the count"), (None, "a is ahead under 1 of 2")):
        undecided = {"stands": False, "ahead": None, "by_view": {"C 6nd": "a", "C exact": second}}
        pairs = [row | undecided for row in compared["pairs"]]
        assert {row["under every count"] for row in comparison_rows(compared | {"pairs": pairs})} == {told}


def test_the_figure_has_a_line_and_a_band_for_every_other_architecture(compared):
    view = compared["views"]["C 6nd"]
    figure = comparison_figure(compared, {"C": "6nd"})
    best, *others = view["archs"]
    lines = [trace for trace in figure.data if trace.name]
    assert [trace.name for trace in lines] == others and len(figure.data) == 2 * len(others)
    assert lines[0].x[0] == pytest.approx(view["range"][0]) and lines[0].x[-1] == pytest.approx(view["beyond"])
    for band, line in zip(figure.data[::2], lines, strict=True):
        n = len(line.y)
        assert all(low <= y <= high for low, y, high in zip(band.y[:n], line.y, band.y[n:][::-1], strict=True))
    assert best in figure.layout.yaxis.title.text
    marked = comparison_figure(compared, {"C": "6nd"}, others[:1])
    first, *rest = [trace for trace in marked.data if trace.name]
    assert (first.name, first.line.dash) == (f"{others[0]} (law not believed)", "dash")
    assert [trace.name for trace in rest] == others[1:]


def test_notes_tell_what_was_done_and_what_is_missing(compared):
    told = " ".join(comparison_notes(compared, LEVEL))
    assert "one E shared by all" in told and "Intervals (95%, nominal)" in told and "C 6nd; C exact" in told
    view = compared["views"]["C 6nd"] | {"beyond": None, "beyond_reason": "no floor", "shared_e": False}
    told = " ".join(comparison_notes(compared | {"views": {"C 6nd": view}}, LEVEL))
    assert "an E of its own" in told and "FLOP: no floor." in told
    none = {"reason": "a comparison needs two architectures", "views": {}, "pairs": []}
    assert comparison_rows(none) == [] and comparison_figure(none, {"C": "6nd"}) is None
    assert comparison_notes(none, LEVEL) == [
        "Architectures are not compared by their surfaces: a comparison needs two architectures."
    ]


def test_the_most_wasteful_runs_come_first():
    ends = (0.05, 0.2)
    waste = {
        "a": [
            Waste("a-1", 1e18, Estimate.of(0.1, ends), 1e17, 2.0),
            Waste("a-2", 1e18, Estimate.of(0.001, ends), 1e17, 2.0),
        ],
        "b": [Waste("b-1", 1e18, Estimate(0.3), 1e17, None)],
    }
    first, second = waste_table(waste)
    assert (first["run"], first["wasted"], first["hours"]) == ("b-1", "30.0%", "")
    assert (second["run"], second["wasted"], second["hours"]) == ("a-1", "10.0% [5.0%, 20.0%]", "2")


def test_what_runs_waste_is_doubted_where_the_surface_is():
    laws = [
        fit_of(approach, reach, group=group)
        for group, approach, reach in (
            ("llama", "parametric", 0),
            ("tnl", "parametric", 1),
            ("tnl", "isoflop", 0),
        )
    ]
    notes = waste_notes(study_of(*laws))
    assert notes[0] == "Not to be relied on where the fitted surface is not: LLaMA."
    assert len(waste_notes(study_of(*laws[1:]))) == len(notes) - 1
