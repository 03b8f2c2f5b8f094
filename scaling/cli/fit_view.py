"""What `scaling fit` prints of results, of what was read, and of published laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from analysis.fits.result import FitResult
    from analysis.fits.tables import Reading

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


def reading_text(reading: Reading) -> str:
    """What was read, left out and kept, and which column is what."""
    unit = reading.unit
    lines = [f"{reading.source}: {_left_out(reading, unit)}"]
    if reading.columns:
        lines.append("columns: " + ", ".join(f"{field} = {name}" for field, name in reading.columns.items()))
    lines += [f"{field} derived: {how}" for field, how in reading.derived.items()]
    if reading.six_nd is not None:
        low, middle, high = reading.six_nd
        lines.append(f"6 N D / C: {low:.4g} to {high:.4g}, median {middle:.4g}")
    lines += reading.notes
    if len(reading.groups) > 1:
        told = ", ".join(f"{name} ({len(one)} points of {one.n_runs} runs)" for name, one in reading.groups.items())
        lines.append(f"groups: {told}")
    return "\n".join(wrapped(lines))


def _left_out(reading: Reading, unit: str) -> str:
    gone = ", ".join(f"{count:,} {why}" for why, count in reading.dropped.items())
    kept = f"{reading.n_kept:,} kept ({'last row of each run' if reading.points == 'ends' else 'whole curves'})"
    if unit != "rows" or not reading.several_rows:
        kept = f"{reading.n_kept:,} kept"
    return f"{reading.n_read:,} {unit} read, {gone + ' left out' if gone else 'none left out'}, {kept}"


def result_text(result: FitResult) -> str:
    """One law: its parameters, the optimum at a few C, how it was found, and whether to believe it."""
    title = f"{result.group}: {result.approach}" if result.group else result.approach
    span = f", C {result.range[0]:.3g} to {result.range[1]:.3g} FLOP" if result.range else ""
    named = ", ".join(f"{key}: {value}" for key, value in result.conventions.items())
    head = f"{title}, {result.n_points:,} points of {result.n_runs:,} runs{span} ({named})"
    parts = ["\n".join(wrapped([head])), rows_table(_parameters(result))]
    if rows := optimum_rows(result):
        parts.append(rows_table(rows))
    if predicted := result.diagnostics.get("predictions"):
        parts.append(rows_table([_prediction(one) for one in predicted]))
    parts.append("\n".join(wrapped(_notes(result))))
    return "\n\n".join(part for part in parts if part)


def _parameters(result: FitResult) -> list[dict[str, str]]:
    middle = result.diagnostics.get("middle")
    rows = []
    for name, value in result.params.items():
        meaning = MEANINGS.get(name, "")
        if name in AT_MIDDLE and middle is not None:
            meaning = f"at C = {middle:.4g} FLOP"
        rows.append(
            {
                "parameter": name,
                "value": f"{value:.6g}",
                "interval": interval_cell(result.intervals.get(name), ".6g"),
                "meaning": meaning,
            }
        )
    return rows


def optimum_rows(result: FitResult) -> list[dict[str, str]]:
    """N_opt, D_opt and L_opt at the C of `diagnostics["optimum"]`, each with its interval."""
    rows = []
    for one in result.diagnostics.get("optimum") or ():
        row = {"C (FLOP)": f"{one['C']:.3g}"}
        for letter, form in (("N", ".4g"), ("D", ".4g"), ("L", ".4f")):
            value = one.get(letter)
            row[f"{letter}_opt"] = "not known" if value is None else f"{value:{form}}"
            row[f"interval of {letter}"] = interval_cell((one.get("intervals") or {}).get(letter), form)
        if one.get("N") and one.get("D"):
            row["D / N"] = f"{one['D'] / one['N']:.3g}"
        if result.range:
            beyond = max(one["C"] / result.range[1], result.range[0] / one["C"])
            row["beyond the range"] = f"x {beyond:.3g}" if beyond > 1.01 else "inside"
        rows.append(row)
    return rows


def _prediction(one: Mapping[str, Any]) -> dict[str, str]:
    return {
        "N": f"{one['N']:.4g}",
        "D": f"{one['D']:.4g}",
        "L": f"{one['L']:.5g}",
        "interval": interval_cell(one.get("interval"), ".5g"),
    }


def interval_cell(ends: Sequence[float] | None, form: str) -> str:
    return f"{ends[0]:{form}} to {ends[1]:{form}}" if ends is not None else "none"


def _notes(result: FitResult) -> list[str]:
    found = result.objective
    value = f": {found['value']:.6g}" if isinstance(found.get("value"), float) else ""
    lines = [f"objective: {found.get('name')}{value}" + _starts(found)]
    interval = result.interval
    if interval.get("level"):
        over = f", {interval['replicates']} replicates" if interval.get("replicates") else ""
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
    if assumes := result.diagnostics.get("assumes"):
        lines.append(f"assumes: {assumes}")
    lines += _without_one_size(result.diagnostics.get("leave_one_size_out") or {})
    if result.diagnostics.get("from_curves"):
        lines.append("losses at each budget are read off whole curves: right under a constant learning rate alone")
    lines += [f"no minimum at {why}" for why in result.diagnostics.get("refused") or ()]
    if bias := (result.diagnostics.get("bias") or {}):
        lines.append(f"bias: {bias.get('text') or bias.get('reason')}")
    lines += [f"left out: {why}" for why in result.diagnostics.get("left_out") or ()]
    if result.verdict is not None:
        lines.append(f"verdict: {result.verdict.believe}" + "".join(f"; {why}" for why in result.verdict.reasons))
    return lines


def _without_one_size(found: Mapping[str, Any]) -> list[str]:
    """How far single sizes decide the result."""
    ranges = found.get("ranges") or {}
    told = ", ".join(
        f"{name} {ranges[name][0]:.4g} to {ranges[name][1]:.4g}" for name in ("a", "N_opt") if name in ranges
    )
    lines = [f"without one of {len(found['left_out'])} sizes: {told}"] if told else []
    impossible = [name for name in found.get("impossible") or {} if name != "all"]
    return lines + ([f"without size {', '.join(impossible)} no fit is possible"] if impossible else [])


def _starts(found: Mapping[str, Any]) -> str:
    """How the other starts ended, where there were several."""
    if not isinstance(found.get("worst"), float):
        return ""
    starts = f" of {found['starts']} starts" if isinstance(found.get("starts"), int) else ""
    ended = f", {found['abnormal']} not at a minimum" if found.get("abnormal") else ""
    return f" (the worst{starts} ended at {found['worst']:.6g}{ended})"


def side_by_side_text(compared: Mapping[str, Any]) -> str:
    """The approaches of each group side by side, where it has several; "" without such."""
    parts = []
    for group, one in compared.items():
        if not one["pairs"]:
            continue
        rows = []
        for approach, claim in one["claims"].items():
            row = {"approach": approach, "a": "not known" if claim["a"] is None else f"{claim['a']:.4f}"}
            row["interval of a"] = interval_cell(claim["interval"], ".4f")
            row |= {f"N_opt at {c}": "not known" if n is None else f"{n:.4g}" for c, n in claim["n_opt"].items()}
            rows.append(row)
        told = "they disagree" if one["disagree"] else "they do not contradict each other"
        title = f"{group}: side by side, {told}" if group else f"side by side, {told}"
        parts.append(f"{title}\n{rows_table(rows)}")
    return "\n\n".join(parts)


def failed_lines(failed: Sequence[Mapping[str, str]]) -> list[str]:
    return [f"{one['group'] + ': ' if one['group'] else ''}{one['approach']}: {one['reason']}" for one in failed]


def law_check_text(found: Mapping[str, Any]) -> str:
    """A check of published laws: exponents, 6 N_opt D_opt / C, and how the unit of C was found."""
    parts, notes = [], []
    if found["found"]:
        rows = [
            {
                "unit of C": one["unit"],
                "FLOP": f"{one['flop_per_unit']:.4g}",
                "6 N D / C off by": f"x {one['factor']:.4g}",
            }
            for one in found["units"][:4]
        ]
        parts.append(f"unit of C: {found['unit']} ({found['flop_per_unit']:.4g} FLOP)\n" + rows_table(rows))
        if not found["unit_fits"]:
            notes.append(
                "no usual unit makes 6 N_opt D_opt near C at the largest budget: the laws, or that budget, are off"
            )
        elif not found["unit_clear"]:
            notes.append("another usual unit fits nearly as well: the unit is not certain")
    else:
        parts.append(f"unit of C: {found['unit']} ({found['flop_per_unit']:.4g} FLOP), as given")
    table = []
    for one in found["laws"]:
        row = {"law": one["name"], "a": f"{one['a']:g}", "b": f"{one['b']:g}", "a + b": f"{one['a_plus_b']:.4f}"}
        row["per decade"] = f"x {one['factor_per_decade']:.3f}"
        row |= {f"at {c:.3g}": f"{ratio:.3f}" for c, ratio in zip(found["at"], one["six_nd_over_c"], strict=True)}
        row["is 1 at (FLOP)"] = "none" if one["one_at"] is None else f"{one['one_at']:.3g}"
        table.append(row)
        notes += _law_notes(one)
    parts.append("6 N_opt D_opt / C, at C in FLOP\n" + rows_table(table))
    return "\n\n".join([*parts, "\n".join(wrapped(notes))])


def _law_notes(one: Mapping[str, Any]) -> list[str]:
    if one["holds"]:
        line = f"{one['name']}: a + b = {one['a_plus_b']:.4f}, so C = 6 N D can hold at every C"
    else:
        line = (
            f"{one['name']}: a + b = {one['a_plus_b']:.4f}, so C = 6 N D cannot hold at every C: N_opt D_opt changes "
            f"by x {one['factor_per_decade']:.3f} a decade against C"
        )
    if one["identity_error"] is not None:
        line += (
            f"; with its own cost of a token (~ N^{one['cost_growth']:.3f}) a p + b - 1 = {one['identity_error']:+.4f}"
        )
    return [line]
