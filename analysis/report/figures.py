"""The study's figures, drawn from its fits and tables only: no number is computed here that is not in them.

Figure 1 follows the paper's (Scaling Laws for Linear Complexity Language Models, figure 1): three columns L(C),
N_opt(C), D_opt(C); a master row with the laws of all architectures, then a row for each. Filled points are
uncensored, hollow ones censored; diamonds are the crossings of neighbouring sizes. Where another approach than the
envelope leads (analysis.report.believed), its law is drawn, and the envelope's points are faint. Laws of N_opt and
D_opt that their checks do not believe are dashed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import minus
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import (
    GREY,
    INK,
    SHADE,
    dress,
    fade,
    legend_line,
    legend_reference,
    reference_line,
    size_scale,
)
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, EnvelopePoints, Law, Pair
from analysis.fits.grouping import grouped
from analysis.fits.losses import RunCurves
from analysis.fits.study_fits import StudyFits
from analysis.report.believed import drawn_law, envelope_doubted
from analysis.report.figure_axes import axes_of
from analysis.report.frontier import add_frontier, frontier_title
from analysis.run_table import RunTable

MAX_POINTS = 300
FAINT = 0.3  # opacity of what does not lead
COLUMNS = ((L_OPT, "L"), (N_OPT, "N<sub>opt</sub>"), (D_OPT, "D<sub>opt</sub>"))
ROW_HEIGHT, WIDTH = 330, 1320
MARKS, LINE, AROUND = 8, 20, 120  # of the second legend: lines beside the sizes; pixels a line, and above and below


def figure_one(fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None = None) -> go.Figure:
    """The paper's figure 1 for this study."""
    return _drawn(fits, tables, baseline, [None, *(group.name for group in fits.groups)])


def rows_of_figure_one(fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None = None) -> list[go.Figure]:
    """The same in a figure a row, between which a page can be broken."""
    return [_drawn(fits, tables, baseline, [row]) for row in (None, *(group.name for group in fits.groups))]


def _drawn(
    fits: StudyFits, tables: RunTable, baseline: dict[str, Any] | None, shown: Sequence[str | None]
) -> go.Figure:
    """shown: what each row is of, an architecture, or all of them (None)."""
    tables = grouped(tables, fits.settings)
    colors, sizes = arch_colors([group.name for group in fits.groups]), size_colors(tables)
    rows = len(shown)
    gap = 84 / (ROW_HEIGHT * rows)
    titles: list[str] = []
    for arch in shown:
        if arch is None:
            titles += [f"<b>All architectures</b>: {what}" for what in ("fitted loss", "optimal size", "optimal data")]
        else:
            titles += [_title(fits, arch, law, symbol) for law, symbol in COLUMNS]
    figure = make_subplots(rows, 3, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=gap)
    figure.update_annotations(font_size=13)
    axes = axes_of(fits, tables, baseline)
    for row, arch in enumerate(shown, start=1):
        for column in (1, 2, 3):
            figure.add_trace(go.Scatter(x=[None], y=[None], showlegend=False), row=row, col=column)  # or no axes appear
            figure.update_xaxes(axes["c"], row=row, col=column)
            figure.update_yaxes(axes[COLUMNS[column - 1][0]], row=row, col=column)
        if arch is None:
            _master_row(figure, row, fits, colors)
        else:
            _arch_row(figure, row, arch, fits, tables, colors[arch], sizes)
        if baseline is not None:
            reference_line(figure, row, 1, baseline["loss"])
    _legends(figure, shown, gap, sizes, fits, baseline)
    marks = 0 if shown == [None] else len(sizes) + MARKS
    dress(figure, WIDTH, max(ROW_HEIGHT * rows + 40, LINE * marks + AROUND))  # or a legend scrolls
    return figure


def size_colors(tables: RunTable) -> dict[str, str]:
    """One colour scale for all architectures, smallest to largest."""
    known = tables.runs.dropna(subset=["n_params_non_embedding"])
    sizes = known.groupby("size")["n_params_non_embedding"].mean().sort_values().index
    return size_scale([str(size) for size in sizes])


