"""The study's figures of losses and laws, drawn from its fits and tables: no number is computed here that is not in
them.

Figure 1 follows the paper's (Scaling Laws for Linear Complexity Language Models, figure 1): three columns L(C),
N_opt(C), D_opt(C); a row with the laws of all architectures, then a row for each. Its law is the one that its checks
believe most (analysis.report.laws), with its interval as far as it is believed, and dashed beyond.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis, minus
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import (
    GAP,
    GREY,
    INK,
    ROW_HEIGHT,
    SHADE,
    WIDTH,
    arch_panels,
    band,
    dress,
    legend_line,
    legend_reference,
    reference_line,
    size_scale,
)
from analysis.fits.fit import D_OPT, L_OPT, N_OPT, EnvelopePart, Estimate, Optimum
from analysis.fits.losses import RunCurves
from analysis.fits.prepare import grouped
from analysis.fits.study_fits import StudyFits
from analysis.report.laws import doubted, drawn_law, reach
from analysis.report.words import NAMES
from analysis.run_table import RunTable

MAX_POINTS = 300  # of a curve
FAINT = 0.3  # opacity of an envelope that does not lead
SYMBOLS = {L_OPT: "L", N_OPT: "N<sub>opt</sub>", D_OPT: "D<sub>opt</sub>"}
WHAT = ("loss at the optimal size", "optimal size", "optimal data")
MARKS, LINE, AROUND = 8, 20, 120  # of the second legend: lines beside the sizes; pixels a line, and above and below
ON_LAW = 50  # C at which an envelope's law is drawn
ABOVE_BIGRAM, MOST_LOSSES = 1.1, 90  # where losses end: times the bigram's; percentile of the envelope's
FAR_BIGRAM = 1.3  # times the highest loss: a bigram's beyond would squeeze all that is drawn
BEYOND = 3.0  # times the largest C of the runs that are shown where laws go on
NOT_BELIEVED = "not believed there"


LawRow = tuple[float, float, tuple[float, float] | None]  # C [FLOP], a value there, and its interval


@dataclass(frozen=True)
class DrawnLaw:
    """A law as figure 1 draws it. rows: C [FLOP], value and interval; span: C that it was fitted to; believed: C up to
    which it is drawn in full; title: its exponent."""

    rows: Sequence[LawRow]
    span: tuple[float, float]
    believed: float
    title: str

    @property
    def inside(self) -> list[LawRow]:
        """The rows in the span."""
        low, high = self.span
        return [row for row in self.rows if low * (1 - 1e-9) <= row[0] <= high * (1 + 1e-9)]


def rows_of(curve: Sequence[Optimum], quantity: str) -> list[LawRow]:
    """Values with the intervals that a logarithmic axis can show."""
    known = [(at.flops, at.of(quantity)) for at in curve]
    return [
        (c, estimate.value, estimate.ends if estimate.ends and min(estimate.ends) > 0 else None)
        for c, estimate in known
        if estimate.value
    ]


def law_of_figure(fits: StudyFits, group: str, quantity: str) -> DrawnLaw | str:
    """The law that is drawn of a group's N_opt, D_opt or L; or why there is none."""
    if leading := drawn_law(fits, group):
        rows = rows_of(leading.curve, quantity)
        doubt = "" if reach(leading) else " (not believed)"
        if quantity == L_OPT:
            title = f"L at N<sub>opt</sub>{doubt or f': {NAMES[leading.approach]}'}"
        else:
            title = _power(quantity, leading.law(quantity).exponent) + doubt
        return DrawnLaw(rows, leading.range, leading.range[1] * reach(leading), title)
    envelope = fits.envelope(group)
    if envelope is None:
        return fits.group(group).reason
    law = envelope.law(quantity)
    if law.range is None or not law.identified:
        return f"not identified: {law.reason.partition(':')[0]}"
    is_doubted = quantity != L_OPT and group in doubted(fits, "envelope")
    note = ", no pure power law" if law.curved else " (not believed)" if is_doubted else ""
    at = [(float(c), law.at(float(c))) for c in np.geomspace(*law.range, ON_LAW)]
    rows = [(c, estimate.value, estimate.ends) for c, estimate in at if estimate.value is not None]
    return DrawnLaw(rows, law.range, 0.0 if is_doubted else math.inf, _power(quantity, law.exponent) + note)


