"""What `scaling fit --details` prints of each law: its parameters, optima, how it was fitted, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.fits.result import FAR, FitResult
from analysis.report.summary import points_text
from arch.amounts import count, counted, flop
from arch.tables import rows_table, wrapped

from .fit_view import interval_cell

if TYPE_CHECKING:
    from analysis.fits.groups import Fits

# What a parameter means, where its name does not say it.
MEANINGS = {
    "a": "N_opt ~ C^a",
    "b": "D_opt ~ C^b",
    "E": "irreducible loss",
    "alpha": "L - E ~ N^-alpha",
    "beta": "L - E ~ D^-beta",
    "L_exponent": "L_opt ~ C^this",
}
AT_MIDDLE = ("N_opt", "D_opt", "L_opt")  # parameters that hold at diagnostics["middle"]


def details_text(fits: Fits) -> list[str]:
    """Every law, and the approaches of each group side by side."""
    return [*map(result_text, fits.results), side_by_side_text(fits.compared)]


def result_text(result: FitResult) -> str:
    """One law: its parameters, the optimum at a few C, how it was fitted, and whether to believe it."""
    title = f"{result.group}: {result.approach}" if result.group else result.approach
    span = f", C {flop(result.range[0])} to {flop(result.range[1])} FLOP" if result.range else ""
    named = ", ".join(f"{key}: {value}" for key, value in result.conventions.items())
    head = f"{title}, {points_text(result)}{span} ({named})"
    parts = ["\n".join(wrapped([head])), rows_table(_parameters(result))]
    if rows := optimum_rows(result):
        parts.append(rows_table(rows))
    parts.append("\n".join(wrapped(_notes(result))))
    return "\n\n".join(part for part in parts if part)


def _four(value: float) -> str:
    return count(value, 4)


def _parameters(result: FitResult) -> list[dict[str, str]]:
    middle = result.diagnostics.get("middle")
    rows = []
    for name, value in result.params.items():
        meaning = MEANINGS.get(name, "")
        if name in AT_MIDDLE and middle is not None:
            meaning = f"at C = {flop(middle)} FLOP"
        form = _four if name in ("N_opt", "D_opt") else "{:.6g}".format
        ends, shown = interval_cell(result.intervals.get(name), form), form(value)
        if result.diagnostics.get("curved") and name == "L_opt":
            shown, meaning = "not known", "the power law of L_opt misses its points"
        rows.append({"parameter": name, "value": shown, "interval": ends, "meaning": meaning})
    return rows


def optimum_rows(result: FitResult) -> list[dict[str, str]]:
    """N_opt, D_opt and L_opt at the C of `diagnostics["optimum"]`, each with its interval."""
    rows = []
    for optimum in result.diagnostics.get("optimum") or ():
        row = {"C (FLOP)": flop(optimum["C"])}
        for letter, form in (("N", _four), ("D", _four), ("L", "{:.4f}".format)):
            value = optimum.get(letter)
            row[f"{letter}_opt"] = "not known" if value is None else form(value)
            row[f"interval of {letter}"] = interval_cell((optimum.get("intervals") or {}).get(letter), form)
        if optimum.get("N") and optimum.get("D"):
            row["D / N"] = f"{optimum['D'] / optimum['N']:.3g}"
        times = result.beyond(optimum["C"])
        row["beyond the range"] = "inside" if times < 1.01 else f"x {count(times)}{': too far' if times > FAR else ''}"
        rows.append(row)
    return rows


def _notes(result: FitResult) -> list[str]:
    objective = result.objective
    value = f": {objective['value']:.6g}" if isinstance(objective.get("value"), float) else ""
    lines = [f"objective: {objective.get('name')}{value}" + _starts(objective)]
    interval = result.interval
    if interval.get("level"):
        over = f", {counted(interval['replicates'], 'replicate')}" if interval.get("replicates") else ""
        lines.append(f"intervals: nominal level {interval['level']:g}, {interval.get('method')}{over}")
        if interval.get("estimand"):
            lines.append(f"of: {interval['estimand']}")
    else:
        lines.append(f"intervals: {interval.get('method', 'none')}")
    for name, why in (result.diagnostics.get("not_identified") or {}).items():
        lines.append(f"{name} is not identified: {why}")
    if "p_tied" in result.diagnostics:
        p = result.diagnostics["p_tied"]
        lines.append("alpha = beta: " + ("not tested" if p is None else f"p = {p:.3g} against the plain form"))
    lines += [f"note: {note}" for note in result.diagnostics.get("notes") or ()]
    if assumes := result.diagnostics.get("assumes"):
        lines.append(f"assumes: {assumes}")
    lines += _leave_one_size_out(result.diagnostics.get("leave_one_size_out") or {})
    if result.diagnostics.get("from_curves"):
        lines.append("losses at each budget are read off whole curves: right under a constant learning rate alone")
    lines += [f"no minimum at {why}" for why in result.diagnostics.get("refused") or ()]
    lines += [f"left out: {why}" for why in result.diagnostics.get("left_out") or ()]
    if result.verdict is not None:
        lines.append(f"verdict: {result.verdict.believe}" + "".join(f"; {why}" for why in result.verdict.reasons))
    return lines


def _leave_one_size_out(left_out: Mapping[str, Any]) -> list[str]:
    """How far single sizes decide the result."""
    ranges = left_out.get("ranges") or {}
    forms = {"a": "{:.3f}".format, "N_opt": count}
    text = ", ".join(f"{name} {interval_cell(ranges[name], form)}" for name, form in forms.items() if name in ranges)
    lines = [f"without one of {len(left_out['left_out'])} sizes: {text}"] if text else []
    impossible = [name for name in left_out.get("impossible") or {} if name != "all"]
    return lines + ([f"without size {', '.join(impossible)} no fit is possible"] if impossible else [])


def _starts(objective: Mapping[str, Any]) -> str:
    """How the other starts ended, where there were several."""
    if not isinstance(objective.get("worst"), float):
        return ""
    starts = f" of {objective['starts']} starts" if isinstance(objective.get("starts"), int) else ""
    stopped = objective.get("abnormal")
    ended = f"; {stopped} of the starts stopped before they reached a minimum" if stopped else ""
    return f" (the worst{starts} ended at {objective['worst']:.6g}{ended})"


def side_by_side_text(compared: Mapping[str, Any]) -> str:
    """The approaches of each group side by side, where it has several; "" without such."""
    parts = []
    for group, comparison in compared.items():
        if not comparison["pairs"]:
            continue
        rows = []
        for approach, claim in comparison["claims"].items():
            row = {"approach": approach, "a": "not known" if claim["a"] is None else f"{claim['a']:.4f}"}
            row["interval of a"] = interval_cell(claim["interval"], "{:.4f}".format)
            row |= {
                f"N_opt at {flop(float(c))}": "not known" if n is None else count(n) for c, n in claim["n_opt"].items()
            }
            rows.append(row)
        verdict = "they disagree" if comparison["disagree"] else "they do not contradict each other"
        title = f"{group}: side by side, {verdict}" if group else f"side by side, {verdict}"
        parts.append(f"{title}\n{rows_table(rows)}")
    return "\n\n".join(parts)
