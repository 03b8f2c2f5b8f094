"""Runs that are in no fit, in lines: those that are so for one reason in one line, with how many and which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST_NAMED = 3  # runs that a line names


def named(runs: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(runs) - MOST_NAMED} more (fits.json names all)" if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + more


def unused_lines(fits: dict[str, Any]) -> list[str]:
    """Of runs that enter no curve: as they are not done, as they are too short, or as one cannot have written them."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in fits["archs"].values():
        for run in one["left_out"]:
            state = str(run["state"])
            one_does, all_do = (
                ("enters no curve of its size", "enter no curve of their size")
                if state == "done"
                else (
                    f"left out of the fits, its state is {state}",
                    f"are left out of the fits, their state is {state}",
                )
            )
            found.setdefault((one_does, all_do, str(run["reason"] or "")), []).append(run["run_id"])
    lines = []
    for (one_does, all_do, reason), runs in found.items():
        why = f": {reason}" if reason else ""
        lines.append(
            f"{runs[0]}: {one_does}{why}" if len(runs) == 1 else f"{len(runs)} runs {all_do}{why}: {named(runs)}"
        )
    return lines + [
        f"{one['run_id']}: left out because the run cannot have written it: {one['why']}" for one in fits["skipped"]
    ]
