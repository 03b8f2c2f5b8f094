"""Architectures compared, and what runs wasted: the report's figure, tables and notes, from fits.json only."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from analysis.figures.axes import log_axis, power_of_ten
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GREY, SHADE, dress, fade
from analysis.fits.study_fits import StudyFits, Waste, WrongChoices
from analysis.pages.cells import number, shown
from analysis.report.figures import WIDTH

SHORT_COLUMNS = ("pair", "compute for the same loss", "under every count")  # of `comparison_rows`, for a terminal
HEIGHT = 380
MOST_WASTED = 8  # runs in the table
WORTH = 0.005  # share of a run's compute; less is not worth a row


def main_view(comparison: dict[str, Any]) -> dict[str, Any] | None:
    """The comparison under the study's own counts; None where it could not be made."""
    found = next(iter(comparison["views"].values()), None)
    return found if found is not None and found["reason"] is None else None


def comparison_figure(
    comparison: dict[str, Any], conventions: dict[str, str], doubted: Collection[str] = ()
) -> go.Figure | None:
    """How many times the best architecture's compute the others need for its loss, with the intervals of the gains;
    dashed: of `doubted`, groups whose own law is not believed."""
    view = main_view(comparison)
    if view is None:
        return None
    best, colors, dash = view["archs"][0], arch_colors(view["archs"]), dashes(view["archs"])
    figure, ends = go.Figure(), [1.0]
    for pair in view["pairs"]:
        if pair["reference"] != best:
            continue
        rows = [
            (c, 1 / gain, 1 / high, 1 / low)
            for c, gain, low, high in zip(*(pair["curve"][key] for key in ("c", "gain", "low", "high")), strict=True)
            if None not in (gain, low, high)
        ]
        if not rows:
            continue
        c, times, least, most = (list(column) for column in zip(*rows, strict=True))
        color = colors[pair["other"]]
        ends += [min(least), max(most)]
        band = {"fill": "toself", "fillcolor": fade(color, 0.15), "line": {"width": 0}, "mode": "lines"}
        figure.add_trace(go.Scatter(x=c + c[::-1], y=least + most[::-1], **band, hoverinfo="skip", showlegend=False))
        hover = name_of(pair["other"]) + "<br>C %{x:.3g}<br>%{y:.3f} times<extra></extra>"
        is_doubted = pair["other"] in doubted
        line = {"color": color, "width": 2.4, "dash": "dash" if is_doubted else dash[pair["other"]]}
        name = name_of(pair["other"]) + (" (law not believed)" if is_doubted else "")
        figure.add_trace(go.Scatter(x=c, y=times, mode="lines", line=line, name=name, hovertemplate=hover))
    if not figure.data:
        return None
    low, high = view["range"]
    last = view["beyond"] or high
    if view["beyond"]:
        figure.add_vrect(high, last, fillcolor=SHADE, line_width=0, layer="below")
    figure.add_hline(1.0, line={"color": GREY, "dash": "dash", "width": 1.3})
    figure.update_xaxes(**log_axis(low, last, f"C of {name_of(best)} (FLOP, {conventions['C']})", "flop"))
    bounds = (max(min(ends) / 1.1, 0.05), min(max(ends) * 1.1, 20.0))
    figure.update_yaxes(**log_axis(*bounds, f"compute for the same loss, times {name_of(best)}'s"))
    figure.update_layout(legend={"x": 1.01, "y": 1})
    dress(figure, WIDTH, HEIGHT)
    return figure


