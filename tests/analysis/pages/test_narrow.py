"""A figure's layout for a phone."""

import itertools

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.style import dress
from analysis.pages.narrow import GAP, narrow_layout


def grid() -> go.Figure:
    titles = ["one", "two<br>lines", "three", "four"]
    figure = make_subplots(2, 2, subplot_titles=titles, vertical_spacing=0.2, shared_yaxes=True)
    for row, column in ((1, 1), (1, 2), (2, 1), (2, 2)):
        figure.add_trace(go.Scatter(x=[1, 2], y=[1, 2], name=f"{row}{column}"), row=row, col=column)
    figure.update_yaxes(title_text="loss", col=1)
    figure.add_annotation(x=1, y=1, text="a note", xref="x", yref="y")
    dress(figure, 1320, 710)
    return figure


def test_panels_stand_below_one_another_in_the_order_of_reading() -> None:
    figure = grid()
    before = figure.to_json()
    narrow = narrow_layout(figure)
    assert figure.to_json() == before
    domains = [narrow[f"yaxis{i}"]["domain"] for i in ("", "2", "3", "4")]
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(domains))
    assert domains[0][1] == 1.0 and abs(domains[3][0]) < 1e-9
    assert all(narrow[f"xaxis{i}"]["domain"] == [0, 1] for i in ("", "2", "3", "4"))
    inner = narrow["height"] - narrow["margin"]["t"] - narrow["margin"]["b"]
    assert round((domains[2][0] - domains[3][1]) * inner) == GAP
    assert (domains[0][0] - domains[1][1]) * inner > GAP  # a name of two lines
    heights = [round((high - low) * inner) for low, high in domains]
    assert heights == [240] * 4  # as in the wide figure: (710 - 50 - 60) * 0.4


def test_panels_without_anything_take_no_room() -> None:
    figure = make_subplots(2, 2, vertical_spacing=0.2)
    for row, column in ((1, 1), (1, 2), (2, 1)):
        figure.add_trace(go.Scatter(x=[1, 2], y=[1, 2]), row=row, col=column)
    dress(figure, 1320, 710)
    narrow = narrow_layout(figure)
    assert abs(narrow["yaxis3"]["domain"][0]) < 1e-9 and "yaxis4" not in narrow


def test_names_move_with_their_panels_and_every_panel_says_what_it_shows() -> None:
    narrow = narrow_layout(grid())
    names = narrow["annotations"][:4]
    assert [(name["x"], name["y"]) for name in names] == [
        (0.5, narrow[f"yaxis{i}"]["domain"][1]) for i in ("", "2", "3", "4")
    ]
    assert (narrow["annotations"][4]["x"], narrow["annotations"][4]["xref"]) == (1, "x")
    assert all(narrow[f"yaxis{i}"]["title"]["text"] == "loss" for i in ("", "2", "3", "4"))
    assert all(narrow[f"yaxis{i}"]["showticklabels"] for i in ("2", "4"))


def test_legends_stand_below_and_have_room() -> None:
    figure = grid()
    margin = narrow_layout(figure)["margin"]
    assert narrow_layout(figure)["legend"]["y"] < 0 and narrow_layout(figure)["legend"]["orientation"] == "h"
    figure.data[0].legend = "legend2"
    two = narrow_layout(figure)
    assert (two["legend"]["x"], two["legend2"]["x"]) == (0.0, 0.5) and two["margin"]["b"] > margin["b"]
    alone = go.Figure(go.Heatmap(z=[[1, 2]]))
    assert "legend" not in narrow_layout(alone) and narrow_layout(alone)["margin"]["b"] == 60
