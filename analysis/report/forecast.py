"""Forecasts: losses that were predicted before their runs were trained, and what was measured: table, figure, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, INK, dress
from analysis.pages.cells import number, shown, signed
from analysis.report.rehearsals import inside, rehearsal_lines
from arch.amounts import count, counted, counted_of

Told = Mapping[str, Any]  # analysis.forecast.outcome
Row = Mapping[str, Any]
COLUMN, SIDES, HEIGHT = 130, 330, 395  # pixels: an architecture's size, what stands beside, the figure
BESIDE = 0.16  # of the distance between architectures: measured losses stand beside the prediction


def forecast_rows(told: Told | None) -> list[dict[str, str]]:
    """A row a run, and below the runs of one size the mean of its seeds."""
    rows = []
    for mean in (told or {"means": []})["means"]:
        mine = [row for row in (told or {})["runs"] if row["run_id"] in mean["run_ids"]]
        rows += [_cells(row, str(row["run_id"])) for row in mine]
        if len(mine) > 1:
            rows.append(_cells(mean, f"{name_of(mean['group'])}, {mean['size']}: mean of {len(mine)} seeds"))
    return rows


def _cells(row: Row, name: str) -> dict[str, str]:
    held = {True: "yes", False: "no", None: ""}
    return {
        "run": name,
        "parameters": number(count(row["n_params"]), row["n_params"]),
        "tokens": number(count(row["n_tokens"]), row["n_tokens"]),
        "C (FLOP)": number(power_of_ten(row["c"]), row["c"]),
        "predicted": shown(row["loss"], ".4f", row["interval"]) or f"none: {row['reason']}",
        "measured": shown(row["measured"], ".4f") or str(row["state"]),
        "error": signed(row["error"], ".2%"),
        "held": held[row["held"]],
        "error over the drop": signed(row["of_drop"], ".0%"),
        "power law": shown(row["power_law"], ".4f"),
        "its error": signed(row["power_law_error"], ".2%"),
        "error of no change": signed(row["unchanged_error"], ".2%"),
    }


def table_names(told: Told) -> tuple[str, str]:
    """Of a round's table and figure, and of the table of its rehearsals."""
    ending = f"-{told['round']}" if told["round"] > 1 else ""
    return f"forecast{ending}", f"rehearsals{ending}"


def title_of(told: Told) -> str:
    return "Forecast" + (f", round {told['round']}" if told["round"] > 1 else "")


def forecast_leads(rounds: Sequence[Told]) -> list[str]:
    """A line a round, for the report's top."""
    first = "Larger runs, predicted before they were trained"
    then = "Round {} of larger runs, predicted from the grid and the rounds before"
    names = [first if one["round"] == 1 else then.format(one["round"]) for one in rounds]
    return [f"{name}: {forecast_lead(one)}" for name, one in zip(names, rounds, strict=True)]


def round_parts(told: Told, inputs_hash: str) -> dict[str, Any]:
    """What the report says of a round, and the names of its tables."""
    rows, rehearsals = table_names(told)
    parts: dict[str, Any] = {"title": title_of(told), "lead": forecast_lead(told), "inside": inside(told)}
    notes = forecast_notes(told, inputs_hash if told["round"] == 1 else None)
    return parts | {
        "rows": rows,
        "rehearsals": rehearsals,
        "notes": notes,
        "lines": rehearsal_lines(told) if "afterwards" in told else [],
    }