def _power(quantity: str, exponent: Estimate) -> str:
    if exponent.value is None:
        return f"{SYMBOLS[quantity]} not identified"
    ends = f" [{minus(exponent.ends[0])}, {minus(exponent.ends[1])}]" if exponent.ends else ""
    return f"{SYMBOLS[quantity]} ~ C<sup> {minus(exponent.value)}</sup>{ends}"


def laws_figure(
    fits: StudyFits,
    tables: RunTable,
    bigram: float | None = None,
    shown: Sequence[str | None] | None = None,
) -> go.Figure:
    """The paper's figure 1 for this study. bigram: the loss of a bigram model; shown: what each row is of, an
    architecture, or all of them (None); left out: all rows."""
    groups = [group.name for group in fits.groups]
    shown = [None, *groups] if shown is None else shown
    tables = grouped(tables, fits.settings)
    colors, sizes = arch_colors(groups), size_colors(tables)
    laws = {(group, quantity): law_of_figure(fits, group, quantity) for group in groups for quantity in SYMBOLS}
    titles = [_title(fits, row, laws, column) for row in shown for column in range(3)]
    gap = GAP / (ROW_HEIGHT * len(shown))
    figure = make_subplots(len(shown), 3, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=gap)
    figure.update_annotations(font_size=13)
    axes = _axes(fits, tables, bigram, laws, only_laws=list(shown) == [None])
    bigram = _in_view(bigram, axes[L_OPT])
    for row, group in enumerate(shown, start=1):
        for column, quantity in enumerate(SYMBOLS, start=1):
            figure.add_trace(go.Scatter(x=[None], y=[None], showlegend=False), row=row, col=column)  # or no axes appear
            figure.update_xaxes(axes["c"], row=row, col=column)
            figure.update_yaxes(axes[quantity], row=row, col=column)
        if group is None:
            _all_laws(figure, row, laws, colors)
        else:
            _group_row(figure, row, group, fits, tables, laws, colors[group], sizes)
        if bigram is not None:
            reference_line(figure, row, 1, bigram)
    envelopes = [fits.envelope(group) for group in shown if group is not None]
    _legends(figure, shown, sizes, laws, bigram, any(fit and fit.envelope for fit in envelopes))
    marks = 0 if list(shown) == [None] else len(sizes) + MARKS
    dress(figure, WIDTH, max(ROW_HEIGHT * len(shown) + 40, LINE * marks + AROUND))  # or a legend scrolls
    return figure


Laws = Mapping[tuple[str, str], DrawnLaw | str]


def size_colors(tables: RunTable) -> dict[str, str]:
    """One colour scale for all architectures, smallest to largest."""
    known = tables.runs.dropna(subset=["n_params_non_embedding"])
    sizes = known.groupby("size")["n_params_non_embedding"].mean().sort_values().index
    return size_scale([str(size) for size in sizes])


def _title(fits: StudyFits, group: str | None, laws: Laws, column: int) -> str:
    if group is None:
        return f"<b>All architectures</b>: {WHAT[column]}"
    quantity = list(SYMBOLS)[column]
    law, of_point = laws[group, quantity], fits.group(group).point
    head = f"<b>{name_of(group)}</b>{':<br>' if of_point else ': '}" if column == 0 else ""
    return head + (f"{SYMBOLS[quantity]}: no law" if isinstance(law, str) else law.title)


