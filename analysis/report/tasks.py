"""Scores of tasks and longer contexts: tables, figures and what is withheld, from fits.json only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.axes import kibi, log_axis, power_of_ten
from analysis.figures.palette import arch_colors, dashes, name_of
from analysis.figures.style import GAP, GREY, ROW_HEIGHT, WIDTH, band, dress, fade, legend_line, panel_at
from analysis.fits.fit import NOTHING
from analysis.fits.task_fits import Curve, LengthScores, Score, TaskFit, TaskFits
from analysis.pages.cells import number, shown
from analysis.report.section import Section, Table
from analysis.scales import PERPLEXITY
from arch.amounts import count, counted

COLUMNS = 3
Z95 = 1.959964  # standard errors to either side of a score
HEIGHT = 380
RING, RING_STEP = 5, 3  # diameters: architectures that agree lie on each other, as rings in rings
BENCHMARKS = (
    "Of each run's last checkpoint that a fit reads. Intervals are 95%, over the questions of a task (1.96 standard "
    "errors); runs of other seeds differ by more. `scaling eval table` has the averages of the papers."
)
ABOUT = (
    "A law links the score of a task to the loss that the other laws are fitted to: for accuracies the logistic from "
    "chance to a full score, for perplexities a power law between their logarithm and the loss. Other scores have no "
    "law. A band is the interval of the expected score of a run, over runs."
)
LENGTHS = (
    "Every length is evaluated on the very same tokens, cut into windows of that length; *: longer than the run was "
    "trained at. A longer window has fewer tokens near its start, which alone lowers the mean a little."
)
Rows = list[dict[str, str]]


def task_sections(fits: TaskFits, conventions: Mapping[str, str]) -> Iterator[Section]:
    """conventions: of the study's fits."""
    tasks = fits.tasks
    yield Section(
        "Benchmarks",
        figures={"benchmarks": partial(benchmarks_figure, fits, conventions["C"])},
        tables=[Table("benchmarks", benchmark_rows(fits))],
        notes=[BENCHMARKS] if tasks else [],
    )
    if fits.lengths:
        yield Section(
            "Contexts longer than those of the training",
            figures={"lengths": partial(lengths_figure, fits.lengths)},
            tables=[Table("lengths", length_rows(fits.lengths))],
            notes=[LENGTHS],
        )
    unknown = [f"Of unknown scale, so not fitted: {', '.join(fits.unknown)}."] if fits.unknown else []
    about = [ABOUT] if any(task.shown_laws for task in tasks) else []
    yield Section(
        "Scores of the tasks",
        figures={"tasks": partial(tasks_figure, fits, conventions["unit_L"])},
        tables=[Table("scores", score_rows(fits))],
        notes=[*about, *unknown],
        more_title="What is doubted, withheld or left out, and why",
        more=withheld_lines(fits),
    )


def benchmark_rows(fits: TaskFits) -> Rows:
    """A row a run, a column a task: the scores of its last checkpoint, as table 4 of the scaling-law paper has them."""
    rows: dict[str, dict[str, str]] = {}
    for task in fits.tasks:
        scale, head = (100.0, f"{task.title}, %") if in_percent(task) else (1.0, task.title)
        for law in task.laws:
            for score in law.last_scores:
                tokens = number(count(score.n_tokens, 4), float(score.n_tokens))
                new = {"run": score.run_id, "tokens": tokens}
                row, value = rows.setdefault(score.run_id, new), scale * score.value
                half = None if score.error is None else Z95 * scale * score.error
                ends = None if half is None else (value - half, value + half)
                row[head] = shown(value, ",.0f" if value >= 1000 else ".4g" if value >= 1 else ".3g", ends)
    return list(rows.values())


def score_rows(fits: TaskFits) -> Rows:
    """Each architecture's score at the compute that the study compares them at, a row a task."""
    rows = []
    for task in fits.tasks:
        if task.shown_laws:
            at = [law.predictions[0] for law in task.shown_laws if law.predictions]
            known = [prediction.flops for prediction in at if prediction.score.value is not None]
            row = {"task": task.title, "C (FLOP)": number(power_of_ten(known[0]), known[0]) if known else ""}
            for law in task.shown_laws:
                score = law.predictions[0].score if law.predictions else NOTHING
                row[name_of(law.arch)] = shown(score.value, ".3g", score.ends)
            rows.append(row)
    return rows


