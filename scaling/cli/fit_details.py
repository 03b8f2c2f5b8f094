"""What --details prints of each law: its parameters, optima, how it was fitted, and its verdict."""

from __future__ import annotations

from analysis.fits.fit import FAR, L_OPT, QUANTITIES, Fit, Objective
from analysis.report.summary import points_text, reasons_of
from arch.amounts import count, counted, flop
from arch.tables import rows_table, wrapped

from .fit_view import interval_cell

# What a parameter means, where its name does not say it.
MEANINGS = {
    "a": "N_opt ~ C^a",
    "b": "D_opt ~ C^b",
    "E": "irreducible loss",
    "alpha": "L - E ~ N^-alpha",
    "beta": "L - E ~ D^-beta",
    "gamma": "L - E = (A / N^alpha + B / D^beta)^gamma",
    "L_exponent": "L_opt ~ C^this",
}


def result_text(result: Fit) -> str:
    """One law: its parameters, the optimum at a few C, how it was fitted, and whether to believe it."""
    title = f"{result.group}: {result.approach}" if result.group else result.approach
    span = f", C {flop(result.range[0])} to {flop(result.range[1])} FLOP"
    named = ", ".join(f"{key}: {value}" for key, value in result.conventions.items())
    head = f"{title}, {points_text(result)}{span} ({named})"
    parts = ["\n".join(wrapped([head])), rows_table(_parameters(result))]
    if rows := optimum_rows(result):
        parts.append(rows_table(rows))
    parts.append("\n".join(wrapped(_notes(result))))
    return "\n\n".join(part for part in parts if part)


def _four(value: float) -> str:
    return count(value, 4)


def _parameters(result: Fit) -> list[dict[str, str]]:
    rows = []
    for name, estimate in result.parameters.items():
        assert estimate.value is not None  # only those that are known
        meaning = MEANINGS.get(name, "")
        if name in QUANTITIES and result.middle is not None:
            meaning = f"at C = {flop(result.middle.flops)} FLOP"
        form = _four if name in ("N_opt", "D_opt") else "{:.6g}".format
        ends, shown = interval_cell(estimate.interval, form), form(estimate.value)
        if result.law(L_OPT).curved and name == L_OPT:
            shown, meaning = "not known", "the power law of L_opt misses its points"
        rows.append({"parameter": name, "value": shown, "interval": ends, "meaning": meaning})
    return rows


def optimum_rows(result: Fit) -> list[dict[str, str]]:
    """N_opt, D_opt and L_opt at the C that was asked for, each with its interval."""
    rows = []
    for optimum in result.optima:
        row = {"C (FLOP)": flop(optimum.flops)}
        for name, form in zip(QUANTITIES, (_four, _four, "{:.4f}".format), strict=True):
            estimate = optimum.of(name)
            row[name] = "not known" if estimate.value is None else form(estimate.value)
            row[f"interval of {name[0]}"] = interval_cell(estimate.interval, form)
        if optimum.n_params.value and optimum.n_tokens.value:
            row["D / N"] = f"{optimum.n_tokens.value / optimum.n_params.value:.3g}"
        times = result.beyond(optimum.flops)
        row["beyond the range"] = "inside" if times < 1.01 else f"x {count(times)}{': too far' if times > FAR else ''}"
        rows.append(row)
    return rows


def _notes(result: Fit) -> list[str]:
    objective, made, part = result.objective, result.intervals, result.parametric
    value = "" if objective.value is None else f": {objective.value:.6g}"
    lines = [f"objective: {objective.name}{value}" + _starts(objective)]
    if made.level:
        over = f", {counted(made.replicates, 'replicate')}" if made.replicates else ""
        lines.append(f"intervals: nominal level {made.level:g}, {made.method}{over}")
        if made.estimand:
            lines.append(f"of: {made.estimand}")
    else:
        lines.append(f"intervals: {made.method}")
    lines += [f"{name} is not identified: {why}" for name, why in result.reasons.items()]
    if part is not None and part.over_training is not None:
        tested = "not tested" if part.p_tied is None else f"p = {part.p_tied:.3g} against the plain form"
        lines.append(f"alpha = beta: {tested}")
    lines += [f"note: {note}" for note in result.notes]
    if part is not None:
        lines += [f"assumes: {part.assumes}"] if part.assumes else []
    if result.isoflop is not None:
        if result.isoflop.from_curves:
            lines.append("losses at each budget are read off whole curves: right under a constant learning rate alone")
        lines += [f"no minimum at {flop(minimum.c, 4)} FLOP: {minimum.reason}" for minimum in result.isoflop.refused]
    lines += [f"left out: {why}" for why in result.left_out]
    if result.verdict is not None:
        lines.append(f"verdict: {result.verdict.believe}" + "".join(f"; {why}" for why in reasons_of(result.verdict)))
        for claim in result.verdict.claims:
            checks = "; ".join(f"{check.name} {check.state}: {check.words}" for check in claim.checks)
            lines.append(f"{claim.what} at {flop(claim.c)} FLOP: {checks}")
    return lines


def _starts(objective: Objective) -> str:
    """How the other starts ended, where there were several."""
    if objective.worst is None:
        return ""
    starts = f" of {objective.starts} starts" if objective.starts is not None else ""
    return f" (the worst{starts} ended at {objective.worst:.6g})"
