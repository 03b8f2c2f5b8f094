"""Runs that are in no fit, in lines: those that are so for one reason in one line, with how many and which."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.fits.study_fits import StudyFits

MOST_NAMED = 3  # runs that a line names


def named(runs: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(runs) - MOST_NAMED} more (fits.json names all)" if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + more


def sizes_left_out(fits: StudyFits) -> dict[str, list[str]]:
    """The sizes of each group that its parametric law is fitted without (fit.stopped); groups without one are not in
    it."""
    found = {}
    for law in fits.laws if fits.settings.stopped == "leave_out" else ():
        if law.parametric is None:
            continue
        gone = [one.size for one in fits.group(law.group).sizes if one.size not in law.parametric.sizes]
        if law.parametric.sizes and gone:
            found[law.group] = gone
    return found


def unused_lines(fits: StudyFits) -> list[str]:
    """Of runs that enter no curve: as they are not done, as they are too short; and of those of which single rows or
    evaluations are left out."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for group in fits.groups:
        for run in group.left_out:
            state = run.state
            one_does, all_do = (
                ("enters no curve of its size", "enter no curve of their size")
                if state == "done"
                else (
                    f"left out of the fits, its state is {state}",
                    f"are left out of the fits, their state is {state}",
                )
            )
            found.setdefault((one_does, all_do, run.reason), []).append(run.run_id)
    lines = []
    for (one_does, all_do, reason), runs in found.items():
        why = f": {reason}" if reason else ""
        lines.append(
            f"{runs[0]}: {one_does}{why}" if len(runs) == 1 else f"{len(runs)} runs {all_do}{why}: {named(runs)}"
        )
    return lines + [
        f"{one['run_id']}: single rows or evaluations of it are left out, not the run: {one['why']}"
        for one in fits.skipped
    ]
