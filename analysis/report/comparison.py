"""Architectures compared by the compute that they need for the same loss: the report's figure, table and notes."""

from __future__ import annotations

import math
from collections.abc import Collection

import plotly.graph_objects as go

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, SHADE, dress, fade
from analysis.fits.pairwise import BETTER, UNDECIDED, UNKNOWN, WORSE, Compared, Comparison, Crossing, Pair
from analysis.fits.study_fits import LowestLoss
from analysis.pages.cells import number
from analysis.report.figures import WIDTH

SHORT_COLUMNS = ("pair", "compute for the same loss", "verdict")  # of `comparison_rows`, for a terminal
HEIGHT = 380
NEVER = "never reached"


def comparison_figure(
    comparison: Compared, conventions: dict[str, str], doubted: Collection[str] = ()
) -> go.Figure | None:
    """How many times the best architecture's compute the others need for its loss, with intervals that hold for all of
    them at once; dashed: of `doubted`, groups whose own law is not believed."""
    view = comparison.main
    if view is None:
        return None
    best, colors, dash = view.archs[0], arch_colors(view.archs), dashes(view.archs)
    figure, ends = go.Figure(), [1.0]
    for other in view.archs[1:]:
        rows = [pair for pair in view.compute if (pair.other, pair.reference) == (other, best) and pair.ratio.ends]
        if not rows:
            continue
        c, times = [pair.at for pair in rows], [pair.ratio.value for pair in rows]
        least, most = zip(*(pair.ratio.ends or (0.0, 0.0) for pair in rows), strict=True)
        ends += [*least, *most]
        band = {"fill": "toself", "fillcolor": fade(colors[other], 0.15), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=c + c[::-1], y=[*least, *most[::-1]], **band, hoverinfo="skip", showlegend=False))
        name = name_of(other) + (" (law not believed)" if other in doubted else "")
        line = {"color": colors[other], "width": 2.4, "dash": "dash" if other in doubted else dash[other]}
        hover = name_of(other) + "<br>C %{x:.3g}<br>%{y:.3f} times<extra></extra>"
        figure.add_trace(go.Scatter(x=c, y=times, mode="lines+markers", line=line, name=name, hovertemplate=hover))
    if not figure.data:
        return None
    low, high = view.range
    last = view.beyond or high
    if view.beyond:
        figure.add_vrect(high, last, fillcolor=SHADE, line_width=0, layer="below")
    figure.add_hline(1.0, line={"color": GREY, "dash": "dash", "width": 1.3})
    figure.update_xaxes(**log_axis(low, last, f"C of {name_of(best)} (FLOP, {conventions['C']})", "flop"))
    bounds = (max(min(ends) / 1.1, 0.05), min(max(ends) * 1.1, 20.0))
    figure.update_yaxes(**log_axis(*bounds, f"compute for the same loss, times {name_of(best)}'s"))
    figure.update_layout(legend={"x": 1.01, "y": 1})
    dress(figure, WIDTH, HEIGHT)
    return figure


def comparison_rows(comparison: Compared, losses: LowestLoss | None = None) -> list[dict[str, str]]:
    """A row a pair: the compute for the same loss at the end of the range that all reached and beyond it, and the
    verdict on the pair. losses: measured at equal compute, which the verdict rests on too (None: of no study)."""
    if comparison.main is None:
        return []
    rows = []
    for other, reference in comparison.main.pairs:
        loss = None if losses is None else losses.against(other, reference)
        pair = comparison.pair(other, reference, loss)
        rows.append(
            {
                "pair": f"{name_of(other)} against {name_of(reference)}",
                "compute for the same loss": times_cell(comparison.main.at(other, reference)),
                "at ten times that compute": times_cell(comparison.main.at(other, reference, beyond=True)),
                "verdict": verdict_cell(pair),
                "laws cross at C (FLOP)": _crossing(pair.crossing),
            }
        )
    return rows


def pair_rows(comparison: Compared, losses: LowestLoss | None = None) -> list[dict[str, str]]:
    """`comparison_rows` for a terminal."""
    return [{key: row[key] for key in SHORT_COLUMNS} for row in comparison_rows(comparison, losses)]


def comparison_notes(comparison: Compared, level: float) -> list[str]:
    """What belongs under the table, in short lines."""
    view = comparison.main
    if view is None:
        reason = comparison.reason or next(iter(comparison.views.values())).reason
        return [f"Architectures are not compared by their surfaces: {reason}."]
    e = "one E shared by all" if view.shared_e else "an E of its own for each, as the test of one E rejects it"
    lines = [
        f"L = E + A / N^alpha + B / D^beta fitted to all architectures at once, {e} (p = {view.p_shared_e:.2g}). "
        f"Compute is that along each architecture's own optimal frontier; intervals ({level:.0%}, nominal) hold for "
        f"all pairs and budgets at once. By compute one is worse where it is so under every count: "
        f"{'; '.join(comparison.views)}."
    ]
    if view.beyond_reason:
        lines.append(f"Not beyond {power_of_ten(view.range[1])} FLOP: {view.beyond_reason}.")
    failed = [f"{name} ({other.reason})" for name, other in comparison.views.items() if other.reason]
    return lines + ([f"Without: {'; '.join(failed)}."] if failed else [])


def verdict_cell(pair: Pair) -> str:
    """The verdict on a pair; of one that is undecided, where some counts of compute decide it."""
    if pair.verdict == UNDECIDED and (some := verdict_of_some(pair)):
        return f"{UNDECIDED}: {some[0]} under {some[1]} of {len(pair.compute)} counts"
    return pair.verdict


def verdict_of_some(pair: Pair) -> tuple[str, int] | None:
    """Where all counts of compute together are undecided: the verdict that some of them have, and how many."""
    counts = [UNKNOWN if compared is None else compared.verdict for compared in pair.compute.values()]
    verdict = next((verdict for verdict in (WORSE, BETTER) if verdict in counts), None)
    return None if verdict is None or pair.by_count != UNDECIDED else (verdict, counts.count(verdict))


def times_cell(compared: Comparison | None) -> str:
    """How many times the compute of the other one of a pair is needed, with its interval; "" where it is not known."""
    if compared is None:
        return ""
    value, ends = compared.ratio.value, compared.ratio.interval
    if value is None:
        return NEVER
    if ends is None:
        return number(f"{value:.3g} times", value)
    low, high = ("∞" if math.isinf(end) else f"{end:.3g}" for end in ends)
    return number(f"{value:.3g} times [{low}, {high}]", value, ends)


def _crossing(crossing: Crossing) -> str:
    c = crossing.c
    if c.value is None:
        return "nowhere near"
    if c.ends is None:
        note = f"in {crossing.share:.0%} of draws"
        return number(f"{power_of_ten(c.value)} ({note})", c.value, note=note)
    return number(f"{power_of_ten(c.value)} [{power_of_ten(c.ends[0])}, {power_of_ten(c.ends[1])}]", c.value, c.ends)
