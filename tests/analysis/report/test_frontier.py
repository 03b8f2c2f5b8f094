"""Figure 1 where another approach than the envelope leads: which law is drawn, how far it is believed, and its axes."""

from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from analysis.report.believed import drawn_law
from analysis.report.frontier import add_frontier, frontier_text, frontier_title, values_of

COMPUTES = (1e12, 1e13, 1e14, 1e15)


def law(approach: str, believe: str, a: float | None = 0.6) -> dict[str, Any]:
    """Of 1e12 to 1e14 FLOP; L has no interval beyond."""
    curve = [
        {"C": c, "N": c**0.6, "D": c**0.4, "L": 2.0, "intervals": {"N": [c**0.6 / 2, c**0.6 * 2], "D": None, "L": None}}
        for c in COMPUTES
    ]
    found = {"group": "tnl", "approach": approach, "params": {"a": a, "b": 0.4}, "range": [1e12, 1e14]}
    found |= {"intervals": {"a": [0.5, 0.7], "b": None}, "verdict": {"believe": believe, "reasons": ["a reason"]}}
    return found | {"diagnostics": {} if approach == "envelope" else {"curve": curve}}


def fits(*laws: dict[str, Any]) -> dict[str, Any]:
    return {"archs": {"tnl": {}, "llama": {}}, "approaches": {"laws": list(laws), "not_fitted": []}}


def test_the_law_that_is_drawn_is_the_one_believed_most_and_the_envelope_only_where_it_knows_a_size() -> None:
    no, inside = "do not believe", "believe inside the range"
    knows, knows_not = law("envelope", no), law("envelope", no, None)
    surface, budgets = law("parametric", no), law("isoflop", no)
    assert drawn_law(fits(knows, surface), "tnl") is None
    assert drawn_law(fits(knows_not, budgets, surface), "tnl") is surface
    assert drawn_law(fits(knows, better := law("isoflop", inside)), "tnl") is better
    assert drawn_law(fits(knows_not), "tnl") is drawn_law({}, "tnl") is drawn_law(fits(surface), "llama") is None
    old = surface | {"diagnostics": {}}  # of fits without curves
    assert drawn_law(fits(knows_not, old), "tnl") is None
    assert frontier_text(fits(knows)) == "" and "(the parametric one of TNL)" in frontier_text(fits(knows_not, surface))


@pytest.mark.parametrize(
    ("believe", "solid", "dashed", "legend"),
    [
        ("believe", COMPUTES, COMPUTES[3:], "solid"),
        ("believe inside the range", COMPUTES[:3], COMPUTES[2:], "solid"),
        ("do not believe", (), COMPUTES, "dash"),
    ],
)
def test_laws_are_dashed_beyond_what_is_believed_and_bands_stay_inside_the_range(
    believe: str, solid: tuple[float, ...], dashed: tuple[float, ...], legend: str
) -> None:
    found = law("parametric", believe)
    figure = make_subplots(1, 1)
    add_frontier(figure, 1, 1, found, "n_opt", "#0072b2", "TNL", named=True)
    band, *lines = figure.data
    assert set(band.x) == set(COMPUTES[:3]) and max(band.y) == pytest.approx(2 * 1e14**0.6)
    drawn = {line.line.dash: line for line in lines}
    assert drawn["solid"].x == solid and drawn["dash"].x == dashed
    assert drawn["dash"].y == tuple(c**0.6 for c in dashed)
    assert [line.line.dash for line in lines if line.showlegend] == [legend]
    without = go.Figure(make_subplots(1, 1))
    add_frontier(without, 1, 1, found, "loss", "#0072b2", "TNL", named=False)
    assert len(without.data) == 2 and not any(line.showlegend for line in without.data)


def test_titles_and_axes_have_the_laws_inside_their_ranges() -> None:
    found = law("parametric", "do not believe")
    assert frontier_title(found, "n_opt") == "N<sub>opt</sub> ~ C<sup> 0.600</sup> [0.500, 0.700] (not believed)"
    assert frontier_title(law("isoflop", "believe"), "loss") == "L at N<sub>opt</sub>: isoFLOP"
    assert frontier_title(law("isoflop", "believe"), "d_opt").strip() == "D<sub>opt</sub> ~ C<sup> 0.400</sup>"
    assert max(values_of([found], "n_opt")) == pytest.approx(2 * 1e14**0.6)
    assert values_of([found], "loss") == [2.0] * 3 and values_of([], "loss") == []
