"""Architectures compared, as the report and the terminal show them."""

import pytest

from analysis.fits.comparison.frontiers import fit_frontiers, view_of
from analysis.fits.fit import Estimate
from analysis.fits.pairwise import BETTER, LOSS, UNDECIDED, WORSE, Compared, Comparison, View
from analysis.fits.study_fits import LossOf, LowestLoss
from analysis.report.comparison import (
    comparison_figure,
    comparison_notes,
    comparison_table,
    losses_table,
    study_lines,
)

from ..fits.built import fit_of, study_of
from ..fits.comparison.worlds import NEAR, ONE, study
from .drawn_paper import check_paper


@pytest.fixture(scope="module")
def compared():
    """Three architectures of which b and c are alike, under two ways of counting."""
    view = view_of(fit_frontiers(study([ONE, NEAR, NEAR], 0.005, 0.001, seed=3), n_replicates=199))
    return Compared("", {"C 6nd": view, "C exact": view})


def test_rows_say_how_much_compute_the_others_need(compared):
    best, second = compared.main.archs[:2]
    rows = {row["pair"]: row for row in comparison_table(compared).rows}
    worse, alike = rows[f"a against {best}"], rows[f"{second} against {best}"]
    cell = worse["compute for the same loss"]
    assert {best, second} == {"b", "c"} and cell.value == pytest.approx(1.2, abs=0.08)
    assert cell == f"{cell.value:.3g} times [{cell.ends[0]:.3g}, {cell.ends[1]:.3g}]"
    assert worse["at ten times that compute"].value > 1
    assert (worse["verdict"], alike["verdict"]) == (WORSE, UNDECIDED)
    none = Compared(reason="a comparison needs two architectures")
    assert comparison_table(none).rows == [] and comparison_figure(none, {"C": "6nd"}) is None
    (note,) = comparison_notes(none, 0.95)
    assert note == "Architectures are not compared by their surfaces: a comparison needs two architectures."


def test_a_verdict_that_depends_on_the_count_says_so(compared):
    view, best = compared.main, compared.main.archs[0]
    turned = View(
        view.archs, view.range, compute=tuple(comparison.against(comparison.other) for comparison in view.compute)
    )
    turned = [
        Comparison(comparison.reference, comparison.other, comparison.of, comparison.at, comparison.ratio)
        for comparison in turned.compute
    ]
    cases = {"depends on the measure": View(view.archs, view.range, compute=tuple(turned))}
    cases["undecided: worse by 1 of 2 ways to count compute and size (not known with C exact)"] = View(
        reason="no speed"
    )
    for words, other in cases.items():
        rows = comparison_table(Compared("", {"C 6nd": view, "C exact": other})).rows
        assert next(row["verdict"] for row in rows if row["pair"] == f"a against {best}") == words
    three = {"C 6nd": view, "C exact": View(reason="no speed"), "C paper": View(reason="no speed")}
    rows = comparison_table(Compared("", three)).rows
    assert next(row["verdict"] for row in rows if row["pair"] == f"a against {best}") == (
        "undecided: worse with C 6nd alone, of 3 ways to count compute and size"
    )


@pytest.mark.parametrize(
    ("ends", "of_pair", "sentence"),
    [
        ((1.01, 1.02), WORSE, "A is worse than B by more than seed noise."),
        ((0.99, 1.02), WORSE, "A is worse than B by the compute for the same loss, under every count."),
        (None, WORSE, "A is worse than B by the compute for the same loss, under every count."),
    ],
)
def test_the_loss_and_the_compute_of_a_pair_make_one_verdict_everywhere(compared, ends, of_pair, sentence):
    """By surfaces a needs more compute than b, whatever the noise hides of their losses: no line or table may say both
    that it is worse and that it is not."""
    losses = {"b": LossOf(Estimate(2.0), "1m", 1e6, 1e7, 1, 3, 2)}
    against = Comparison("a", "b", LOSS, 1e18, Estimate.of(1.005, ends))
    losses["a"] = LossOf(Estimate(2.01), "1m", 1e6, 1e7, 1, 3, 2, against_best=against)
    lowest = LowestLoss(0.95, c=1e18, best="b", archs=losses)
    fits = study_of(fit_of(group="b"), fit_of(group="a"), verdicts=(lowest,), comparisons=(compared,))
    lines = study_lines(fits)
    assert sentence.replace("A is", "a is").replace("than B", "than b") in lines
    assert lines[0].startswith("b has the lowest loss") and not any("distinguishable" in line for line in lines)
    assert losses_table(fits).rows[1]["verdict"] == of_pair
    rows = {row["pair"]: row["verdict"] for row in comparison_table(compared, lowest).rows}
    assert {rows.get("a against b"), rows.get("b against a")} & {WORSE, BETTER}


def test_the_figure_has_a_line_and_a_band_for_every_other_architecture(compared):
    view = compared.main
    best, *others = view.archs
    figure = comparison_figure(compared, {"C": "6nd"})
    lines = [trace for trace in figure.data if trace.name]
    assert [trace.name for trace in lines] == others and len(figure.data) == 2 * len(others)
    assert (lines[0].x[0], lines[0].x[-1]) == pytest.approx((view.range[0], view.beyond))
    for band, line in zip(figure.data[::2], lines, strict=True):
        n = len(line.y)
        assert all(low <= y <= high for low, y, high in zip(band.y[:n], line.y, band.y[n:][::-1], strict=True))
    assert best in figure.layout.yaxis.title.text
    marked = comparison_figure(compared, {"C": "6nd"}, others[:1])
    check_paper(marked)
    first, *rest = [trace for trace in marked.data if trace.name]
    assert (first.name, first.line.dash) == (f"{others[0]} (law not believed)", "dash")
    assert [trace.name for trace in rest] == others[1:]


def test_notes_say_what_was_done_and_what_is_missing(compared):
    text = " ".join(comparison_notes(compared, 0.95))
    assert "one E shared by all" in text and "intervals (95%, nominal)" in text and "C 6nd; C exact" in text
    view = View(compared.main.archs, compared.main.range, beyond_reason="no floor", shared_e=False)
    text = " ".join(comparison_notes(Compared("", {"C 6nd": view, "C s": View(reason="no speed")}), 0.95))
    assert "an E of its own" in text and "FLOP: no floor." in text and text.endswith("Without: C s (no speed).")