def _axes(fits: StudyFits, tables: RunTable, bigram: float | None, laws: Laws, only_laws: bool) -> dict[str, Any]:
    """The same in every row, so that rows compare: by column ("c": of compute), what the runs reached (unless there
    are only laws), the envelope has and the laws say inside of what they were fitted to."""
    convention, curves = fits.conventions["C"], tables.curves
    compute_title, loss_title = f"training compute C (FLOP, {convention})", f"loss L ({fits.unit})"
    fitted = [fit for group in fits.groups if (fit := fits.envelope(group.name)) is not None]
    points = [fit.envelope.points for fit in fitted if fit.envelope and fit.envelope.points.c]
    if ends := fits.settings.loss == "validation" and not points:  # no curves are drawn, but the losses that are fitted
        curves = tables.evals[tables.evals["phase"] == fits.settings.phase] if fits.settings.phase else tables.evals
    if curves.empty:
        return {
            "c": log_axis(1e9, 1e12, compute_title, "flop"),
            L_OPT: log_axis(1, 6, loss_title),
            N_OPT: log_axis(1e4, 1e6, "parameters N", "count"),
            D_OPT: log_axis(1e5, 1e7, "tokens D", "count"),
        }
    if ends:
        of_token = tables.runs.set_index("run_id")[f"flops_per_token_{convention}"]
        compute = (curves["n_tokens"] * curves["run_id"].map(of_token)).dropna()
    else:
        compute = curves[f"flops_{convention}"]
    drawn = {quantity: [law for (_, of), law in laws.items() if of == quantity] for quantity in SYMBOLS}
    along = {quantity: _values([law for law in drawn[quantity] if isinstance(law, DrawnLaw)]) for quantity in SYMBOLS}
    start = min((fit.range[0] for fit in fitted), default=float(compute.min()))
    if only_laws and (firsts := [law.rows[0][0] for law in laws.values() if isinstance(law, DrawnLaw) and law.rows]):
        start = min(firsts)
    end = max([float(compute.max()), *(fit.range[1] for fit in fitted)])
    seen = [value for part in points for value in part.loss] or (only_laws and along[L_OPT]) or curves["loss"].tolist()
    lowest = min([*seen, *along[L_OPT], *([bigram] if bigram else [])])
    highest = max(seen) * 1.12
    if not (only_laws or ends):
        highest = min(highest, float(np.percentile(seen, MOST_LOSSES)))
    if bigram and bigram < max(seen) * FAR_BIGRAM:
        highest = max(highest, bigram * ABOVE_BIGRAM)
    n_params = tables.runs["n_params_non_embedding"].dropna()
    tokens = [value for part in points for value in part.n_tokens]
    tokens = tokens or (only_laws and along[D_OPT]) or curves.groupby("run_id")["n_tokens"].max().tolist()
    low_d = max(min(tokens) / 3, min([*tokens, *along[D_OPT]]))
    high_d = max(tokens) if not along[D_OPT] else min(max(tokens) * 10, max([*tokens, *along[D_OPT]]))
    return {
        "c": log_axis(start / 2, end * BEYOND, compute_title, "flop"),
        L_OPT: log_axis(lowest / 1.06, highest, loss_title),
        N_OPT: log_axis(n_params.min() / 1.6, n_params.max() * 1.6, "non-embedding parameters N", "count"),
        D_OPT: log_axis(low_d / 1.8, high_d * 1.4, "training tokens D", "count"),
    }


def _in_view(loss: float | None, axis: Mapping[str, Any]) -> float | None:
    return None if loss is None or math.log10(loss) > axis["range"][1] else loss


def _values(laws: Sequence[DrawnLaw]) -> list[float]:
    """Those of the laws, and the ends of their intervals where they are believed: others may have any width."""
    return [
        number
        for law in laws
        for c, value, ends in law.inside
        for number in (value, *(ends if ends and c <= law.believed * (1 + 1e-9) else ()))
    ]


def _all_laws(figure: go.Figure, row: int, laws: Laws, colors: dict[str, str]) -> None:
    dash = dashes(list(colors))
    for column, quantity in enumerate(SYMBOLS, start=1):
        missing = []
        for group, color in colors.items():
            law = laws[group, quantity]
            if isinstance(law, str):
                missing.append(name_of(group))
            else:
                add_law(figure, row, column, law, color, name_of(group), dash[group], column == 1)
        if missing:
            _note(figure, row, column, f"not identified: {', '.join(missing)}")


