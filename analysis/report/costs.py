"""The report's table of what the training was to take and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.pages.cells import number, shown
from arch.amounts import count, counted, flop

if TYPE_CHECKING:
    from analysis.costs import Cost


def cost_rows(costs: Sequence[Cost]) -> list[dict[str, str]]:
    """A row a run that has begun."""
    return [
        {
            "run": one.run_id,
            "tokens": number(count(one.tokens), one.tokens),
            "FLOP (exact)": number(flop(one.flops_exact), one.flops_exact),
            "planned (min)": shown(one.planned_minutes, ",.2f"),
            "spent (min)": shown(one.spent_minutes, ",.2f"),
            "spent / planned": shown(_ratio(one), ".2f"),
            "tokens/s": shown(one.tokens_per_s, ",.0f"),
            "MFU (exact)": shown(one.mfu_exact, ".1%"),
        }
        for one in costs
        if one.tokens
    ]


def cost_notes(costs: Sequence[Cost]) -> list[str]:
    """The sums, and what the columns are."""
    begun = [one for one in costs if one.tokens]
    if not begun:
        return []
    larger = [one for one in begun if one.is_forecast]
    of_forecast = f", {_flop(larger)} of them of its forecast" if larger else ""
    notes = [
        f"All runs of the study together: {_flop(begun)} FLOP by the convention exact{of_forecast}. "
        f"Runs of a sweep and variants are not counted."
    ]
    timed = [one for one in begun if one.spent_minutes is not None and one.planned_minutes is not None]
    if done := [one for one in timed if one.state == "done"]:
        spent = sum(one.spent_minutes or 0.0 for one in done)
        planned = sum(one.planned_minutes or 0.0 for one in done)
        kinds = ", ".join(dict.fromkeys(one.device for one in done))
        beyond = sum(one.spent_minutes or 0.0 for one in done if one.is_forecast)
        of_larger = f", {beyond:,.1f} of them the forecast's" if beyond else ""
        notes.append(
            f"Training took {spent:,.1f} minutes of its devices ({kinds}){of_larger}; {planned:,.1f} were planned. "
            f"Planned are the steps as `scaling plan` times them on that device, with the start of each run; spent is "
            f"the runs' own clock times their processes. Steps that a resumed run made again do not count, and runs "
            f"that shared a device each count its time. Tokens/s: of the steps after a process' first ones."
        )
    if others := [one for one in timed if one.state != "done"]:
        spent = sum(one.spent_minutes or 0.0 for one in others)
        notes.append(f"Not done: {len(others)} of the runs, which took {spent:,.1f} minutes more.")
    if any(one.mfu_exact is not None for one in begun):
        notes.append("MFU: FLOP of the convention exact over spent time and the device's dense bf16 peak.")
    if len(timed) < len(begun):
        notes.append(f"{counted(len(begun) - len(timed), 'run has', 'runs have')} no time or no known device.")
    return notes


def _flop(costs: Sequence[Cost]) -> str:
    return flop(sum(one.flops_exact for one in costs))


def _ratio(one: Cost) -> float | None:
    """Of a run that is done: what others were to take is of all their steps."""
    spent, planned = one.spent_minutes, one.planned_minutes
    return spent / planned if one.state == "done" and spent is not None and planned else None
