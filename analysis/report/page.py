"""report/index.html: the whole study on one page that needs no network, drawn from its fits and tables only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from analysis.figures.palette import name_of
from analysis.report.figures import figure_one
from analysis.report.notes import (
    common_lean,
    crossing_notes,
    extrapolation_text,
    interval_text,
    law_notes,
    method_notes,
)
from analysis.report.rows import checkpoint_rows, corpus_rows, run_rows, training_rows
from analysis.report.tables import (
    HEADINGS,
    conventions_table,
    curvature_table,
    diagnostics_table,
    laws_table,
    optimum_table,
)
from analysis.report.validation import validation_figure
from analysis.report.verdict import comparison_table, prediction_table, verdict_notes, verdict_text
from analysis.runs import Tables

INTERVAL = re.compile(r"\[([^\[\], ]+), ([^\[\], ]+)\]")
STYLE = """
body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#222;max-width:1340px;margin:32px auto;padding:0 20px}
h1{margin-bottom:0} h2{margin-top:44px;border-bottom:1px solid #ddd;padding-bottom:4px} .lead{color:#555;margin-top:4px}
table{border-collapse:collapse;font-size:13px;margin:10px 0} td,th{padding:4px 10px;text-align:left;vertical-align:top}
th{border-bottom:2px solid #999;font-weight:600} td{border-bottom:1px solid #eee} tr.bad td{background:#fff3ee}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums} td.n{white-space:nowrap}
.says{font-size:17px;margin:12px 0 4px} .says p{margin:2px 0} .notes{color:#555;font-size:13px;max-width:900px}
.wide{overflow-x:auto} li{margin:2px 0} code{font-size:13px} .long td{overflow-wrap:anywhere}
@media(max-width:600px){body{padding:0 10px;margin:16px auto} .says{font-size:16px} td,th{padding:4px 6px}}
"""


def figures(fits: dict[str, Any], tables: Tables, baseline: dict[str, Any] | None) -> dict[str, Any]:
    """The report's figures by file name."""
    found = {"figure1": figure_one(fits, tables, baseline), "validation": validation_figure(tables, baseline)}
    return {name: figure for name, figure in found.items() if figure is not None}


def page(
    name: str,
    fits: dict[str, Any],
    tables: Tables,
    drawn: Mapping[str, Any],
    baseline: dict[str, Any] | None = None,
    corpus: dict[str, Any] | None = None,
    provenance: Mapping[str, str] | None = None,
    evaluations: str | None = None,
) -> str:
    """The page: `drawn` from `figures`, `corpus` the corpus manifest, `provenance` name -> value, `evaluations` the
    address of the page of the other evaluations, None where there is none."""
    from plotly.offline import get_plotlyjs

    parts = [
        f"<h1>{escape(name)}</h1><p class=lead>{escape(_lead(fits, tables))}{_link(evaluations)}</p>",
        "<h2>What the study says</h2>",
        _says(verdict_text(fits)),
        _table(comparison_table(fits), names=True) if fits["verdict"]["archs"] else "",
        "<p>By the laws, at that compute and at the end of the range in which each N<sub>opt</sub> is known:</p>"
        + _table(prediction_table(fits), names=True)
        if fits["verdict"]["archs"]
        else "",
        _list([*verdict_notes(fits), f"C: {_convention(fits)}. Loss: {fits['conventions']['L']}."]),
        "<h2>Training curves, envelope and laws</h2>",
        _figure(drawn["figure1"]),
        "<p class=notes>Curves are smoothed losses (dotted: runs left out of the fits); points are the lowest loss at "
        "each compute, coloured by the size that owns it; hollow ones say nothing about the optimal size. Diamonds are "
        "the crossings of neighbouring sizes, at the geometric mean of the two (open: extrapolated). Brackets: "
        "interval of the exponent. Shaded: the range of compute that the law rests on.</p>",
        "<h2>Laws</h2>",
        _table([{HEADINGS[key]: value for key, value in row.items()} for row in laws_table(fits)], names=True),
        _list([*law_notes(fits), extrapolation_text(fits)]),
        "<h2>Is L(C) a power law?</h2>",
        _table(curvature_table(fits), names=True),
        _list([*common_lean(fits), *_CURVATURE]),
        "<h2>N<sub>opt</sub> and D<sub>opt</sub> by crossings and by the envelope's points</h2>",
        _table(optimum_table(fits), names=True),
        _list([*crossing_notes(fits), *_OPTIMUM]),
        "<h2>Exponents under every FLOP convention</h2>",
        _table(conventions_table(fits), names=True),
        "<h2>When not to believe them</h2>",
        _table(diagnostics_table(fits), names=True),
        _list(_DIAGNOSTICS),
        "<h2>Held-out loss</h2>",
        _figure(drawn["validation"]) if "validation" in drawn else "<p>No checkpoint has been evaluated.</p>",
        f"<p class=notes>{escape(_baseline_text(baseline))}</p>" if baseline else "",
        "<details><summary>Every evaluated checkpoint: nats a token at tokens seen</summary>",
        _table(checkpoint_rows(tables)),
        "</details><h2>Runs</h2>",
        _pairs(training_rows(tables)),
        _table(run_rows(fits, tables), bad=lambda row: row["state"] != "done"),
        "<h2>Corpus</h2>",
        _pairs(corpus_rows(corpus)) if corpus else "<p>No corpus manifest.</p>",
        "<h2>Methods</h2>",
        *(f"<p>{escape(text)}</p>" for text in [*_methods(fits), *method_notes(fits)[1:]]),
        "<h2>Provenance</h2>",
        _pairs(provenance or {}),
    ]
    head = (
        f"<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(name)}: scaling laws</title><style>{STYLE}</style>"
    )
    script = f"<script>{get_plotlyjs()}</script>"
    return f"<!doctype html><html lang=en><head>{head}{script}</head><body>{''.join(parts)}</body></html>\n"


_CURVATURE = (
    "The quadratic term of log L in log C is 0 for a pure power law, but for the steps that a few sizes make under it, "
    "which are taken off. What as large a term is likely by, under a pure power law, is simulated from the seed noise.",
    "Where no bend is found the power law is not shown to hold: the power says how often a bend would have been seen.",
)
_OPTIMUM = (
    "Where two neighbouring curves cross, the optimal size lies half way between them in log N: the crossings tell the "
    "optimum of a continuous choice of sizes. The envelope's points, which the papers fit, take the values of the grid "
    "of sizes alone; a line through their steps is too flat, by about 1 / k^2 for k sizes that own points.",
    "A small chance of their scatter: the crossings lie further from a line than seed noise explains, and N_opt is no "
    "power law here, or rates or budgets are uneven; the intervals are widened by it.",
)
_DIAGNOSTICS = (
    "a p + b = 1 holds exactly where N_opt and D_opt lie on the same points and FLOP per token grow as N^p; p = 1 "
    "for C = 6 N D, so a + b = 1 there.",
    "A censored point is owned by the smallest or largest size, lies inside warm-up (its smoothing window included), "
    "or belongs to a size whose smaller rival was still ahead when its run ended or whose next larger rival has no "
    "curve there after its warm-up: in each case another size may have been better.",
    "The last column is how far N may stray at no visible cost: the ratio of the largest to the smallest size within "
    "0.5% of the minimal loss, median over the uncensored points.",
)


def _convention(fits: dict[str, Any]) -> str:
    named = fits["conventions"]
    return f"training FLOP, convention '{named['C']}'; N: {named['N']}; D: training tokens"


def _lead(fits: dict[str, Any], tables: Tables) -> str:
    states = tables.runs["state"].value_counts().to_dict()
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    archs = ", ".join(name_of(arch) for arch in fits["archs"])
    return f"{archs}. {len(tables.runs)} runs ({counted})."


def _methods(fits: dict[str, Any]) -> list[str]:
    settings = fits["settings"]
    return [
        f"C is {_convention(fits)}. Loss: {fits['conventions']['L']}; the seeds of a size are averaged in log loss.",
        f"At each of {settings['grid_points']} log-spaced C in the range ({_range_text(fits)}) the envelope is the "
        f"lowest loss among the sizes whose curve covers C. {_loss_text(settings)} The points of the grid are not "
        "independent: R^2 says how straight a line is, not how well known.",
        f"{_crossings_text(settings)} {_points_text(settings)}",
        f"{interval_text(fits)}.{_noise_text(fits)} No bootstrap over runs is claimed.",
    ]


def _loss_text(settings: dict[str, Any]) -> str:
    line = "L = beta C^alpha is an ordinary least-squares line in log-log through all covered points after warm-up"
    if settings["optimum"] == "envelope":
        return f"{line}."
    return (
        f"{line}, less what each point's size loses by not being the optimal one (from the crossings), as long as a "
        "size next to the optimal one has a curve there; where N_opt is not identified, through all "
        "points as they are."
    )


def _crossings_text(settings: dict[str, Any]) -> str:
    role = "N_opt and D_opt" if settings["optimum"] == "crossings" else "The laws beside them"
    return (
        f"{role}: the difference of two neighbouring sizes' curves is read as a parabola within a factor of 3.5 of its "
        "zero (beyond what is compared by its tangent, up to a factor of 2); generalised least squares finds the line "
        "of log C on log N at whose points the differences are smallest, in units of the seed noise, two of which "
        "share a curve; its inverse is the law. Intervals are Fieller's, with Student's t of the noise's degrees of "
        "freedom. Fewer than three crossings, or an interval without an upper end: not identified."
    )


def _points_text(settings: dict[str, Any]) -> str:
    role = "The laws beside them" if settings["optimum"] == "crossings" else "N_opt and D_opt"
    which = "the uncensored points" if settings["censor"] else "all covered points after warm-up (fit.censor: off)"
    return (
        f"{role}: ordinary least squares through {which} of the envelope, where three sizes own two neighbouring ones; "
        "percentile intervals of the same replicates as L."
    )


def _range_text(fits: dict[str, Any]) -> str:
    stated = {arch: one["range_stated"] for arch, one in fits["archs"].items()}
    if len(set(stated.values())) == 1:
        return "stated in the study file" if all(stated.values()) else "not stated: all that lies after warm-up"
    given = ", ".join(name_of(arch) for arch, is_stated in stated.items() if is_stated)
    return f"stated in the study file for {given}; for the others all that lies after warm-up"


def _noise_text(fits: dict[str, Any]) -> str:
    noise = fits["interval"]["seed_noise"]
    if noise is None:
        return ""
    measured = ", ".join(
        f"{name_of(g['arch'])} {g['size']} ({g['n_seeds']} seeds: {g['s']:.2%})" for g in noise["groups"]
    )
    return (
        f" Measured on {measured}; pooled and taken to hold at every size and architecture. Each replicate draws the "
        "noise's variance from its scaled inverse chi-square, moves every size's curve as a whole by an independent "
        "normal draw in log loss, extracts the envelope and fits again. The lowest of noisy curves "
        "lies too low, in the study and once more in its replicates: their level of L is put about the fitted level "
        "less its simulated bias, and varies as this difference does. For L and the envelope's points noise along a "
        "curve is not modelled; that runs of one seed read the same batches is nowhere."
    )


def _baseline_text(baseline: dict[str, Any]) -> str:
    return (
        f"Reference line: a bigram model with interpolated absolute discounting, counted on "
        f"{baseline['train_tokens']:,} training tokens, has {baseline['loss']:.4f} nats/token "
        f"({baseline['bits_per_byte']:.4f} bits/byte) on the {baseline['n_tokens_scored']:,} held-out tokens that the "
        f"checkpoints are scored on."
    )


def _figure(figure: Any) -> str:
    config = {"displaylogo": False, "responsive": False}
    return f"<div class=wide>{figure.to_html(full_html=False, include_plotlyjs=False, config=config)}</div>"


def _link(evaluations: str | None) -> str:
    return f' <a href="{escape(evaluations)}">The other evaluations</a>.' if evaluations else ""


def _says(lines: Sequence[str]) -> str:
    first, *others = lines
    more = "".join(f"<p>{escape(line)}</p>" for line in others)
    return f"<div class=says><p><b>{escape(first)}</b></p>{more}</div>"


def _list(lines: Sequence[str]) -> str:
    return "<ul class=notes>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _pairs(values: Mapping[str, str]) -> str:
    """What there is to know, one thing a row."""
    rows = "".join(f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in values.items() if value)
    return f"<div class=wide><table class=long>{rows}</table></div>"


def _table(rows: list[dict[str, str]], bad: Any = None, names: bool = False) -> str:
    """Rows as HTML; columns in order of appearance, without those that are empty; `names`: the first column holds
    architectures."""
    if not rows:
        return "<p>None.</p>"
    columns = [c for c in dict.fromkeys(key for row in rows for key in row) if any(row.get(c) for row in rows)]
    body, numeric = [], set(columns[1:])
    for row in rows:
        numeric -= {c for c in numeric if row.get(c) and not _is_number(row[c])}
    head = "".join(f"<th{' class=n' if column in numeric else ''}>{escape(column)}</th>" for column in columns)
    for row in rows:
        cells = []
        for i, column in enumerate(columns):
            text = row.get(column, "")
            shown = name_of(text) if names and i == 0 else text
            kept = INTERVAL.sub("[\\1,\u00a0\\2]", escape(shown))  # not broken over two lines
            cells.append(f"<td{' class=n' if column in numeric else ''}>{kept}</td>")
        body.append(f"<tr{' class=bad' if bad and bad(row) else ''}>{''.join(cells)}</tr>")
    return f"<div class=wide><table><tr>{head}</tr>{''.join(body)}</table></div>"


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("+", "").replace("e", "").isdigit()
