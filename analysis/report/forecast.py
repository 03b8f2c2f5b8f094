"""Forecasts: losses that were predicted before their runs were trained, and what was measured: table, figure, words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import arch_colors, name_of
from analysis.figures.style import GREY, INK, dress
from analysis.fits.baselines import NO_CHANGE
from analysis.forecast.outcome import ForecastRound, Outcome
from analysis.pages.cells import number, shown, signed
from analysis.report.section import Section, Table
from arch.amounts import byte_size, count, counted_of

COLUMN, SIDES, HEIGHT = 130, 330, 395  # pixels: an architecture's size, what stands beside, the figure
BESIDE = 0.16  # of the distance between architectures: measured losses stand beside the prediction
NEXT = 0.07  # the same, between the losses of two seeds
LOWEST = "lowest loss fitted"


def forecast_section(forecast: ForecastRound) -> Section:
    name = f"forecast-{forecast.number}" if forecast.number > 1 else "forecast"
    return Section(
        title_of(forecast),
        [forecast_lead(forecast)],
        {name: partial(forecast_figure, forecast)},
        [Table(name, forecast_rows(forecast))],
        forecast_notes(forecast),
    )


def forecast_rows(forecast: ForecastRound) -> list[dict[str, str]]:
    """A row a run."""
    rows = []
    for outcome in forecast.outcomes:
        run, reach = outcome.run, forecast.predictions.reach(outcome.run)
        row = {
            "run": run.run_id,
            "parameters": number(count(run.n_params), run.n_params),
            "tokens": number(count(run.n_tokens), run.n_tokens),
            "C (FLOP)": number(power_of_ten(run.c), run.c),
            "over the largest C fitted": shown(reach, ".2f"),
            "predicted": shown(run.loss, ".4f", run.interval) or f"none: {run.reason}",
            "measured": shown(outcome.measured, ".4f") or outcome.state,
            "error": signed(outcome.error, ".2%"),
            "held": {True: "yes", False: "no", None: ""}[outcome.held],
        }
        rows.append(row)
    return rows


def title_of(forecast: ForecastRound) -> str:
    return "Forecast" + (f", round {forecast.number}" if forecast.number > 1 else "")


def outcome_lines(forecasts: Sequence[ForecastRound]) -> list[str]:
    """A line for each architecture and size of which a run is measured."""
    sizes = [(forecast, seeds) for forecast in forecasts for seeds in forecast.by_size]
    return [
        _outcome_line(forecast, seeds) for forecast, seeds in sizes if any(seed.error is not None for seed in seeds)
    ]


def _outcome_line(forecast: ForecastRound, seeds: Sequence[Outcome]) -> str:
    run, known = seeds[0].run, [seed for seed in seeds if seed.measured is not None]
    assert run.loss is not None
    held = [bool(seed.held) for seed in known]
    if run.interval is None:
        ends, verdict = "no interval", ", ".join(f"{signed(seed.error, '.1%')}" for seed in known)
    else:
        ends = f"{forecast.predictions.level:.0%} interval {run.interval[0]:.3f} to {run.interval[1]:.3f}"
        verdict = "inside" if all(held) else f"{sum(held)} of {len(held)} inside" if any(held) else "outside"
    measured = ", ".join(f"{seed.measured:.3f}" for seed in known)
    reach = forecast.predictions.reach(run)
    return (
        f"Test on a run that no fit read: {name_of(run.group)}, {count(run.n_params)} parameters, "
        f"{count(run.n_tokens)} tokens, {power_of_ten(run.c)} FLOP, {reach:.1f} times its largest fitted run: "
        f"predicted {run.loss:.3f} ({ends}), measured {measured}: {verdict}."
    )


def forecast_lead(forecast: ForecastRound) -> str:
    """One sentence: how the forecast came out, or that nothing of it is trained."""
    runs, known = forecast.outcomes, [outcome for outcome in forecast.outcomes if outcome.error is not None]
    if not known:
        n_predicted = sum(outcome.run.loss is not None for outcome in runs)
        predicted = counted_of(n_predicted, len(runs), "larger run", "is", "are")
        return f"{predicted} predicted; none of them is trained yet."
    parts = []
    if len(forecast.measured) < len(runs):
        parts.append(f"{counted_of(len(forecast.measured), len(runs), 'larger run', 'is', 'are')} trained")
    if judged := forecast.judged:
        n_held = sum(bool(outcome.held) for outcome in judged)
        parts.append(
            f"the {forecast.predictions.level:.0%} intervals held {counted_of(n_held, len(judged), 'larger run')}"
        )
    error = f"predictions were off by {_median([outcome.error for outcome in known]):.2%} of the loss (median)"
    text = "; ".join([*parts, error])
    return f"{text[0].upper()}{text[1:]}."


def _median(values: Sequence[float | None]) -> float:
    return float(np.median([abs(value) for value in values if value is not None]))


def forecast_notes(forecast: ForecastRound) -> list[str]:
    """When and from what the predictions were made, and what the intervals rest on."""
    stored = forecast.predictions
    commit, _, changes = (stored.program.commit or "").partition("+")
    by = f", by commit {commit[:12]}{' with changes' if changes else ''}" if commit else ""
    grid = "the grid and the rounds before" if forecast.number > 1 else "the grid"
    lines = [
        f"Predicted {stored.made}{by}, when {stored.fitted.n_runs} of the {stored.fitted.of} runs of {grid} were "
        f"trained and none of these was. Loss: {stored.conventions.L}; C: {stored.conventions.C}.",
        "Error: measured over predicted, less 1.",
    ]
    for group, about in stored.groups.items():
        if about.reason:
            lines.append(f"{name_of(group)}: nothing is predicted: {about.reason}.")
    rests = dict.fromkeys((outcome.run.group, outcome.run.size, outcome.run.rests_on) for outcome in forecast.outcomes)
    reasons = [f"{name_of(group)} {size}: {why}." for group, size, why in rests if why]
    return [*lines, *_against_baselines(forecast), *reasons, *_registered(forecast)]


def _against_baselines(forecast: ForecastRound) -> list[str]:
    """The median error beside those of simpler rules, of the runs that all of them predict."""
    known = [outcome for outcome in forecast.outcomes if outcome.error is not None and outcome.run.baselines]
    if not known:
        return []
    rules = [rule for rule in known[0].run.baselines if all(rule in outcome.run.baselines for outcome in known)]
    errors = {
        rule: _median([(outcome.measured or 0.0) / outcome.run.baselines[rule] - 1 for outcome in known])
        for rule in rules
    }
    own = _median([outcome.error for outcome in known])
    others = ", ".join(f"{rule} {error:.2%}" for rule, error in errors.items())
    best = all(own < error for error in errors.values())
    return [f"Median errors: predicted {own:.2%}; {others}" + ("." if best else ": the prediction is not the best.")]


def _registered(forecast: ForecastRound) -> list[str]:
    """What was stored with the predictions beside them; nothing of those of earlier versions."""
    stored, lines = forecast.predictions, list[str]()
    for run in {(run.group, run.size): run for run in stored.runs if run.lr}.values():
        forms = ", ".join(f"{loss:.4f} ({form.replace('_', '-')})" for form, loss in run.other_forms.items())
        also = f"; other forms predict {forms}" if forms else ""
        lines.append(f"{name_of(run.group)} {run.size}: learning rate {run.lr:.3g}{also}.")
    if text := stored.held_out:
        read, digests = stored.validation_tokens or text.tokens, ", ".join(digest[:16] for digest in text.sha256)
        lines.append(
            f"Losses are read on {read:,} of {text.tokens:,} held-out tokens ({byte_size(text.bytes)}, SHA-256 "
            f"{digests}). Code: {stored.program.code}."
        )
    if stored.if_missed:
        missed = [outcome.run.run_id for outcome in forecast.judged if not outcome.held]
        lines.append(
            f"Of a run outside of its interval is to be tested: {'; '.join(stored.if_missed)}"
            + (f". Outside: {', '.join(missed)}." if missed else ".")
        )
    return lines


def forecast_figure(forecast: ForecastRound) -> go.Figure | None:
    """The predicted interval and the measured losses of every architecture and size; None without any."""
    sizes = [seeds for seeds in forecast.by_size if seeds[0].run.loss is not None]
    if not sizes:
        return None
    firsts = [seeds[0].run for seeds in sizes]
    colors = arch_colors(list(dict.fromkeys(run.group for run in firsts)))
    several = len({run.size for run in firsts}) > 1
    figure = go.Figure()
    for place, (run, seeds) in enumerate(zip(firsts, sizes, strict=True)):
        assert run.loss is not None
        color, name = colors[run.group], name_of(run.group)
        low, high = run.interval or (run.loss, run.loss)
        error = {"array": [high - run.loss], "arrayminus": [run.loss - low], "thickness": 2, "width": 7}
        _add(figure, [place], [run.loss], _predicted_mark(color), f"{name}, predicted", error)
        known = [seed.measured for seed in seeds if seed.measured is not None]
        beside = [place + BESIDE + NEXT * i for i in range(len(known))]
        _add(figure, beside, known, _measured_mark(color), f"{name}, measured")
        lowest = [loss for rule, loss in run.baselines.items() if rule == NO_CHANGE]  # none of earlier versions
        _add(figure, [place - BESIDE] * len(lowest), lowest, LOWEST_MARK, LOWEST)
    marks = {f"predicted, {forecast.predictions.level:.0%} for a run": _predicted_mark(INK)}
    if any(NO_CHANGE in run.baselines for run in firsts):
        marks[LOWEST] = LOWEST_MARK
    if forecast.measured:
        marks["measured"] = _measured_mark(INK)
    for name, mark in marks.items():
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=mark, name=name))
    names = [name_of(run.group) + (f"<br>{run.size}" if several else "") for run in firsts]
    ends = [-0.5, len(names) - 0.5]
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, range=ends, zeroline=False)
    if not several:
        figure.update_xaxes(title_text=f"{count(firsts[0].n_params)} parameters, {count(firsts[0].n_tokens)} tokens")
    figure.update_yaxes(title_text=forecast.predictions.conventions.L)
    # t: for the buttons of the page, which would lie over the legend
    dress(figure, max(560, COLUMN * len(names) + SIDES), HEIGHT, r=240, t=40)
    return figure


LOWEST_MARK = {"size": 16, "symbol": "line-ew", "line": {"color": GREY, "width": 2}}


def _predicted_mark(color: str) -> dict[str, Any]:
    return {"size": 11, "symbol": "diamond", "color": color}


def _measured_mark(color: str) -> dict[str, Any]:
    return {"size": 9, "symbol": "circle", "color": "white", "line": {"color": color, "width": 2}}


def _add(
    figure: go.Figure,
    x: Sequence[float],
    y: Sequence[float],
    marker: dict[str, Any],
    name: str,
    error: dict[str, Any] | None = None,
) -> None:
    bars = None if error is None else {"type": "data", "symmetric": False} | error
    trace = go.Scatter(x=x, y=y, mode="markers", marker=marker, error_y=bars, showlegend=False)
    trace.hovertemplate = f"{name}<br>%{{y:.4f}}<extra></extra>"
    figure.add_trace(trace)
