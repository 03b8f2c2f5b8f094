"""What a sweep says as rows and lines of text, and its page: loss against rate with a panel for each architecture and
length, the laws and every cell."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import log_axis
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, dress, legend_line, size_scale
from analysis.pages.html import render
from arch.amounts import count, counted, counted_of
from data.files import write_bytes
from scaling.study.rate_law import WORDS

from .cell import Cell
from .law import APART, FAR, LEVEL, LITTLE, RatesFit

TEMPLATE = Path(__file__).with_name("rates.html.j2")
WIDTH, HEIGHT = 1040, 420  # pixels


def cell_rows(fit: RatesFit) -> list[dict[str, str]]:
    """A row for each cell. "times or over" is the factor of one standard error, the last column why there is no best
    rate."""
    rows = []
    for cell in fit.cells:
        row = {"architecture": name_of(cell.arch), "size": cell.size, "tokens": count(cell.n_tokens)}
        row |= {"batch": f"{cell.batch_tokens:,}", "rates": f"{cell.rates[0]:g} to {cell.rates[-1]:g}"}
        row |= {"runs": str(cell.n_runs), "left out": str(cell.n_lost) if cell.n_lost else ""}
        if cell.fitted is not None and fit.noise:
            row["best rate"] = f"{math.exp(cell.fitted.log_rate):.3g}"
            row["times or over"] = f"{math.exp(fit.noise[cell.arch].s * cell.fitted.unit_se):.3g}"
        rows.append(row | {"not used, because": cell.reason})
    return rows


def law_rows(fit: RatesFit) -> list[dict[str, str]]:
    """A row for each law: exponents, the cost of a rate twice too high or low at the middle of the sizes swept, and the
    cost of the other sizes' law at a size left out."""
    rows = []
    for arch, law in fit.laws.items():
        row = {"architecture": name_of(arch), "law": law.formula}
        for place, term in enumerate(law.terms, start=1):
            value, variance = law.coefficients[place], law.covariance[place][place]
            row[f"exponent of {WORDS[term]}"] = f"{value:.2f} ± {math.sqrt(variance):.2f}"
        for name, factor in (("twice too high", 2.0), ("half", 0.5)):
            excess, low, high = law.cost_of(factor, law.curvature.n_params)
            row[name] = f"{excess:.1%} [{low:.1%}, {high:.1%}]"
        worst = max(law.left_out_size, key=lambda cell: cell.excess, default=None)
        if worst is not None:
            text = f"{worst.excess:.2%} [{worst.low:.2%}, {worst.high:.2%}]"
            most = max(cell.high for cell in law.left_out_size)
            text += f"; another up to {most:.2%}" if most > worst.high else ""
            row["a size left out costs, in the worst cell"] = text
        if law.left_out_far:
            row[f"at {FAR:g} times the tokens, at most"] = f"{max(cell.high for cell in law.left_out_far):.2%}"
        row["chance of the misfit"] = f"{law.misfit.p:.2g}"
        rows.append(row)
    return rows


def verdict(fit: RatesFit) -> list[str]:
    """What the sweep says, in lines: laws, architectures without a law, what was left out."""
    lines = []
    if fit.laws:
        lines.append(f"laws of the learning rate: {', '.join(name_of(arch) for arch in fit.laws)}")
    lines += [f"no law of {name_of(arch)}: {why}" for arch, why in fit.without_law.items()]
    lines += [_slopes(fit)] if fit.alike else []
    if fit.alike or any(law.left_out_far for law in fit.laws.values()):
        lines += _far(fit)
    for arch, law in fit.laws.items():
        if law.misfit.p < 0.05:
            lines.append(
                f"{name_of(arch)}: cells lie further from the law than their errors say (chance "
                f"{law.misfit.p:.2g}): the intervals hold this scatter"
            )
    if fit.n_lost:
        lines.append(
            f"{counted(fit.n_lost, 'run')} diverged or hardly learned: left out, with the other seeds of their rates"
        )
    if fit.unused:
        lines.append(
            f"{counted_of(len(fit.unused), len(fit.cells), 'cell', 'has', 'have')} no best rate: "
            f"{', '.join(map(_short, fit.unused))}"
        )
    if fit.noise:
        lines.append(f"noise of a run: {_noise(fit)}")
    return lines