def pair_rows(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row a pair, for a terminal: the compute for the same loss, and who is ahead under every count."""
    return [{key: row[key] for key in SHORT_COLUMNS} for row in comparison_rows(dict(comparison))]


def comparison_rows(comparison: dict[str, Any]) -> list[dict[str, str]]:
    """A row a pair, at the end of the range that all reached: the gain with the interval that the verdict rests on,
    which holds for all pairs at once; what every way of counting says, and whether the verdict stands."""
    view = main_view(comparison)
    if view is None:
        return []
    judged = {(row["reference"], row["other"]): row for row in comparison["pairs"] if not row["beyond"]}
    rows = []
    for pair in view["pairs"]:
        one, other = pair["reference"], pair["other"]
        row = next(row for row in pair["gains"] if row["c"] == view["range"][1])
        verdict = judged.get((one, other)) or judged[other, one]
        rows.append(
            {
                "pair": f"{name_of(other)} against {name_of(one)}",
                "compute for the same loss": _times(row),
                "ahead (share of draws)": f"{name_of(one)} {_share(1 - row['p_other_ahead'])}",
                "under every count": f"{name_of(verdict['ahead'])} is ahead"
                if verdict["stands"]
                else _disagree(verdict),
                "laws cross at C (FLOP)": _crossing(pair["crossing"]),
                "tokens for the same loss": _savings(pair["savings"]),
            }
        )
    return rows


def comparison_notes(comparison: dict[str, Any], level: float) -> list[str]:
    """What belongs under the table, in short lines."""
    view = main_view(comparison)
    if view is None:
        reason = comparison["reason"] or next((one["reason"] for one in comparison["views"].values()), None)
        return [f"Architectures are not compared by their surfaces: {reason}."]
    noise = view["noise"]
    shared = "one E shared by all" if view["shared_e"] else "an E of its own for each, as the test of one E rejects it"
    lines = [
        f"L = E + A / N^alpha + B / D^beta fitted to all architectures at once, {shared} (p = {view['p_one_e']:.2g}). "
        f"Compute is that along each architecture's own optimal frontier.",
        f"Intervals ({level:.0%}, nominal): refits to redrawn noise, which runs of one size that read the same batches "
        f"share ({noise['cell']:.2%} of the loss) or not (runs {noise['run']:.2%}, points {noise['point']:.2%}). "
        f"They hold for all pairs and budgets at once; those of the figure for one at a time.",
        "An architecture is ahead where it is so under every count: " + "; ".join(comparison["views"]) + ".",
    ]
    if view["beyond_reason"]:
        lines.append(f"Not beyond {power_of_ten(view['range'][1])} FLOP: {view['beyond_reason']}.")
    failed = [f"{name} ({one['reason']})" for name, one in comparison["views"].items() if one["reason"]]
    return lines + ([f"Without: {'; '.join(failed)}."] if failed else [])


def doubted_surfaces(fits: StudyFits) -> list[str]:
    """The groups whose parametric law is not believed."""
    return [law.group for law in fits.laws if law.approach == "parametric" and law.verdict and law.verdict.reach == 0]


def waste_notes(fits: StudyFits) -> list[str]:
    """What belongs under the tables."""
    n_runs, shown = sum(map(len, fits.waste.values())), len(waste_table(fits.waste))
    doubted = [name_of(group) for group in doubted_surfaces(fits)]
    return ([f"Not to be relied on where the fitted surface is not: {', '.join(doubted)}."] if doubted else []) + [
        "The compute of a run beyond the least that its architecture's fitted surface needs for the same loss: what "
        "its size and its number of tokens cost, not its learning rate. Runs off the optimum are there to find it.",
        "C is that of a run's last fitted point: less than the plan's where losses are smoothed, as these end before.",
        f"{shown} of {n_runs} fitted runs are shown, those that waste most; all are in results/fits.json.",
    ]


def choice_table(choices: Mapping[str, WrongChoices]) -> list[dict[str, str]]:
    """A row an architecture: the share of its largest compute that a wrong size or a higher loss wastes."""
    rows = []
    for arch, one in choices.items():
        row = {"architecture": name_of(arch), "at C (FLOP)": number(power_of_ten(one.c), one.c)}
        row |= {f"{size.amount:g} N_opt": shown(size.share.value, ".1%") for size in one.sizes}
        row |= {f"loss {loss.amount:.1%} higher": shown(loss.share.value, ".1%") for loss in one.losses}
        rows.append(row)
    return rows


def waste_table(waste: Mapping[str, Sequence[Waste]]) -> list[dict[str, str]]:
    """The runs whose size and length cost most beyond the optimum of their architecture's surface."""
    rows = sorted((row for found in waste.values() for row in found), key=lambda row: -(row.share.value or 0.0))
    return [
        {
            "run": row.run_id,
            "C (FLOP)": number(power_of_ten(row.c), row.c),
            "wasted": shown(row.share.value, ".1%", row.share.ends),
            "wasted FLOP": shown(row.flops, ".2g"),
            "hours": shown(row.hours, ".2g"),
        }
        for row in rows[:MOST_WASTED]
        if (row.share.value or 0.0) >= WORTH
    ]


def _times(row: dict[str, Any]) -> str:
    if row["gain"] is None:
        return "never reached"
    return _of_times(1 / row["gain"], _inverse(row["joint"]))


def _disagree(verdict: dict[str, Any]) -> str:
    found = [name for name in verdict["by_view"].values() if name]
    if not found:
        return "not told apart"
    if len(set(found)) > 1:
        return "depends on the count"
    return f"{name_of(found[0])} is ahead under {len(found)} of {len(verdict['by_view'])}"


def _share(value: float) -> str:
    return "> 99%" if value > 0.99 else f"{value:.0%}"


def _crossing(one: dict[str, Any]) -> str:
    if one["c"] is None:
        return "nowhere near"
    ends = one["interval"]
    if ends is None or None in ends:
        note = f"in {one['share']:.0%} of draws"
        return number(f"{power_of_ten(one['c'])} ({note})", one["c"], note=note)
    return number(f"{power_of_ten(one['c'])} [{power_of_ten(ends[0])}, {power_of_ten(ends[1])}]", one["c"], ends)


def _savings(one: dict[str, Any]) -> str:
    if isinstance(one["value"], str):
        return one["value"]
    return _of_times(1 / one["value"], _inverse(one["interval"]))


def _of_times(value: float, ends: list[float] | None) -> str:
    return number(f"{value:.3g} times{_between(ends, '.3g')}", value, ends)


def _inverse(ends: list[float | None] | None) -> list[float] | None:
    if ends is None or ends[0] is None or ends[1] is None:
        return None
    return [1 / end if end > 0 else math.inf for end in (ends[1], ends[0])]  # 0 times the tokens: never reached


def _between(ends: list[float] | None, form: str) -> str:
    return "" if ends is None else f" [{', '.join('∞' if math.isinf(end) else format(end, form) for end in ends)}]"