def forecast_lead(told: Told) -> str:
    """One sentence: how the forecast came out, or that nothing of it is trained."""
    n, level = told["n"], f"{told['level']:.0%}"
    known = [row for row in told["runs"] if row["error"] is not None]
    if not known:
        return f"{counted_of(_predicted(told), n['runs'], 'run', 'is', 'are')} predicted; none of them is trained yet."
    parts = [f"{counted_of(n['trained'], n['runs'], 'run', 'is', 'are')} trained"] if n["trained"] < n["runs"] else []
    if n["with_interval"]:
        parts.append(f"the {level} intervals held {counted_of(n['held'], n['with_interval'], 'run')}")
    error = f"the surfaces were off by {_median(known, 'error'):.2%} of the loss (median)"
    other = [row for row in known if row["power_law_error"] is not None]
    error += f", pure power laws by {_median(other, 'power_law_error'):.2%}" if other else ""
    parts.append(f"{error}, the loss of the largest runs before by {_median(known, 'unchanged_error'):.2%}")
    if said := sum(bool(row["unchanged_held"]) for row in known):
        also = "contain" if said > 1 else "contains"
        parts.append(f"{said} of the intervals {also} that loss too, so they do not tell the prediction from no change")
    if drops := [row for row in known if row["of_drop"] is not None]:
        of = "" if len(drops) == len(known) else f" of {counted(len(drops), 'run')}"
        parts.append(f"the error is {_median(drops, 'of_drop'):.0%} of the predicted drop (median{of})")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _predicted(told: Told) -> int:
    return sum(row["loss"] is not None for row in told["runs"])


def _median(rows: Sequence[Row], key: str) -> float:
    return float(np.median([abs(row[key]) for row in rows]))


def forecast_notes(told: Told, inputs_hash: str | None = None) -> list[str]:
    """When and from what the predictions were made, what the intervals hold, and how far the laws are believed.
    inputs_hash: of the fits that are there now."""
    fitted, program = told["fitted"], told["program"]
    commit, _, changes = (program["commit"] or "").partition("+")
    later = told["round"] > 1
    source = "the grid and the rounds before" if later else "the grid"
    by = f", by commit {commit[:12]}{' with changes' if changes else ''}" if commit else ""
    lines = [
        f"Predicted {told['made']}{by}, from {fitted['n_runs']} of the {fitted['of']} runs of {source}, before any of "
        "these runs was trained. The study's own fits do not see them. "
        f"Loss: {told['conventions']['L']}; C: {told['conventions']['C']}.",
        f"Intervals ({told['level']:.0%}) are for one new run, or for the mean of the seeds: the error of the surface "
        "by the fit's own draws, and the noise between seeds. They hold for learning rates as good as those of the "
        "fitted runs, and as far as the surface goes on beyond them.",
        "Error: measured over predicted, less 1. The drop is from the mean loss of the architecture's runs at the "
        "largest C of the fits to the prediction. The power law is the pure one of the envelope, L(C), carried on. No "
        "change predicts the mean loss of those largest runs again.",
    ]
    if any(row.get("interval_by") == "rehearsal" for row in told["runs"]):
        lines.append(
            "Where the rehearsed interval is the wider one it stands in the place of the fit's: it is by the errors of "
            f"the same step, taken inside {inside(told)}."
        )
    if inputs_hash is not None and inputs_hash != told["inputs_hash"]:
        lines.append(
            "The fits above were made since: their files, settings or method are not all those that these predictions "
            "were made from."
        )
    lines += [line for group, one in told["groups"].items() for line in _of_group(told, group, one)]
    return lines


def _of_group(told: Told, group: str, one: Mapping[str, Any]) -> list[str]:
    name = name_of(group)
    if one["reason"]:
        return [f"{name}: nothing is predicted: {one['reason']}."]
    far, largest = max(row["c"] for row in told["runs"] if row["group"] == group), one["largest"]
    parts = [
        f"up to {far / largest['c']:.1f} times the largest C of its fit ({counted(len(largest['runs']), 'run')} of "
        f"{largest['size']}, mean loss {largest['loss']:.4f})"
    ]
    if one["noise"]:
        df = "" if one["noise"]["df"] is None else f" ({one['noise']['df']:.1f} degrees of freedom)"
        parts.append(f"noise of a run about its surface {one['noise']['s']:.2%} of the loss{df}")
    if one["no_interval"]:
        parts.append(f"no interval: {one['no_interval']}")
    if one["verdict"]:
        parts.append(f"verdict on its law: {one['verdict']['believe']}")
    law = one["power_law"]
    is_law = "has no law" if law is None else f"is {'a' if law['describes'] else 'no'} power law by its checks"
    return [f"{name}: {'; '.join(parts)}; its envelope {is_law}."]