def _title(fits: StudyFits, arch: str, law_name: str, symbol: str) -> str:
    head = f"<b>{name_of(arch)}</b>{'<br>' if fits.group(arch).point else '  '}" if law_name == L_OPT else ""
    envelope = fits.envelope(arch)
    if envelope is None:
        return f"{head}{symbol}: not fitted"
    if leading := drawn_law(fits, arch):
        return f"{head}{frontier_title(leading, law_name)}"
    law = envelope.law(law_name)
    one = law.exponent
    if one.value is None:
        return f"{head}{symbol} not identified"
    if law.curved:
        return f"{head}{symbol} ~ C<sup> {minus(one.value)}</sup>, no pure power law"
    tail = f"  [{minus(one.ends[0])}, {minus(one.ends[1])}]" if one.ends else ""
    if _doubted(fits, arch, law_name):
        return f"{head}{symbol} ~ C<sup> {minus(one.value)}</sup>{tail} (not believed)"
    return f"{head}{symbol} = {law.coefficient.value:.3g} C<sup> {minus(one.value)}</sup>{tail}"


def _doubted(fits: StudyFits, arch: str, law_name: str) -> bool:
    """Whether the envelope's law is drawn as not believed: checks of N_opt say nothing against its L(C), which has
    tests of its own."""
    return law_name != L_OPT and envelope_doubted(fits, arch)


def _master_row(figure: go.Figure, row: int, fits: StudyFits, colors: dict[str, str]) -> None:
    dash = dashes([group.name for group in fits.groups])
    for column, (law_name, _) in enumerate(COLUMNS, start=1):
        missing = []
        for arch in (group.name for group in fits.groups):
            if leading := drawn_law(fits, arch):
                add_frontier(figure, row, column, leading, law_name, colors[arch], name_of(arch), column == 1)
                continue
            envelope = fits.envelope(arch)
            law = None if envelope is None else envelope.law(law_name)
            if law is None or not law.identified:
                missing.append(name_of(arch))
                continue
            doubted = _doubted(fits, arch, law_name)
            _add_law(figure, row, column, law, colors[arch], name_of(arch), dash[arch], column == 1, doubted)
        if missing:
            _note(figure, row, column, f"not identified: {', '.join(missing)}")


def _arch_row(
    figure: go.Figure,
    row: int,
    arch: str,
    fits: StudyFits,
    tables: RunTable,
    color: str,
    sizes: dict[str, str],
) -> None:
    envelope, leading = fits.envelope(arch), drawn_law(fits, arch)
    _add_curves(figure, row, arch, fits, tables, sizes)
    if envelope is None or envelope.envelope is None:
        return _note(figure, row, 1, fits.group(arch).reason)
    found = envelope.envelope
    for column, (law_name, _) in enumerate(COLUMNS, start=1):
        law = envelope.law(law_name)
        opacity = 1.0 if leading is None else FAINT
        _add_points(figure, row, column, found.points, law_name, sizes, opacity)
        if law_name != L_OPT:
            _add_crossings(figure, row, column, found.pairs, law_name, opacity)
        if leading is not None:
            add_frontier(figure, row, column, leading, law_name, color, f"{name_of(arch)} law", named=False)
            low, high = leading.range
            figure.add_vrect(x0=low, x1=high, fillcolor=SHADE, line_width=0, layer="below", row=row, col=column)
        elif law.range is not None:
            doubted = _doubted(fits, arch, law_name)
            _add_law(figure, row, column, law, color, f"{name_of(arch)} law", doubted=doubted)
            low, high = law.range
            figure.add_vrect(x0=low, x1=high, fillcolor=SHADE, line_width=0, layer="below", row=row, col=column)
        elif law_name != D_OPT:  # its reason is that of n_opt
            _note(figure, row, column, f"not identified: {law.reason.partition(':')[0]}")