def withheld_lines(fits: TaskFits) -> list[str]:
    """Why laws are not believed or shown, why scores are not predicted, and which checkpoints have no place in a fit: a
    line a reason."""
    places: dict[str, list[str]] = {}
    for task in fits.tasks:
        for law in task.laws:
            place, reasons = f"{task.title}, {name_of(law.arch)}", list[str]()
            if law.withheld:
                reasons.append(f"withheld: {law.withheld}")
            elif law.verdict and law.verdict.reasons:
                reasons.append(f"{law.verdict.believe}: {'; '.join(law.verdict.reasons)}")
            if not law.withheld and law.predictions and law.predictions[0].score.value is None:
                reasons.append(
                    f"no score is predicted at the compute of the comparison ({law.predictions[0].score.reason})"
                )
            for reason in reasons:
                places.setdefault(reason, []).append(place)
        for why, n in task.left_out.items():
            places.setdefault(f"{counted(n, 'checkpoint')} left out because {why}", []).append(task.title)
    return [f"{'; '.join(names)}: {reason}." for reason, names in places.items()]


def tasks_figure(fits: TaskFits, unit: str) -> go.Figure | None:
    """Every checkpoint's score beside its loss, with its law and band; better models are on the right. None where
    every law is withheld."""
    tasks = [task for task in fits.tasks if task.shown_laws]
    if not tasks:
        return None
    figure, colors = _panels(tasks)
    for i, task in enumerate(tasks):
        for law in task.laws:
            if law.curve:
                _add_curve(figure, panel_at(i, COLUMNS), law.curve, colors[law.arch])
            losses, hover = [score.loss for score in law.scores], f"loss %{{x:.4g}} {unit}"
            marks = _marks(losses, law.scores, colors[law.arch], hover, filled=law.curve is not None)
            figure.add_trace(marks, **panel_at(i, COLUMNS))
    figure.update_xaxes(autorange="reversed", title_text=f"loss ({unit}), falling", title_standoff=6)
    return figure


def benchmarks_figure(fits: TaskFits, convention: str) -> go.Figure | None:
    """The scores of each run's last checkpoint beside its compute (figure 2 of the scaling-law paper), with 95% error
    bars over questions; None without scores."""
    tasks = [task for task in fits.tasks if task.laws]
    if not tasks:
        return None
    figure, colors = _panels(tasks)
    computes: list[float] = []
    for i, task in enumerate(tasks):
        for law in task.laws:
            last, color = law.last_scores, colors[law.arch]
            of_law = [score.flops for score in last]
            marks = _marks(of_law, last, color, "C %{x:.4g} FLOP", filled=False)
            if any(score.error for score in last):
                ends = [None if score.error is None else Z95 * score.error for score in last]
                marks.error_y = {"type": "data", "array": ends, "thickness": 0.8, "width": 2, "color": fade(color, 0.5)}
            figure.add_trace(marks, **panel_at(i, COLUMNS))
            computes += of_law
    title = f"training compute C (FLOP, {convention})"
    figure.update_xaxes(log_axis(min(computes) / 1.3, max(computes) * 1.3, title, "flop"))
    return figure


def in_percent(task: TaskFit) -> bool:
    """Whether tables and figures show the scores in percent: shares of right answers."""
    return task.scale.kind == "accuracy" and task.scale.full == 1