def forecast_figure(told: Told | None) -> go.Figure | None:
    """The predicted interval of one run and the measured losses of every architecture and size; None without any."""
    means = [row for row in (told or {"means": []})["means"] if row["loss"] is not None]
    if told is None or not means:
        return None
    runs = {row["run_id"]: row for row in told["runs"]}
    colors = arch_colors(list(dict.fromkeys(str(row["group"]) for row in means)))
    several = len({row["size"] for row in means}) > 1
    figure = go.Figure()
    for place, mean in enumerate(means):
        one, color = runs[mean["run_ids"][0]], colors[mean["group"]]
        ends = one["interval"] or (one["loss"], one["loss"])
        up, down = ends[1] - one["loss"], one["loss"] - ends[0]
        error = {"type": "data", "symmetric": False, "array": [up], "arrayminus": [down], "thickness": 2, "width": 7}
        mark = {"size": 11, "symbol": "diamond", "color": color}
        _add(figure, [place], [one["loss"]], mark, f"{name_of(mean['group'])}, predicted", error)
        known = [runs[run]["measured"] for run in mean["run_ids"] if runs[run]["measured"] is not None]
        mark = {"size": 9, "symbol": "circle", "color": "white", "line": {"color": color, "width": 2}}
        _add(figure, [place + BESIDE] * len(known), known, mark, f"{name_of(mean['group'])}, measured")
        if one["power_law"] is not None:
            mark = {"size": 9, "symbol": "x-thin", "line": {"color": GREY, "width": 2}}
            _add(figure, [place - BESIDE], [one["power_law"]], mark, "pure power law of the envelope")
        largest = told["groups"][mean["group"]]["largest"]["loss"]
        mark = {"size": 16, "symbol": "line-ew", "line": {"color": GREY, "width": 2}}
        _add(figure, [place - BESIDE], [largest], mark, "largest runs of the fit, mean")
    _legend(figure, told)
    names = [name_of(row["group"]) + (f"<br>{row['size']}" if several else "") for row in means]
    ends = [-0.5, len(names) - 0.5]
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, range=ends, zeroline=False)
    if not several:
        figure.update_xaxes(
            title_text=f"{count(means[0]['n_params'])} parameters, {count(means[0]['n_tokens'])} tokens"
        )
    figure.update_yaxes(title_text=str(told["conventions"]["L"]))
    # t: for the buttons of the page, which would lie over the legend
    dress(figure, max(560, COLUMN * len(names) + SIDES), HEIGHT, r=240, t=40)
    return figure


def _add(
    figure: go.Figure,
    x: Sequence[float],
    y: Sequence[float],
    marker: dict[str, Any],
    name: str,
    error: dict[str, Any] | None = None,
) -> None:
    trace = go.Scatter(x=x, y=y, mode="markers", marker=marker, error_y=error, showlegend=False)
    trace.hovertemplate = f"{name}<br>%{{y:.4f}}<extra></extra>"
    figure.add_trace(trace)


def _legend(figure: go.Figure, told: Told) -> None:
    marks = {
        f"predicted, {told['level']:.0%} for one run": {"size": 11, "symbol": "diamond", "color": INK},
        "measured": {"size": 9, "symbol": "circle", "color": "white", "line": {"color": INK, "width": 2}},
        "pure power law": {"size": 9, "symbol": "x-thin", "line": {"color": GREY, "width": 2}},
        "largest runs of the fit, mean": {"size": 16, "symbol": "line-ew", "line": {"color": GREY, "width": 2}},
    }
    if not told["n"]["trained"]:
        del marks["measured"]
    for name, marker in marks.items():
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name))