def _add_curves(
    figure: go.Figure, row: int, arch: str, fits: StudyFits, tables: RunTable, sizes: dict[str, str]
) -> None:
    """The training curves as the fits read them, thinned; further seeds fainter, runs left out of the fits dotted."""
    settings = fits.settings
    curves = RunCurves(tables, settings)
    used = (tables.runs["group"] == arch) & (tables.runs["left_out"] == "")
    mine = tables.runs[used].dropna(subset=["n_params_non_embedding"])
    first = mine.groupby("size")["seed"].min().to_dict()
    for run in mine.sort_values(["n_params_non_embedding", "seed"]).itertuples():
        tokens, loss = curves.of(str(run.run_id))
        if len(tokens) == 0:
            continue
        keep = np.unique(np.searchsorted(tokens, np.geomspace(tokens[0], tokens[-1], MAX_POINTS)))
        keep = keep[keep < len(tokens)]
        compute = tokens[keep] * float(getattr(run, f"flops_per_token_{settings.flops}"))
        leads = run.seed == first[run.size]
        width, dash = 1.4 if leads else 0.8, "solid" if str(run.state) == "done" else "dot"
        trace = go.Scatter(
            x=compute,
            y=np.round(loss[keep], 5),
            mode="lines",
            line={
                "color": sizes[str(run.size)],
                "width": width,
                "dash": dash,
            },
            opacity=0.9 if leads else 0.45,
            showlegend=False,
            hovertemplate=f"{run.run_id}<br>C = %{{x:.3g}} FLOP<br>L = %{{y:.4f}} {fits.unit}<extra></extra>",
        )
        figure.add_trace(trace, row=row, col=1)


def _add_law(
    figure: go.Figure,
    row: int,
    column: int,
    law: Law,
    color: str,
    name: str,
    dash: str = "solid",
    named: bool = False,
    doubted: bool = False,
) -> None:
    assert law.range is not None and law.centre is not None and law.exponent.value is not None  # it is identified
    if law.band:
        x, y = [*law.band.c, *law.band.c[::-1]], [*law.band.high, *law.band.low[::-1]]
        fill = {"fill": "toself", "fillcolor": fade(color, 0.16), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=x, y=y, **fill, hoverinfo="skip", showlegend=False), row=row, col=column)
    c = np.geomspace(*law.range, 50)
    value = law.centre[1] * (c / law.centre[0]) ** law.exponent.value
    line = {"color": color} | ({"width": 1.8, "dash": "dash"} if doubted else {"width": 2.6, "dash": dash})
    trace = go.Scatter(x=c, y=value, mode="lines", line=line, name=name, showlegend=named, legend="legend")
    trace.hovertemplate = f"{name}<br>C = %{{x:.3g}} FLOP<br>%{{y:.4g}}<extra></extra>"
    figure.add_trace(trace, row=row, col=column)


def _add_points(
    figure: go.Figure,
    row: int,
    column: int,
    points: EnvelopePoints,
    quantity: str,
    sizes: dict[str, str],
    opacity: float,
) -> None:
    colors = [sizes[size] for size in points.size]
    fills = [color if why is None else "white" for color, why in zip(colors, points.censored, strict=True)]
    text = [
        f"{size}: {'uncensored' if why is None else f'censored, {why}'}"
        for size, why in zip(points.size, points.censored, strict=True)
    ]
    marker = {"size": 6, "color": fills, "line": {"color": colors, "width": 1.6}}
    y = {L_OPT: points.loss, N_OPT: points.n_params, D_OPT: points.n_tokens}[quantity]
    trace = go.Scatter(x=points.c, y=y, mode="markers", marker=marker, text=text, showlegend=False)
    trace.opacity = opacity
    trace.hovertemplate = "%{text}<br>C = %{x:.3g} FLOP<br>%{y:.4g}<extra></extra>"
    figure.add_trace(trace, row=row, col=column)