def _noise(fit: RatesFit) -> str:
    """Of architectures that share it in one place."""
    archs_of: dict[tuple[float, float], list[str]] = {}
    for arch, noise in fit.noise.items():
        archs_of.setdefault((noise.s, noise.df), []).append(arch)
    return "; ".join(
        (f"{', '.join(map(name_of, archs))}: " if len(archs_of) > 1 else "")
        + f"{s:.2%} of its loss ({df:g} degrees of freedom)"
        for (s, df), archs in archs_of.items()
    )


def _slopes(fit: RatesFit) -> str:
    """Which slopes the architectures share, in a line."""
    slopes = [
        f"{WORDS[term]} {'shared' if chance >= APART else 'of each its own'} (chance {chance:.2g} that they differ so "
        f"much where they are equal)"
        for term, chance in fit.alike.items()
    ]
    return f"slopes in {'; in '.join(slopes)}"


def _far(fit: RatesFit) -> list[str]:
    """What the rate of a size left out costs at FAR times the tokens of the cells that predict it: a line an
    architecture, and one for all of which no such cell can be judged."""
    what = f"at {FAR:g} times the tokens of all other sizes a size left out"
    lines, unjudged = [], []
    for arch, law in fit.laws.items():
        worst = max(law.left_out_far, key=lambda cell: cell.high, default=None)
        if worst is None:
            unjudged.append(name_of(arch))
            continue
        shown = "at most" if worst.high <= LITTLE else "not shown to cost at most"
        lines.append(
            f"{name_of(arch)}: {what} loses {worst.excess:.2%} by its law's rate in the worst of "
            f"{counted(len(law.left_out_far), 'cell')}, upper bound {worst.high:.2%} ({worst.size} on "
            f"{count(worst.n_tokens)} tokens): {shown} {LITTLE:.1%}"
        )
    if unjudged:
        lines.append(
            f"{', '.join(unjudged)}: {what} cannot be judged: no best rate is known there, or the short runs of the "
            f"others give no law: sweep two lengths that are {FAR:g} times shorter"
        )
    return lines


def _short(cell: Cell) -> str:
    return f"{cell.arch}/{cell.size} at {count(cell.n_tokens)} tokens"


def valleys(fit: RatesFit) -> go.Figure:
    """ln loss above each cell's lowest point, in percent, against the rate, a panel an architecture; lines of a size's
    shortest runs are solid, of longer ones dotted. A circle is a rate that the parabola is fitted to, a cross is a rate
    left out; the star is the best rate."""
    archs = list(dict.fromkeys(cell.arch for cell in fit.cells))
    titles = [f"<b>{name_of(arch)}</b>" for arch in archs]
    figure = make_subplots(1, len(archs), subplot_titles=titles, shared_yaxes=True)
    sizes = {cell.size: cell.n_params for cell in fit.cells}
    colors = size_scale(sorted(sizes, key=lambda size: sizes[size]))
    for column, arch in enumerate(archs, start=1):
        shortest: dict[str, int] = {}
        for cell in sorted((cell for cell in fit.cells if cell.arch == arch), key=lambda cell: cell.n_tokens):
            dash = "solid" if shortest.setdefault(cell.size, cell.n_tokens) == cell.n_tokens else "dot"
            for trace in _traces(cell, colors[cell.size], dash):
                figure.add_trace(trace, row=1, col=column)
    rates = [rate for cell in fit.cells for rate in cell.rates]
    figure.update_xaxes(**log_axis(min(rates) / 1.15, max(rates) * 1.15, "learning rate"))
    figure.update_yaxes(range=[-0.5, 10], ticksuffix=" %")
    figure.update_yaxes(title_text="loss above the lowest", col=1)
    for size, color in colors.items():
        figure.add_trace(legend_line(f"{size} ({count(sizes[size])})", color, "legend"))
    dress(figure, WIDTH, HEIGHT)
    return figure


