"""`flops budget` as a table: what lies beyond the fitted range is marked in the cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .budget import FAR
from .laws import PARTS, Laws
from .quantity import PF_DAY
from .tables import Column, Table, digits, short


@dataclass(frozen=True)
class _Value:
    """A number by a law, how many times C lies outside of its range, and whether the law misses its own points."""

    value: float
    beyond: float
    misses: bool = False


def budgets(
    laws: Laws, c: float, rows: Sequence[dict[str, Any]], messages: Sequence[str]
) -> tuple[Table, dict[str, Any]]:
    """`flops budget`."""
    columns = [
        Column("arch", text=True),
        _marked("n_opt", "N_opt", short),
        *_interval("n_opt", short, laws, rows),
        _marked("d_opt", "D_opt\ntokens", short),
        *_interval("d_opt", short, laws, rows),
        _marked("loss", f"loss\n{laws.loss_unit}", lambda value: f"{value:.4f}"),
        *_interval("loss", lambda value: f"{value:.3f}", laws, rows),
        _marked("steps", "steps", lambda value: f"{value:,.0f}"),
        _marked("tokens_per_param", "D/N", digits),
        _marked("ratio_6nd", "6ND/C", lambda value: f"{value:.3g}"),
        Column("a_plus_b", "a + b", lambda value: "-" if value is None else f"{value:.3f}"),
        *_outside(rows),
    ]
    columns += [
        Column(key, csv_only=True)
        for key in ("approach", "ratio_per_decade", "cost_growth", "identity_error", "c_min", "c_max", "in_range")
        + ("loss_misses", "loss_off_line")
        + (() if _ranges_differ(rows) else ("loss_beyond",))
    ]
    title = f"C = {c:.4g} FLOP = {c / PF_DAY:.4g} PF-days by {laws.source}"
    names = laws.conventions
    notes = [f"C: training FLOP, convention {names['C']}; N: {names['N']}; L: {names['L']}"]
    approaches: dict[str, list[str]] = {}
    for row in rows:
        if row["approach"]:
            approaches.setdefault(row["approach"], []).append(row["arch"])
    if approaches:
        of = "; ".join(f"{approach} of {', '.join(archs)}" for approach, archs in approaches.items())
        notes.append(f"By the approach that is believed most: {of}.")
    grown = [f"{row['arch']} N^{row['cost_growth']:.2f}" for row in rows if round(row["cost_growth"] or 1.0, 2) != 1]
    if grown:
        notes.append(
            f"In this convention the cost of a token grows as {', '.join(grown)} over the fitted sizes. So neither "
            "a + b nor 6ND/C need be 1; a law is consistent where a p + b = 1."
        )
    if any(row[f"{part}_interval"] for row in rows for part in PARTS):
        notes.append(
            "Intervals cover seed noise alone. Text, learning rates and the form of the law are taken as given."
        )
    most = max((max(row["beyond"] or 1.0, row["loss_beyond"] or 1.0) for row in rows), default=1.0)
    if most > 1:
        notes.append(
            "~: extrapolated beyond the compute that was fitted; no interval of a fit covers the error of this."
        )
    if any(row["loss_misses"] for row in rows):
        notes.append("?: the law misses the points that it was fitted to by more than noise, also inside its range.")
    if most > FAR:
        notes.append(f"(~): more than {FAR:.0f} times beyond the fitted compute: a guess.")
    data = {
        "compute_flops": c,
        "compute_pf_days": c / PF_DAY,
        "law": laws.source,
        "conventions": {**names, "unit_C": "FLOP"},
        "rows": list(rows),
        "warnings": list(messages),
    }
    return Table(title, columns, [_with_marks(row) for row in rows], notes), data


def _with_marks(row: dict[str, Any]) -> dict[str, Any]:
    marked = dict(row)
    for key in ("n_opt", "d_opt", "loss", "steps", "tokens_per_param", "ratio_6nd"):
        beyond = row["loss_beyond" if key == "loss" else "beyond"]
        misses = key == "loss" and bool(row["loss_misses"])
        marked[key] = None if row[key] is None else _Value(row[key], beyond or 1.0, misses)
    if row["n_opt"] is None:
        marked["beyond"] = None
    return marked


def _ranges_differ(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether C lies otherwise in the range of some N_opt than in that of its loss."""
    return any(row["n_opt"] is None or row["beyond"] != row["loss_beyond"] for row in rows)


def _outside(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """How far C lies outside of what was fitted: in one column, or in one for the loss and one for N_opt."""
    if not _ranges_differ(rows):
        return [Column("beyond", "C outside\nthe range", _times)]
    return [
        Column("loss_beyond", "C outside\nL's range", _times),
        Column("beyond", "C outside\nN_opt's", _times),
    ]


def _marked(key: str, head: str, show: Callable[[float], str]) -> Column:
    def cell(entry: _Value | None) -> str:
        if entry is None:
            return "-"
        text = ("?" if entry.misses else "") + show(entry.value)
        return text if entry.beyond == 1 else f"~{text}" if entry.beyond <= FAR else f"(~{text})"

    return Column(key, head, cell, csv=lambda entry: None if entry is None else entry.value)


def _interval(part: str, show: Callable[[float], str], laws: Laws, rows: Sequence[dict[str, Any]]) -> list[Column]:
    """The column of a part's intervals; none where no law has one."""
    key = f"{part}_interval"
    if all(row[key] is None for row in rows):
        return []
    head = f"{laws.level:.0%}\ninterval" if laws.level else "interval"

    def drawn(ends: tuple[float, float] | None) -> str:
        return "none" if ends is None else f"{show(ends[0])} to {show(ends[1])}"

    return [Column(key, head, drawn, csv=drawn)]


def _times(beyond: float | None) -> str:
    return "-" if beyond is None else "inside" if beyond == 1 else f"x {digits(beyond)}"
