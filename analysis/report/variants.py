"""Variants after equal tokens or compute: a section of the report, from fits.json only."""

from __future__ import annotations

from functools import partial

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, WIDTH, dress
from analysis.fits.pairwise import UNDECIDED
from analysis.fits.study_fits import StudyFits, VariantFamily
from analysis.fits.variants import seeds_that_halve
from analysis.pages.cells import number, shown
from analysis.report.section import Section, Table
from analysis.report.words import listed, more_cell
from arch.amounts import count, counted

ROW, PANEL = 24, 62  # pixels: a variant, and what a panel takes beside
LEFT = 250  # for the variants' names
BRIEF = ("family", "variant", "held-out loss", "above the first", "verdict")


def variants_section(fits: StudyFits) -> Section:
    return Section(
        "Variants after equal tokens or compute",
        figures={"variants": partial(variant_figure, fits)},
        tables=[Table("variants", variant_rows(fits), brief=BRIEF)],
        notes=variant_notes(fits),
    )


def _compared(fits: StudyFits) -> list[VariantFamily]:
    return [family for family in fits.variants.families if family.variants]


def _title(family: VariantFamily) -> str:
    return f"{name_of(family.arch)}, {family.at}"


def _after(family: VariantFamily) -> str:
    return f"{count(family.n_tokens)} tokens" if family.n_tokens else f"{power_of_ten(family.flops)} FLOP"


def is_of_variants(fits: StudyFits) -> bool:
    """Whether the study compares variants alone, and has no law of size."""
    return bool(_compared(fits)) and not any(group.fitted for group in fits.groups)


def variant_lines(fits: StudyFits) -> list[str]:
    """Which variant has the lowest loss, a line a family, with the variants of which it is not known to differ, of
    those that it is compared with; none where laws of size were fitted."""
    lines = list[str]()
    for family in _compared(fits) if is_of_variants(fits) else ():
        first, best = family.variants[0], min(family.variants, key=lambda variant: variant.loss)
        where = f"after {_after(family)}: {best.loss:.4f} {fits.unit}"
        against = f", {more_cell(best.against_first, '.2%')} against {first.name}" if best.against_first else ""
        lines.append(f"{_title(family)}: {best.name} has the lowest held-out loss {where}{against}.")
        others = [best] if best.against_first else family.variants[1:]
        undecided = [
            variant for variant in others if variant.against_first and variant.against_first.verdict == UNDECIDED
        ]
        if undecided:
            names = listed([first.name] if best.against_first else [variant.name for variant in undecided])
            more = seeds_that_halve(family, fits.variants, fits.settings.level)
            lines[-1] += (
                f" It is not distinguishable from {names}: the difference is within seed noise. "
                f"{counted(more, 'more seed')} of each variant would make the intervals half as wide."
            )
    return lines


def variant_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row a variant: its loss, and how it differs from the first one of its family."""
    return [
        {
            "family": "" if i else f"{_title(family)}, {_after(family)}",
            "variant": variant.name,
            "parameters": number(count(variant.n_params), variant.n_params),
            "C (FLOP, exact)": number(power_of_ten(variant.flops), variant.flops),
            "held-out loss": shown(variant.loss, ".4f"),
            "above the first": more_cell(variant.against_first, ".2%"),
            "verdict": variant.against_first.verdict if variant.against_first else "",
        }
        for family in _compared(fits)
        for i, variant in enumerate(family.variants)
    ]


def variant_notes(fits: StudyFits) -> list[str]:
    """What the intervals are, and which families have no rows."""
    variants = fits.variants
    lines = [
        f"{_title(family)}: {counted(len(family.labels), 'variant is', 'variants are')} not compared: {family.reason}."
        for family in variants.families
        if family.reason
    ]
    if not _compared(fits):
        return lines
    if variants.s is None:
        note = "One seed that all variants have: nobody knows whether noise makes these differences."
        return [f"{note} Two seeds would tell.", *lines]
    lines.insert(
        0,
        f"Intervals ({fits.settings.level:.0%}, all comparisons of a family at once): noise between seeds, "
        f"{variants.s:.2%} of the loss ({variants.df} degrees of freedom), with seeds paired. Learning rates are "
        f"as the runs had them: a variant may want another.",
    )
    if alone := [_title(family) for family in _compared(fits) if len(family.seeds) == 1]:
        lines.append(f"One seed that all variants have: {'; '.join(alone)}. The noise is that of the others.")
    return lines


def variant_figure(fits: StudyFits) -> go.Figure | None:
    """By how much each variant's loss lies above the first one's, a panel a family; None without any."""
    families = _compared(fits)
    if not families:
        return None
    heights = [len(family.variants) * ROW + PANEL for family in families]
    figure = make_subplots(
        len(families),
        1,
        subplot_titles=[f"<b>{_title(family)}</b>" for family in families],
        row_heights=heights,
        shared_xaxes=True,
        vertical_spacing=PANEL / sum(heights) if len(families) > 1 else 0,
    )
    colors = arch_colors(list(dict.fromkeys(family.arch for family in families)))
    for place, family in enumerate(families, start=1):
        more = [variant.against_first.more if variant.against_first else None for variant in family.variants]
        values = [(estimate and estimate.value) or 0.0 for estimate in more]
        ends = [(estimate and estimate.ends) or (value, value) for estimate, value in zip(more, values, strict=True)]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [100 * (high - value) for (_, high), value in zip(ends, values, strict=True)],
            "arrayminus": [100 * (value - low) for (low, _), value in zip(ends, values, strict=True)],
            "thickness": 1.6,
        }
        trace = go.Scatter(
            x=[100 * value for value in values],
            y=[variant.name for variant in family.variants],
            error_x=error,
            mode="markers",
            marker={"size": 9, "color": colors[family.arch]},
            customdata=[[variant.loss, variant.n_params] for variant in family.variants],
            hovertemplate="%{y}<br>%{x:+.2f}%, loss %{customdata[0]:.4f} "
            f"{fits.unit}<br>%{{customdata[1]:,}} parameters<extra></extra>",
            showlegend=False,
        )
        figure.add_trace(trace, row=place, col=1)
        figure.add_vline(0.0, line={"color": GREY, "dash": "dash", "width": 1.3}, row=place, col=1)
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(ticksuffix="%")
    figure.update_xaxes(title_text="held-out loss above the first variant's", row=len(families), col=1)
    dress(figure, WIDTH, sum(heights) + 60, l=LEFT, r=60)
    return figure
