"""Figure 1 where another approach than the envelope leads: which law is drawn, how far it is believed, and its axes."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from analysis.fits.fit import D_OPT, L_OPT, N_OPT, NOTHING, Estimate, Fit, Law
from analysis.fits.study_fits import StudyFits
from analysis.report.believed import drawn_law, envelope_doubted
from analysis.report.figures import _legends, _master_row, _title
from analysis.report.frontier import add_frontier, frontier_text, frontier_title, values_of

from ..fits.built import fit_of, group_of, optimum, study_of

COMPUTES = (1e12, 1e13, 1e14, 1e15)


def law(approach: str, reach: float, a: float | None = 0.6) -> Fit:
    """Of 1e12 to 1e14 FLOP; L has no interval beyond."""
    curve = [optimum(c, Estimate(c**0.6, c**0.6 / 2, c**0.6 * 2), Estimate(c**0.4), Estimate(2.0)) for c in COMPUTES]
    drawn = () if approach == "envelope" else tuple(curve)
    exponent = NOTHING if a is None else Estimate(a, 0.5, 0.7)
    return fit_of(approach, reach, a=exponent, b=Estimate(0.4), span=(1e12, 1e14), curve=drawn)


def fits(*laws: Fit) -> StudyFits:
    return study_of(*laws, groups=[group_of("tnl"), group_of("llama")])


def test_the_law_that_is_drawn_is_the_one_believed_most_and_the_envelope_only_where_it_knows_a_size() -> None:
    no, inside = 0, 1
    knows, knows_not = law("envelope", no), law("envelope", no, None)
    surface, budgets = law("parametric", no), law("isoflop", no)
    assert drawn_law(fits(knows, surface), "tnl") is None
    assert drawn_law(fits(knows_not, budgets, surface), "tnl") is surface
    assert drawn_law(fits(knows, better := law("isoflop", inside)), "tnl") is better
    assert drawn_law(fits(knows_not), "tnl") is drawn_law(fits(), "tnl") is drawn_law(fits(surface), "llama") is None
    old = replace(surface, curve=())  # of fits without curves
    assert drawn_law(fits(knows_not, old), "tnl") is None
    assert frontier_text(fits(knows)) == "" and "(the parametric one of TNL)" in frontier_text(fits(knows_not, surface))


@pytest.mark.parametrize(
    ("reach", "solid", "dashed", "legend"),
    [
        (1e9, COMPUTES, COMPUTES[3:], "solid"),
        (1, COMPUTES[:3], COMPUTES[2:], "solid"),
        (0, (), COMPUTES, "dash"),
    ],
)
def test_laws_are_dashed_beyond_what_is_believed_and_bands_stay_inside_the_range(
    reach: float, solid: tuple[float, ...], dashed: tuple[float, ...], legend: str
) -> None:
    found = law("parametric", reach)
    figure = make_subplots(1, 1)
    add_frontier(figure, 1, 1, found, N_OPT, "#0072b2", "TNL", named=True)
    band, *lines = figure.data
    assert set(band.x) == set(COMPUTES[:3]) and max(band.y) == pytest.approx(2 * 1e14**0.6)
    drawn = {line.line.dash: line for line in lines}
    assert drawn["solid"].x == solid and drawn["dash"].x == dashed
    assert drawn["dash"].y == tuple(c**0.6 for c in dashed)
    assert [line.line.dash for line in lines if line.showlegend] == [legend]
    without = go.Figure(make_subplots(1, 1))
    add_frontier(without, 1, 1, found, L_OPT, "#0072b2", "TNL", named=False)
    assert len(without.data) == 2 and not any(line.showlegend for line in without.data)


def test_titles_and_axes_have_the_laws_inside_their_ranges() -> None:
    found = law("parametric", 0)
    assert frontier_title(found, N_OPT) == "N<sub>opt</sub> ~ C<sup> 0.600</sup> [0.500, 0.700] (not believed)"
    assert frontier_title(law("isoflop", 10), L_OPT) == "L at N<sub>opt</sub>: isoFLOP"
    assert frontier_title(found, L_OPT) == "L at N<sub>opt</sub> (not believed)"
    assert frontier_title(law("isoflop", 10), D_OPT).strip() == "D<sub>opt</sub> ~ C<sup> 0.400</sup>"
    assert max(values_of([found], N_OPT)) == pytest.approx(2 * 1e14**0.6)
    assert values_of([found], L_OPT) == [2.0] * 3 and values_of([], L_OPT) == []


@pytest.mark.parametrize(
    ("reach", "dash", "title"),
    [
        (1, "solid", "N = 3 C<sup> 0.500</sup>"),
        (0, "dash", "N ~ C<sup> 0.500</sup> (not believed)"),
    ],
)
def test_laws_of_the_envelope_that_are_not_believed_are_dashed_too_but_for_the_loss(
    reach: float, dash: str, title: str
) -> None:
    """The headline says that no approach is believed: figure 1 must not draw a full line there."""
    half, three = Estimate(0.5), Estimate(3.0)
    laws = [
        Law(name, exponent=half, coefficient=three, centre=(1e13, 2.0), range=(1e12, 1e14))
        for name in (N_OPT, D_OPT, L_OPT)
    ]
    found = study_of(fit_of("envelope", reach, laws=laws))
    assert envelope_doubted(found, "tnl") is (dash == "dash")
    figure = make_subplots(1, 3)
    _master_row(figure, 1, found, {"tnl": "#0072b2"})
    assert [line.line.dash for line in figure.data] == ["solid", dash, dash]
    assert _title(found, "tnl", L_OPT, "L") == "<b>TNL</b>  L = 3 C<sup> 0.500</sup>"
    assert _title(found, "tnl", N_OPT, "N") == title
    _legends(figure, [None], 0.1, {}, found, None)
    assert ("not believed there" in [line.name for line in figure.data]) is (dash == "dash")
