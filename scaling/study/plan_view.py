"""A plan as a table for reading: a line a run, or fewer where a terminal would not hold them. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arch.amounts import byte_size, count, counted, flop
from arch.tables import text_table, wrapped

from .cost import merged_note
from .grid import FORECAST, role_text

MOST_LINES = 40
TOGETHER = "s*: all seeds in one line, and a trunk with its branches where there are many; --json lists every run"

Row = dict[str, Any]


def show_plan(table: dict[str, Any]) -> str:
    """The table of runs, then totals and notes. Runs that differ by seed alone share a line where there are more than
    MOST_LINES, and where that is not enough a trunk's branches too; tokens, steps and C are then those of the first and
    the last."""
    groups = _grouped(table["runs"])
    return "\n".join([text_table(*_lines(groups)), *wrapped(_closing(table, len(groups)).split("\n"))])


def _grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """(name, its runs), a line each."""
    namings: tuple[Callable[[Row], str], ...] = (
        lambda row: str(row["run_id"]),
        _without_seed,
        lambda row: _without_seed(row | {"run_id": row["trunk"] or row["run_id"]}),
    )
    groups: dict[str, list[Row]] = {}
    for naming in namings:
        groups = {}
        for row in rows:
            groups.setdefault(naming(row), []).append(row)
        if len(groups) <= MOST_LINES:
            break
    return list(groups.items())


def _without_seed(row: Row) -> str:
    """llama-12m-c2048-s* of llama-12m-c2048-s3: ids end in seed, axes and branch, so the last such part is the seed."""
    before, seed, after = str(row["run_id"]).rpartition(f"-s{row['seed']}")
    return f"{before}-s*{after}" if seed else str(row["run_id"])


def _lines(groups: Sequence[tuple[str, list[Row]]]) -> tuple[list[str], list[list[str]]]:
    branches = any(row["trunk"] for _, rows in groups for row in rows)
    several = any(len(rows) > 1 for _, rows in groups)
    heads = ["run", *["runs"] * several, "N non-emb.", "N total", "tokens", *["trained"] * branches, "steps", "lr"]
    lines = []
    for name, rows in groups:
        points = [row for row in rows if row["trunk"]] or rows  # a trunk is no point of its own beside its branches
        lines.append(
            [
                name + role_text(rows[0]["role"], rows[0]["round"]),
                *[f"{len(rows):,}"] * several,
                count(rows[0]["n_params_non_embedding"]),
                count(rows[0]["n_params"]),
                _span(points, "n_tokens", count),
                *[count(sum(row["trained_tokens"] for row in rows))] * branches,
                _span(points, "n_steps", lambda steps: f"{steps:,}"),
                _span(rows, "lr", lambda rate: "law" if rate is None else f"{rate:g}"),
                _span(points, "flops_exact", flop),
                _span(points, "flops_paper", flop),
                f"{sum(row['share'] for row in rows):.1%}",
            ]
        )
    return [*heads, "C exact", "C paper", "share"], lines


def _span(rows: Sequence[Row], key: str, form: Callable[[Any], str]) -> str:
    values = sorted({row[key] for row in rows if key in row})
    if not values:
        return "-"
    ends = dict.fromkeys((form(values[0]), form(values[-1])))
    return " to ".join(ends)


def _together(notes: Sequence[str]) -> list[str]:
    """Notes of `arch/size: text`, one for all architectures of a size that have the same."""
    archs_of: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        where, colon, text = note.partition(": ")
        arch, slash, size = where.partition("/")
        key = (size, text) if slash and colon else ("", note)
        archs_of.setdefault(key, []).append(arch)
    return [
        f"{size} ({', '.join(dict.fromkeys(archs))}): {text}" if size else text
        for (size, text), archs in archs_of.items()
    ]


def _closing(table: dict[str, Any], n_lines: int) -> str:
    """The lines below the table."""
    totals, rows = table["totals"], table["runs"]
    n_branches = sum(bool(row["trunk"]) for row in rows)
    lines = [TOGETHER] if n_lines < len(rows) else []
    n_forecast = sum(row["role"] == FORECAST for row in rows)
    parts = [f"{n_branches:,} of them branches"] * bool(n_branches) + [f"{n_forecast:,} forecast"] * bool(n_forecast)
    summary = f"{counted(totals['n_runs'], 'run')}" + (f" ({', '.join(parts)})" if parts else "")
    lines.append(
        f"{summary}, {count(totals['n_tokens'])} tokens, {counted(totals['n_checkpoints'], 'checkpoint')} "
        f"({byte_size(totals['checkpoint_bytes'])})"
    )
    lines += [f"and {note}" for note in [merged_note(totals)] if note]
    lines.append(
        f"{'spent' if n_branches else 'C'} = {flop(totals['flops_exact'], 4)} FLOP exact "
        f"({flop(totals['pf_days_exact'])} PF-days), "
        + (f"{flop(totals['flops_paper'], 4)} paper, " if "flops_paper" in totals else "")
        + f"{flop(totals['flops_6nd'], 4)} 6nd"
    )
    if totals["h200_days_at_40_percent"] >= 0.01:
        lines.append(f"about {totals['h200_days_at_40_percent']:,.2f} days of one H200 at 40 % of its bf16 peak")
    lines += [table[key]["text"] for key in ("expected", "evaluations", "entropy_rate") if key in table]
    lines += [table["fits"]] if "fits" in table else []
    lines += _together(table["notes"])
    lines += [f"warning: {line}" for line in table["warnings"]]
    return "\n".join([*lines, f"everything goes to {table['directory']}/"])