def _add_crossings(
    figure: go.Figure, row: int, column: int, pairs: Sequence[Pair], quantity: str, opacity: float
) -> None:
    seen = [one for one in pairs if one.c is not None]
    trace = go.Scatter(
        x=[one.c for one in seen],
        y=[one.n_params if quantity == N_OPT else one.n_tokens for one in seen],
        mode="markers",
        marker={
            "size": 9,
            "symbol": ["diamond-open" if (one.beyond or 0.0) > 0 else "diamond" for one in seen],
            "color": INK,
            "line": {"width": 1.2, "color": INK},
        },
        text=[f"{one.sizes[0]} and {one.sizes[1]} cross" for one in seen],
        opacity=opacity,
        showlegend=False,
        hovertemplate="%{text}<br>C = %{x:.3g} FLOP<br>%{y:.4g}<extra></extra>",
    )
    figure.add_trace(trace, row=row, col=column)


def _note(figure: go.Figure, row: int, column: int, text: str) -> None:
    """Text on the left, where curves leave room: below those of the first column, which fall, above the others."""
    axis = figure.get_subplot(row, column).xaxis.plotly_name.removeprefix("xaxis")
    figure.add_annotation(
        x=0.015,
        y=0.03 if column == 1 else 0.97,
        xref=f"x{axis} domain",
        yref=f"y{axis} domain",
        xanchor="left",
        yanchor="bottom" if column == 1 else "top",
        align="left",
        text="<br>".join(textwrap.wrap(text, 44)),
        showarrow=False,
        font={"size": 11, "color": "#555555"},
        bgcolor="rgba(255,255,255,0.7)",
    )


def _legends(
    figure: go.Figure,
    shown: Sequence[str | None],
    gap: float,
    sizes: dict[str, str],
    fits: StudyFits,
    baseline: dict[str, Any] | None,
) -> None:
    """Architectures beside the master row; sizes and marks, once, beside the first row of an architecture."""
    place = {"x": 1.01, "yanchor": "top"}
    if None in shown:
        figure.update_layout(legend={"title": {"text": "architecture"}, "y": 1} | place)
    doubts = any(drawn_law(fits, one.name) or envelope_doubted(fits, one.name) for one in fits.groups)
    if doubts and shown == [None]:
        figure.add_trace(legend_line("not believed there", INK, "legend", 1.8).update(line_dash="dash"), 1, 1)
    if baseline is not None and shown == [None]:
        figure.add_trace(legend_reference(baseline["loss"], "legend"), row=1, col=1)
    first = next((i for i, arch in enumerate(shown) if arch is not None), None)
    if first is None:
        return
    for size, color in sizes.items():
        figure.add_trace(legend_line(size, color, "legend2"), row=first + 1, col=1)
    level = fits.intervals.level
    law = f"law, {level:.0%} interval" if level else "law (no interval)"
    for name, fill in (("envelope", GREY), ("envelope, censored", "white")):
        marker = {"size": 8, "color": fill, "line": {"color": GREY, "width": 1.6}}
        trace = go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legend="legend2")
        figure.add_trace(trace, row=1, col=1)
    diamond = {"size": 9, "symbol": "diamond", "color": INK}
    trace = go.Scatter(x=[None], y=[None], mode="markers", marker=diamond, name="crossing", legend="legend2")
    figure.add_trace(trace, row=1, col=1)
    figure.add_trace(legend_line(law, INK, "legend2"), row=1, col=1)
    if doubts:
        figure.add_trace(legend_line("not believed there", INK, "legend2", 1.8).update(line_dash="dash"), 1, 1)
    figure.add_trace(legend_line("range of the law", "rgba(120,120,120,0.25)", "legend2", 9), row=1, col=1)
    if baseline is not None:
        figure.add_trace(legend_reference(baseline["loss"], "legend2"), row=1, col=1)
    top = 1 - first * ((1 - gap * (len(shown) - 1)) / len(shown) + gap)
    figure.update_layout(legend2={"title": {"text": "curves by size"}, "y": top} | place)