def _group_row(
    figure: go.Figure,
    row: int,
    group: str,
    fits: StudyFits,
    tables: RunTable,
    laws: Laws,
    color: str,
    sizes: dict[str, str],
) -> None:
    _add_curves(figure, {"row": row, "col": 1}, group, fits, tables, sizes)
    envelope, opacity = fits.envelope(group), 1.0 if drawn_law(fits, group) is None else FAINT
    for column, quantity in enumerate(SYMBOLS, start=1):
        law = laws[group, quantity]
        if envelope is not None and envelope.envelope is not None:
            _add_envelope(figure, row, column, envelope.envelope, quantity, sizes, opacity)
        if isinstance(law, DrawnLaw):
            add_law(figure, row, column, law, color, f"{name_of(group)} law")
            low, high = law.span
            figure.add_vrect(x0=low, x1=high, fillcolor=SHADE, line_width=0, layer="below", row=row, col=column)
        elif quantity != D_OPT:  # its reason is that of n_opt
            _note(figure, row, column, law)


def _add_curves(
    figure: go.Figure,
    place: dict[str, int],
    group: str,
    fits: StudyFits,
    tables: RunTable,
    sizes: dict[str, str],
    over: str = "C",
) -> None:
    """The training curves as the fits read them, over compute C or tokens D, thinned; further seeds fainter, runs left
    out of the fits dotted."""
    settings, unit = fits.settings, " FLOP" if over == "C" else " tokens"
    curves = RunCurves(tables, settings)
    used = (tables.runs["group"] == group) & (tables.runs["left_out"] == "")
    mine = tables.runs[used].dropna(subset=["n_params_non_embedding"])
    first = mine.groupby("size")["seed"].min().to_dict()
    for run in mine.sort_values(["n_params_non_embedding", "seed"]).itertuples():
        curve = curves.of(str(run.run_id))
        tokens, loss = curve.n_tokens, curve.loss
        if len(tokens) == 0:
            continue
        keep = np.unique(np.searchsorted(tokens, np.geomspace(tokens[0], tokens[-1], MAX_POINTS)))
        keep = keep[keep < len(tokens)]
        is_first = run.seed == first[run.size]
        dash = "solid" if str(run.state) == "done" else "dot"
        trace = go.Scatter(
            x=tokens[keep] * (float(getattr(run, f"flops_per_token_{settings.flops}")) if over == "C" else 1),
            y=np.round(loss[keep], 5),
            mode="lines" if len(tokens) > 1 else "markers",  # of a decayed run its end alone is read
            line={"color": sizes[str(run.size)], "width": 1.4 if is_first else 0.8, "dash": dash},
            marker={"color": sizes[str(run.size)], "size": 6},
            opacity=0.9 if is_first else 0.45,
            showlegend=False,
            hovertemplate=f"{run.run_id}<br>{over} = %{{x:.3g}}{unit}<br>L = %{{y:.4f}} {fits.unit}<extra></extra>",
        )
        figure.add_trace(trace, **place)


def tokens_figure(fits: StudyFits, tables: RunTable, bigram: float | None = None) -> go.Figure | None:
    """The training curves of figure 1 over tokens instead of compute, a panel for each group of the fits, as figures 4
    and 5 of "HGRN2" (Qin et al. 2024) have them; None without any."""
    tables = grouped(tables, fits.settings)
    if tables.curves.empty:
        return None
    axes, sizes = _axes(fits, tables, bigram, {}, only_laws=False), size_colors(tables)
    bigram = _in_view(bigram, axes[L_OPT])
    groups = [group.name for group in fits.groups]
    figure, places, height = arch_panels(groups)
    ends = tables.curves.groupby("run_id")["n_tokens"].max()
    figure.update_xaxes(log_axis(ends.min() / 30, ends.max() * 1.3, "training tokens D", "count"))
    figure.update_yaxes(axes[L_OPT] | {"title": {"text": ""}})
    figure.update_yaxes(title_text=f"loss L ({fits.unit})", col=1)
    for group, place in zip(groups, places, strict=True):
        figure.add_trace(go.Scatter(x=[None], y=[None], showlegend=False), **place)  # or no axes appear
        _add_curves(figure, place, group, fits, tables, sizes, "D")
        if bigram is not None:
            reference_line(figure, place["row"], place["col"], bigram)
    _sizes_legend(figure, sizes, bigram)
    dress(figure, WIDTH, height)
    return figure


