"""What `scaling bundle compare` prints and draws."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from analysis.repeats.rows import curve_rows, run_rows, short, sum_lines, unit_of_repeats
from arch.amounts import counted
from arch.tables import rows_table, wrapped

if TYPE_CHECKING:
    from ..stages.bundle_compare import Comparison

SHOWN = 10  # runs that are named of those not compared


def comparison_lines(found: Comparison, curves: bool) -> list[str]:
    """Who trained what, the table of runs, their curves where asked for, what is not compared, and the sum of it."""
    lines = [f"study {found.study}: {counted(len(found.repeats), 'run')} trained in both A and B"]
    if found.repeats:
        lines += [*side_lines(found), "", rows_table(run_rows(found.repeats)), ""]
    for one in found.repeats if curves else ():
        if not one.is_bit_equal:
            lines += [f"{short(one.name)}: held-out loss in {unit_of_repeats([one])}", rows_table(curve_rows(one)), ""]
    if found.copies:
        lines += [f"copies: {counted(len(found.copies), 'run')} of the same training in both, only counted"]
    lines += _named("only in A", found.only_a) + _named("only in B", found.only_b)
    lines += _named("of other settings (spec_hash)", found.other_settings)
    lines += [line for name, why in found.not_compared.items() for line in wrapped([f"not compared: {name}: {why}"])]
    return [*lines, *wrapped(sum_lines(found.repeats, found.noise_of))]


def side_lines(found: Comparison) -> list[str]:
    """What trained the runs of A and of B, and with which versions."""
    return [_made("A", found.a), _made("B", found.b), _versions(found.a["versions"], found.b["versions"])]


def _made(name: str, side: dict[str, Any]) -> str:
    devices = (
        ", ".join(f"{device} ({counted(n, 'run')})" for device, n in side["devices"].items()) or "devices not recorded"
    )
    days = " to ".join(side["trained"]) or "day not recorded"
    commits = ", ".join(commit.strip()[:12] for commit in side["git_commits"]) or "not recorded"
    return f"{name}: {side['path']}: {devices}, {days}, commit {commits}"


def _versions(a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    names = list(dict.fromkeys([*a, *b]))
    told = {name: tuple(" or ".join(one.get(name, ["none"])) for one in (a, b)) for name in names}
    differ = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    if not differ:
        return f"versions: the same ({', '.join(f'{name} {pair[0]}' for name, pair in told.items())})"
    each = "; ".join(f"{name} {one} in A, {other} in B" for name, (one, other) in differ.items())
    return f"versions: {each}; the others are the same"


def _named(what: str, names: Collection[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(short(name) for name in list(names)[:SHOWN])
    more = f" and {len(names) - SHOWN} more (--json names all)" if len(names) > SHOWN else ""
    return wrapped([f"{what}: {counted(len(names), 'run')}: {shown}{more}"])
