"""The report's tables of what the training was to take and what it took, and of what a wrong choice costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.figures.axes import power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits, WrongChoices
from analysis.pages.cells import number, shown
from arch.amounts import count, counted, flop

if TYPE_CHECKING:
    from analysis.costs import Cost


def cost_rows(costs: Sequence[Cost]) -> list[dict[str, str]]:
    """A row a run that has begun."""
    return [
        {
            "run": cost.run_id,
            "tokens": number(count(cost.tokens), cost.tokens),
            "FLOP (exact)": number(flop(cost.flops_exact), cost.flops_exact),
            "planned (min)": shown(cost.planned_minutes, ",.2f"),
            "spent (min)": shown(cost.spent_minutes, ",.2f"),
            "spent / planned": shown(_spent_share(cost), ".2f"),
            "tokens/s": shown(cost.tokens_per_s, ",.0f"),
            "MFU (exact)": shown(cost.mfu_exact, ".1%"),
        }
        for cost in costs
        if cost.tokens
    ]


def _spent_share(cost: Cost) -> float | None:
    """Of a run that is done: what others were to take is of all their steps."""
    spent, planned = cost.spent_minutes, cost.planned_minutes
    return spent / planned if cost.state == "done" and spent is not None and planned else None


def cost_notes(costs: Sequence[Cost]) -> list[str]:
    """The sums, and what the columns are."""
    begun = [cost for cost in costs if cost.tokens]
    if not begun:
        return []
    larger = [cost for cost in begun if cost.is_forecast]
    of_forecast = f", {_flop(larger)} of them of its forecast" if larger else ""
    notes = [
        f"All runs of the study together: {_flop(begun)} FLOP by the convention exact{of_forecast}. "
        f"Runs of a sweep and variants are not counted."
    ]
    timed = [cost for cost in begun if cost.spent_minutes is not None and cost.planned_minutes is not None]
    if done := [cost for cost in timed if cost.state == "done"]:
        kinds = ", ".join(dict.fromkeys(cost.device for cost in done))
        beyond = _minutes(cost for cost in done if cost.is_forecast)
        of_larger = f", {beyond:,.1f} of them the forecast's" if beyond else ""
        planned = sum(cost.planned_minutes or 0.0 for cost in done)
        notes.append(
            f"Training took {_minutes(done):,.1f} minutes of its devices ({kinds}){of_larger}; {planned:,.1f} were "
            f"planned. Planned are the steps as `scaling plan` times them on that device, with the start of each run; "
            f"spent is the runs' own clock times their processes. Steps that a resumed run made again do not count, "
            f"and runs that shared a device each count its time. Tokens/s: of the steps after a process' first ones."
        )
    if others := [cost for cost in timed if cost.state != "done"]:
        notes.append(f"Not done: {len(others)} of the runs, which took {_minutes(others):,.1f} minutes more.")
    if any(cost.mfu_exact is not None for cost in begun):
        notes.append("MFU: FLOP of the convention exact over spent time and the device's dense bf16 peak.")
    if len(timed) < len(begun):
        notes.append(f"{counted(len(begun) - len(timed), 'run has', 'runs have')} no time or no known device.")
    return notes


def _flop(costs: Sequence[Cost]) -> str:
    return flop(sum(cost.flops_exact for cost in costs))


def _minutes(costs: Iterable[Cost]) -> float:
    return sum(cost.spent_minutes or 0.0 for cost in costs)


def doubted_surfaces(fits: StudyFits) -> list[str]:
    """The groups whose parametric law is not believed."""
    return [law.group for law in fits.laws if law.approach == "parametric" and law.verdict and law.verdict.reach == 0]


def choice_table(choices: Mapping[str, WrongChoices]) -> list[dict[str, str]]:
    """A row an architecture: the share of its largest compute that a wrong size or a higher loss wastes."""
    rows = []
    for arch, choice in choices.items():
        row = {"architecture": name_of(arch), "at C (FLOP)": number(power_of_ten(choice.c), choice.c)}
        row |= {f"{size.amount:g} N_opt": shown(size.share.value, ".1%") for size in choice.sizes}
        row |= {f"loss {loss.amount:.1%} higher": shown(loss.share.value, ".1%") for loss in choice.losses}
        rows.append(row)
    return rows


def choice_notes(fits: StudyFits) -> list[str]:
    """Whose numbers not to rely on."""
    doubted = [name_of(group) for group in doubted_surfaces(fits)]
    return [f"Not to be relied on where the fitted surface is not: {', '.join(doubted)}."] if doubted else []