def _add_envelope(
    figure: go.Figure,
    row: int,
    column: int,
    envelope: EnvelopePart,
    quantity: str,
    sizes: dict[str, str],
    opacity: float,
) -> None:
    """Points of the envelope in the colour of their size, hollow where they are censored, and the crossings of
    neighbouring sizes, hollow where they are extrapolated."""
    points, style = envelope.points, {"mode": "markers", "opacity": opacity, "showlegend": False}
    hover = "%{text}<br>C = %{x:.3g} FLOP<br>%{y:.4g}<extra></extra>"
    colors = [sizes[size.partition(" to ")[0]] for size in points.size]  # near sizes count as one: the smallest's
    owners = list(zip(points.size, points.censored, strict=True))
    fills = [color if why is None else "white" for color, (_, why) in zip(colors, owners, strict=True)]
    text = [f"{size}: {'uncensored' if why is None else f'censored, {why}'}" for size, why in owners]
    marker = {"size": 6, "color": fills, "line": {"color": colors, "width": 1.6}}
    y = {L_OPT: points.loss, N_OPT: points.n_params, D_OPT: points.n_tokens}[quantity]
    figure.add_trace(go.Scatter(x=points.c, y=y, marker=marker, text=text, hovertemplate=hover, **style), row, column)
    if quantity == L_OPT:
        return
    pairs = [pair for pair in envelope.pairs if pair.c is not None]
    symbols = ["diamond-open" if (pair.beyond or 0.0) > 0 else "diamond" for pair in pairs]
    marker = {"size": 9, "symbol": symbols, "color": INK, "line": {"width": 1.2, "color": INK}}
    at = {
        "x": [pair.c for pair in pairs],
        "y": [pair.n_params if quantity == N_OPT else pair.n_tokens for pair in pairs],
    }
    text = [f"{pair.sizes[0]} and {pair.sizes[1]} cross" for pair in pairs]
    figure.add_trace(go.Scatter(**at, marker=marker, text=text, hovertemplate=hover, **style), row, column)


def add_law(
    figure: go.Figure,
    row: int,
    column: int,
    law: DrawnLaw,
    color: str,
    name: str,
    dash: str = "solid",
    named: bool = False,
) -> None:
    """Its interval inside the compute that it was fitted to, and its line, dashed beyond what is believed. named: it
    stands in the legend."""
    if known := [(c, *ends) for c, _, ends in law.inside if ends is not None]:
        figure.add_trace(band(known, color).update(legendgroup=name), row=row, col=column)
    full = [at for at in law.rows if at[0] <= law.believed * (1 + 1e-9)]
    beyond = [at for at in law.rows if not full or at[0] >= full[-1][0]]
    for part, style, first in ((full, (dash, 2.6), True), (beyond, ("dash", 1.8), not full)):
        if len(part) < 2:
            continue
        line = {"color": color, "dash": style[0], "width": style[1]}
        x, y = [at[0] for at in part], [at[1] for at in part]
        trace = go.Scatter(x=x, y=y, mode="lines", line=line, name=name, legend="legend", showlegend=named and first)
        trace.update(legendgroup=name, hovertemplate=f"{name}<br>C = %{{x:.3g}} FLOP<br>%{{y:.4g}}<extra></extra>")
        figure.add_trace(trace, row=row, col=column)


def _note(figure: go.Figure, row: int, column: int, text: str) -> None:
    """Text on the left, where curves leave room: below those of the first column, which fall, above the others."""
    axis = figure.get_subplot(row, column).xaxis.plotly_name.removeprefix("xaxis")
    below = column == 1
    figure.add_annotation(
        x=0.015,
        y=0.03 if below else 0.97,
        xref=f"x{axis} domain",
        yref=f"y{axis} domain",
        xanchor="left",
        yanchor="bottom" if below else "top",
        align="left",
        text="<br>".join(textwrap.wrap(text, 44)),
        showarrow=False,
        font={"size": 11, "color": "#555555"},
        bgcolor="rgba(255,255,255,0.7)",
    )


