"""The three approaches side by side: the exponent of N_opt and its value at one compute, with intervals."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import APPROACH_COLORS, name_of
from analysis.figures.style import INK, dress
from analysis.fits.fit import Estimate, Fit
from analysis.fits.study_fits import StudyFits
from analysis.report.approaches import NAMES, believed
from analysis.report.figures import WIDTH

ROW, AROUND = 22, 120  # pixels: a law, and what the figure takes beside
LEFT = 150  # for the names
FARTHER, INSIDE, NOT_BELIEVED = "believed beyond the largest compute", "believed up to it", "not believed"
SYMBOLS = {FARTHER: "circle", INSIDE: "circle-open-dot", NOT_BELIEVED: "x-thin-open"}
MARGIN = 1.15  # factor around the values


def approach_figure(fits: StudyFits) -> go.Figure | None:
    """A line a law, from the top in the order of the architectures; None where no law has a value."""
    laws = [law for law in fits.laws if law.a.value is not None]
    if not laws:
        return None
    c = next((at.flops for law in laws for at in law.optima), None)
    where = "" if c is None else f" at {power_of_ten(c)} FLOP"
    titles = ["<b>a</b> of N<sub>opt</sub> ~ C<sup> a</sup>", f"<b>N<sub>opt</sub></b>{where}"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.05)
    names = [f"{name_of(law.group)}, {NAMES[law.approach]}" for law in laws]
    sizes: list[float] = []
    for law, name in zip(laws, names, strict=True):
        at = None if c is None else law.optimum(c)
        _add(figure, 1, law, name, law.a, "a %{x:.3f}")
        if at is not None and at.n_params.value is not None:
            _add(figure, 2, law, name, at.n_params, "N %{x:.4g}")
            one = at.n_params
            sizes += [size for size in (one.value, one.low, one.high) if size is not None]
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], range=[-0.6, len(names) - 0.4])
    figure.update_yaxes(showticklabels=False, col=2)
    if sizes:
        axis = log_axis(min(sizes) / MARGIN, max(sizes) * MARGIN, "non-embedding parameters N", "count")
        figure.update_xaxes(axis, row=1, col=2)
    figure.update_xaxes(title_text="exponent a", row=1, col=1)
    for name, symbol in SYMBOLS.items():
        marker = {"symbol": symbol, "size": 9, "color": INK, "line": {"width": 1.6}}
        figure.add_trace(go.Scatter(x=[None], y=[names[0]], mode="markers", marker=marker, name=name), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "its checks say"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW * len(names) + AROUND, l=LEFT)
    return figure


def _add(figure: go.Figure, column: int, law: Fit, name: str, one: Estimate, hover: str) -> None:
    color, verdict = APPROACH_COLORS[law.approach], believed(law)
    reach = law.verdict.reach if law.verdict else 0.0
    symbol = SYMBOLS[NOT_BELIEVED if reach == 0 else INSIDE if reach == 1 else FARTHER]
    value, ends = one.value or 0.0, one.ends
    low, high = ends or (value, value)
    error = {
        "type": "data",
        "symmetric": False,
        "array": [high - value],
        "arrayminus": [value - low],
        "thickness": 1.8,
        "width": 4 if ends else 0,
    }
    marker = {"symbol": symbol, "size": 9, "color": color, "line": {"width": 1.8, "color": color}}
    trace = go.Scatter(x=[value], y=[name], mode="markers", marker=marker, error_x=error, showlegend=False)
    trace.hovertemplate = f"{name}: {verdict}<br>{hover}<extra></extra>"
    figure.add_trace(trace, row=1, col=column)