def _panels(tasks: Sequence[TaskFit]) -> tuple[go.Figure, dict[str, str]]:
    """A figure with an empty panel for each task and a legend, and the colours of the architectures."""
    archs = list(dict.fromkeys(law.arch for task in tasks for law in task.laws))
    colors, rows = arch_colors(archs), -(-len(tasks) // COLUMNS)
    titles, columns = [f"<b>{task.title}</b>" for task in tasks], min(COLUMNS, len(tasks))
    gap = {"horizontal_spacing": 0.07, "vertical_spacing": GAP / (ROW_HEIGHT * rows)}
    figure = make_subplots(rows, columns, subplot_titles=titles, **gap)
    figure.update_annotations(font_size=13)
    for i, task in enumerate(tasks):
        scale, axis = task.scale, dict[str, Any]()
        if in_percent(task):
            axis["tickformat"] = ".3~%"
        if scale.kind == PERPLEXITY:
            axis["type"] = "log"
        elif not any(score.value for law in task.laws for score in law.scores):
            axis["range"] = [-0.03 * scale.full, scale.full]  # plotly would centre zeros in an axis from -1 to 1
        figure.update_yaxes(title_text=task.metric, title_standoff=4, **axis, **panel_at(i, COLUMNS))
        if scale.chance:
            line = {"color": GREY, "dash": "dash", "width": 1.2}
            figure.add_hline(scale.chance * scale.full, line=line, **panel_at(i, COLUMNS))
    for arch in archs:
        figure.add_trace(legend_line(name_of(arch), colors[arch], "legend"), row=1, col=1)
    figure.update_layout(legend={"title": {"text": "architecture"}, "x": 1.01, "y": 1})
    dress(figure, WIDTH, ROW_HEIGHT * rows + 70)
    return figure, colors


def _add_curve(figure: go.Figure, place: dict[str, int], curve: Curve, color: str) -> None:
    if curve.low:
        figure.add_trace(band(zip(curve.loss, curve.low, curve.high, strict=True), color), **place)
    line = {"color": color, "width": 2.2}
    drawn = go.Scatter(x=curve.loss, y=curve.value, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    figure.add_trace(drawn, **place)


def _marks(x: Sequence[float], scores: Sequence[Score], color: str, hover: str, filled: bool) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=[score.value for score in scores],
        mode="markers",
        marker={"size": 5, "color": color if filled else "white", "line": {"color": color, "width": 1.2}},
        text=[score.name for score in scores],
        showlegend=False,
        hovertemplate=f"%{{text}}<br>{hover}<br>score %{{y:.4g}}<extra></extra>",
    )


def lengths_figure(rows: Sequence[LengthScores]) -> go.Figure | None:
    """Perplexity over that at the training length, a line a run; None where no run has one."""
    ratios = {row.run_id: ratio for row in rows if (ratio := _over_own(row))}
    rows = [row for row in rows if row.run_id in ratios]
    if not rows:
        return None
    archs = list(dict.fromkeys(row.arch for row in rows))
    colors, dash, figure = arch_colors(archs), dashes(archs), go.Figure()
    shown: set[str] = set()
    for row in rows:
        ring = RING + RING_STEP * (len(archs) - 1 - archs.index(row.arch))
        trace = go.Scatter(
            x=list(ratios[row.run_id]),
            y=list(ratios[row.run_id].values()),
            mode="lines+markers",
            line={"color": colors[row.arch], "dash": dash[row.arch], "width": 1.8},
            marker={"symbol": "circle-open", "size": ring, "line": {"width": 1.6}},
            name=name_of(row.arch),
            legendgroup=row.arch,
            showlegend=row.arch not in shown,
            hovertemplate=f"{name_of(row.arch)} {row.size}<br>%{{x:,}} tokens<br>%{{y:.3f}} times<extra></extra>",
        )
        figure.add_trace(trace)
        shown.add(row.arch)
    for context_length in sorted({row.context_length for row in rows}):
        figure.add_vline(context_length, line={"color": GREY, "dash": "dash", "width": 1.2})
    lengths = sorted({n for ratio in ratios.values() for n in ratio})
    values = [value for ratio in ratios.values() for value in ratio.values()]
    x_title = "context length (tokens); dashed: of the training"
    y_title = "perplexity over that<br>at the training length"
    figure.update_xaxes(**log_axis(lengths[0] / 1.1, lengths[-1] * 1.1, x_title, "count"))
    figure.update_xaxes(tickvals=lengths, ticktext=[kibi(n) for n in lengths])
    figure.update_yaxes(**log_axis(min(values) / 1.05, max(values) * 1.05, y_title))
    figure.update_layout(legend={"x": 1.01, "y": 1, "title": {"text": "architecture"}})
    dress(figure, WIDTH, HEIGHT)
    return figure


def _over_own(row: LengthScores) -> dict[int, float]:
    """By length, the finite perplexities over that at the training length; none where that is not finite."""
    own = row.perplexity.get(str(row.context_length))
    return {int(n): value / own for n, value in row.perplexity.items() if value} if own else {}


def length_rows(rows: Sequence[LengthScores]) -> list[dict[str, str]]:
    """A row a run, a column a context length: perplexity."""
    lengths = sorted({int(n) for row in rows for n in row.perplexity})
    table = []
    for row in rows:
        cells = {"architecture": name_of(row.arch), "run": row.run_id}
        for n in lengths:
            value, mark = row.perplexity.get(str(n)), "*" * (n > row.context_length)
            cells[f"{n:,}"] = "not finite" if value is None else number(f"{value:.3f}{mark}", value)
        table.append(cells)
    return table