def _legends(
    figure: go.Figure,
    shown: Sequence[str | None],
    sizes: dict[str, str],
    laws: Laws,
    bigram: float | None,
    with_envelope: bool,
) -> None:
    """Architectures beside the row of all; sizes and marks, once, beside the first row of an architecture."""
    place: dict[str, Any] = {"x": 1.01, "yanchor": "top"}
    first = next((i for i, group in enumerate(shown) if group is not None), None)
    dashed = any(isinstance(law, DrawnLaw) and law.believed < law.span[1] for law in laws.values())
    marks = []
    if dashed:
        marks.append(legend_line(NOT_BELIEVED, INK, "legend", 1.8).update(line_dash="dash"))
    if bigram is not None:
        marks.append(legend_reference(bigram))
    if None in shown:
        figure.update_layout(legend={"title": {"text": "architecture"}, "y": 1} | place)
    if first is None:
        figure.add_traces(marks, rows=1, cols=1)
        return
    dots: list[tuple[str, dict[str, Any]]] = (
        []
        if not with_envelope
        else [
            ("envelope", {"size": 8, "color": GREY, "line": {"color": GREY, "width": 1.6}}),
            ("envelope, censored", {"size": 8, "color": "white", "line": {"color": GREY, "width": 1.6}}),
            ("crossing", {"size": 9, "symbol": "diamond", "color": INK}),
        ]
    )
    traces = [legend_line(size, color, "legend2") for size, color in sizes.items()]
    traces += [go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name) for name, marker in dots]
    traces += [legend_line("law, with its interval", INK, "legend2"), *marks]
    traces.append(legend_line("range of the law", "rgba(120,120,120,0.25)", "legend2", 9))
    figure.add_traces([trace.update(legend="legend2") for trace in traces], rows=first + 1, cols=1)
    gap = GAP / (ROW_HEIGHT * len(shown))
    top = 1 - first * ((1 - gap * (len(shown) - 1)) / len(shown) + gap)
    figure.update_layout(legend2={"title": {"text": "runs by size"}, "y": top} | place)


def validation_figure(fits: StudyFits, tables: RunTable, bigram: float | None = None) -> go.Figure | None:
    """Held-out loss at every evaluated checkpoint over compute, a panel for each group of the fits, of the runs that
    these use; None without any."""
    tables = grouped(tables, fits.settings)
    runs = tables.runs[tables.runs["left_out"] == ""].set_index("run_id")
    evals = tables.evals[tables.evals["run_id"].isin(runs.index)]
    evals = evals.assign(group=evals["run_id"].map(runs["group"]))
    if evals.empty:
        return None
    archs, unit = list(dict.fromkeys(evals["group"])), fits.unit
    sizes = size_colors(tables)
    figure, places, height = arch_panels(archs)
    c, loss = evals["flops_exact"], evals["loss"]
    low, high = loss.min(), loss.max()
    if bigram is not None:
        low, high = min(low, bigram), max(high, bigram)
    figure.update_xaxes(log_axis(c.min() / 1.3, c.max() * 1.3, "training compute C (FLOP, exact)", "flop"))
    figure.update_yaxes(log_axis(low / 1.04, high * 1.04, ""))
    figure.update_yaxes(title_text=f"held-out loss ({unit})", col=1)
    for arch, place in zip(archs, places, strict=True):
        for run_id, rows in evals[evals["group"] == arch].groupby("run_id", sort=False):
            size, seed = str(rows["size"].iloc[0]), int(rows["seed"].iloc[0])
            trace = go.Scatter(
                x=rows["flops_exact"],
                y=rows["loss"],
                mode="lines+markers",
                line={"color": sizes[size], "width": 1.6 if seed == 0 else 0.8},
                marker={"size": 6 if seed == 0 else 4},
                opacity=1 if seed == 0 else 0.5,
                name=size,
                showlegend=False,
                hovertemplate=f"{run_id}<br>C = %{{x:.3g}} FLOP<br>held-out loss %{{y:.4f}} {unit}<extra></extra>",
            )
            figure.add_trace(trace, **place)
        if bigram is not None:
            reference_line(figure, place["row"], place["col"], bigram)
    _sizes_legend(figure, sizes, bigram)
    dress(figure, WIDTH, height)
    return figure


def _sizes_legend(figure: go.Figure, sizes: Mapping[str, str], bigram: float | None) -> None:
    for size, color in sizes.items():
        figure.add_trace(legend_line(size, color, "legend"), row=1, col=1)
    if bigram is not None:
        figure.add_trace(legend_reference(bigram), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "size"}, "x": 1.01, "y": 1})
