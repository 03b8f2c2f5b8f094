"""Variants after equal tokens: the report's table, figure and notes, from fits.json only."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, dress
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import number, shown, signed
from analysis.report.figures import WIDTH
from analysis.report.noise import listed
from arch.amounts import count, counted

ROW, PANEL = 24, 62  # pixels: a variant, and what a panel takes beside
LEFT = 250  # for the variants' names


def _shown(fits: StudyFits) -> list[dict[str, Any]]:
    return [one for one in fits.variants["families"] if one["rows"]]


def _title(family: dict[str, Any]) -> str:
    return f"{name_of(family['arch'])}, {family['at']}"


def is_of_variants(fits: StudyFits) -> bool:
    """Whether the study compares variants alone, and has no law of size."""
    return bool(_shown(fits)) and not any(one.fitted for one in fits.groups)


def variant_lines(fits: StudyFits) -> list[str]:
    """Which variant has the lowest loss, a line a family, with the variants that noise does not tell it from, of those
    that are compared with it; none where laws of size were fitted."""
    lines = list[str]()
    for family in _shown(fits) if is_of_variants(fits) else ():
        first, best = family["rows"][0], min(family["rows"], key=lambda row: row["loss"])
        where = f"after {count(family['n_tokens'])} tokens: {best['loss']:.4f} {fits.unit}"
        against = "" if best is first else f", {_difference(best)} against {first['variant']}"
        lines.append(f"{_title(family)}: {best['variant']} has the lowest held-out loss {where}{against}.")
        others = family["rows"][1:] if best is first else [best]
        alike = [one for one in others if _told_apart(one, fits.variants["noise"] is not None) == "no"]
        if alike:
            names = listed([one["variant"] for one in alike] if best is first else [first["variant"]])
            lines[-1] += f" Seed noise does not tell it from {names}."
    return lines


def variant_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row a variant: its loss, and how it differs from the first one of its family."""
    noise, rows = fits.variants["noise"], []
    for family in _shown(fits):
        for index, one in enumerate(family["rows"]):
            rows.append(
                {
                    "family": "" if index else f"{_title(family)}, {count(family['n_tokens'])} tokens",
                    "variant": one["variant"],
                    "parameters": number(count(one["n_params"]), one["n_params"]),
                    "C (FLOP, exact)": number(power_of_ten(one["flops"]), one["flops"]),
                    "held-out loss": shown(one["loss"], ".4f"),
                    "above the first": _difference(one) if index else "",
                    "told apart": _told_apart(one, noise is not None) if index else "",
                }
            )
    return rows


def _difference(row: dict[str, Any]) -> str:
    return signed(row["more"], ".2%", (row["low"], row["high"]))


def _told_apart(row: dict[str, Any], seeds: bool) -> str:
    if not seeds:
        return "not known: no seeds"
    if row["low"] <= 0 <= row["high"]:
        return "no"
    return "lower loss" if row["high"] < 0 else "higher loss"


def variant_notes(fits: StudyFits) -> list[str]:
    """What the intervals are, and which families have no rows."""
    told = fits.variants
    lines = [
        f"{_title(one)}: {counted(len(one['labels']), 'variant is', 'variants are')} not compared: {one['reason']}."
        for one in told["families"]
        if one["reason"]
    ]
    if not _shown(fits):
        return lines
    if told["noise"] is None:
        one = "One seed that all variants have"
        lines.insert(0, f"{one}: nobody knows whether noise makes these differences. Two seeds would tell.")
    else:
        noise = told["noise"]
        lines.insert(
            0,
            f"Intervals ({fits.settings.level:.0%}, all comparisons of a family at once): noise between seeds, "
            f"{noise['s']:.2%} of the loss ({noise['df']} degrees of freedom), with seeds paired. Learning rates are "
            f"as the runs had them: a variant may want another.",
        )
        if alone := [_title(one) for one in _shown(fits) if len(one["seeds"]) == 1]:
            lines.append(f"One seed that all variants have: {'; '.join(alone)}. The noise is that of the others.")
    return lines


def variant_figure(fits: StudyFits) -> go.Figure | None:
    """By how much each variant's loss lies above the first one's, a panel a family; None without any."""
    shown = _shown(fits)
    if not shown:
        return None
    heights = [len(one["rows"]) * ROW + PANEL for one in shown]
    figure = make_subplots(
        len(shown),
        1,
        subplot_titles=[f"<b>{_title(one)}</b>" for one in shown],
        row_heights=heights,
        shared_xaxes=True,
        vertical_spacing=PANEL / sum(heights) if len(shown) > 1 else 0,
    )
    colors = arch_colors(list(dict.fromkeys(one["arch"] for one in shown)))
    for place, family in enumerate(shown, start=1):
        rows = family["rows"]
        ends = [
            None
            if row["low"] is None
            else {"more": 100 * (row["high"] - row["more"]), "less": 100 * (row["more"] - row["low"])}
            for row in rows
        ]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [end["more"] if end else 0 for end in ends],
            "arrayminus": [end["less"] if end else 0 for end in ends],
            "thickness": 1.6,
        }
        figure.add_trace(
            go.Scatter(
                x=[100 * row["more"] for row in rows],
                y=[row["variant"] for row in rows],
                error_x=error,
                mode="markers",
                marker={"size": 9, "color": colors[family["arch"]]},
                customdata=[[row["loss"], row["n_params"]] for row in rows],
                hovertemplate="%{y}<br>%{x:+.2f}%, loss %{customdata[0]:.4f} "
                f"{fits.unit}<br>%{{customdata[1]:,}} parameters<extra></extra>",
                showlegend=False,
            ),
            row=place,
            col=1,
        )
        figure.add_vline(0.0, line={"color": GREY, "dash": "dash", "width": 1.3}, row=place, col=1)
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(ticksuffix="%")
    figure.update_xaxes(title_text="held-out loss above the first variant's", row=len(shown), col=1)
    dress(figure, WIDTH, sum(heights) + 60, l=LEFT, r=60)
    return figure
