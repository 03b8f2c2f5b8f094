"""What `scaling bundle compare` prints and draws."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from analysis.repeats.compare import curve_rows, run_rows, short, sum_lines, unit_of_repeats
from arch.amounts import counted
from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from ..stages.bundle_compare import Comparison

SHOWN = 10  # runs that are named of those not compared


def comparison_lines(comparison: Comparison, curves: bool) -> list[str]:
    """What trained both sides, the table of runs, with `curves` their curves, what is not compared, and a summary."""
    lines = [f"study {comparison.study}: {counted(len(comparison.repeats), 'run')} trained in both A and B"]
    if comparison.repeats:
        lines += [*side_lines(comparison), "", rows_table(run_rows(comparison.repeats)), ""]
    for repeat in comparison.repeats if curves else ():
        if not repeat.is_bit_equal:
            lines += [
                f"{short(repeat.name)}: held-out loss in {unit_of_repeats([repeat])}",
                rows_table(curve_rows(repeat)),
                "",
            ]
    if comparison.copies:
        lines += [f"copies: {counted(len(comparison.copies), 'run')} of the same training in both, only counted"]
    lines += _named("only in A", comparison.only_a) + _named("only in B", comparison.only_b)
    lines += _named("of other settings (spec_hash)", comparison.other_settings)
    lines += [
        line for name, why in comparison.not_compared.items() for line in wrapped([f"not compared: {name}: {why}"])
    ]
    return [*lines, *wrapped(sum_lines(comparison.repeats, comparison.noise_of))]


def side_lines(comparison: Comparison) -> list[str]:
    """What trained the runs of A and of B, and with which versions."""
    return [
        _made("A", comparison.a),
        _made("B", comparison.b),
        _versions(comparison.a["versions"], comparison.b["versions"]),
    ]


def _made(name: str, side: dict[str, Any]) -> str:
    devices = (
        ", ".join(f"{device} ({counted(n, 'run')})" for device, n in side["devices"].items()) or "devices not recorded"
    )
    days = " to ".join(side["trained"]) or "day not recorded"
    commits = ", ".join(commit.strip()[:12] for commit in side["git_commits"]) or "not recorded"
    return f"{name}: {side['path']}: {devices}, {days}, commit {commits}"


def _versions(a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    names = list(dict.fromkeys([*a, *b]))
    versions = {name: tuple(" or ".join(side.get(name, ["none"])) for side in (a, b)) for name in names}
    differ = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
    if not differ:
        return f"versions: the same ({', '.join(f'{name} {pair[0]}' for name, pair in versions.items())})"
    each = "; ".join(f"{name} {version} in A, {other} in B" for name, (version, other) in differ.items())
    return f"versions: {each}; the others are the same"


def _named(what: str, names: Collection[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(short(name) for name in list(names)[:SHOWN])
    more = f" and {len(names) - SHOWN} more (--json names all)" if len(names) > SHOWN else ""
    return wrapped([f"{what}: {counted(len(names), 'run')}: {shown}{more}"])