def _traces(cell: Cell, color: str, dash: str) -> list[go.Scatter]:
    tried = [row for row in zip(cell.rates, cell.losses, cell.used, strict=True) if math.isfinite(row[1])]
    if not tried:
        return []
    rates, losses, used = (np.array(column) for column in zip(*tried, strict=True))
    fitted, log_loss = cell.fitted, np.log(losses)
    bottom = log_loss.min()
    if fitted is not None:  # the curve's lowest point: the mean over the rates that it is fitted to, less the curve
        bottom = (log_loss - fitted.above(np.log(rates) - fitted.log_rate))[used].mean()
    name = f"{cell.size}, {count(cell.n_tokens)} tokens"
    marker = {"color": color, "size": 7, "symbol": np.where(used, "circle", "x").tolist()}
    above = 100 * np.expm1(log_loss - bottom)
    points = go.Scatter(x=rates, y=above, mode="markers", marker=marker, name=name, showlegend=False)
    if fitted is None:
        return [points]
    x = np.linspace(math.log(rates[used].min()), math.log(rates[used].max()), 60)
    drawn = go.Scatter(
        x=np.exp(x),
        y=100 * np.expm1(fitted.above(x - fitted.log_rate)),
        mode="lines",
        line={"color": color, "width": 1.6, "dash": dash},
        name=name,
        showlegend=False,
        hoverinfo="skip",
    )
    star = go.Scatter(
        x=[math.exp(fitted.log_rate)],
        y=[0],
        mode="markers",
        marker={"color": color, "size": 12, "symbol": "star", "line": {"color": "white", "width": 1}},
        name=f"{name}: best",
        showlegend=False,
    )
    return [points, drawn, star]


def laws(fit: RatesFit) -> go.Figure:
    """Best rates against N at each cell's own tokens and batch, with a standard error; the lines are the laws at the
    fewest and the most tokens a parameter that were swept."""
    colors = arch_colors(list(fit.laws))
    figure = go.Figure()
    for arch, law in fit.laws.items():
        cells = fit.usable(arch)
        best = [cell.fitted for cell in cells if cell.fitted is not None]
        rates = np.exp([fitted.log_rate for fitted in best])
        factor = np.exp([fit.noise[arch].s * fitted.unit_se for fitted in best])
        figure.add_trace(
            go.Scatter(
                x=[cell.n_params for cell in cells],
                y=rates,
                error_y={
                    "array": rates * (factor - 1),
                    "arrayminus": rates * (1 - 1 / factor),
                    "thickness": 1,
                },
                mode="markers",
                marker={"color": colors[arch], "size": 7},
                name=name_of(arch),
                text=[f"{cell.size}, {count(cell.n_tokens)} tokens" for cell in cells],
            )
        )
        ratios = sorted({cell.n_tokens / cell.n_params for cell in cells})
        batch = law.ranges["batch_tokens"][0]
        low, high = law.ranges["n_params"]
        n = np.geomspace(low / 1.3, high * 1.3, 40)
        for ratio, dash in ((ratios[0], "solid"), (ratios[-1], "dot")):
            line = {"color": colors[arch], "width": 1.8, "dash": dash}
            y = [law.at(n_params, ratio * n_params, batch).rate for n_params in n]
            figure.add_trace(go.Scatter(x=n, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    figure.add_trace(legend_line("fewest tokens a parameter", GREY, "legend", 1.8))
    figure.add_trace(legend_line("most", GREY, "legend", 1.8).update(line_dash="dot"))
    dress(figure, 760, 420)
    figure.update_xaxes(type="log", title_text="parameters without embeddings N")
    figure.update_yaxes(type="log", title_text="best learning rate")
    return figure


def write_page(fit: RatesFit, name: str, directory: Path) -> Path:
    """Write <directory>/index.html. Returns its path."""
    page = render(
        TEMPLATE,
        figures=True,
        name=name,
        verdict=verdict(fit),
        valleys=valleys(fit),
        laws=law_rows(fit),
        level=LEVEL,
        lines=laws(fit) if fit.laws else None,
        cells=cell_rows(fit),
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    write_bytes(path, page.encode(), kind="results")
    return path
