"""The runs that the fits do not use, in words."""

from __future__ import annotations

from analysis.fits.prepare import VARIANT
from analysis.fits.study_fits import StudyFits
from analysis.report.laws import named
from arch.amounts import counted


def left_out_lines(fits: StudyFits) -> list[str]:
    """Of runs that are in no fit, a line for each kind of reason, with how many and which."""
    kinds: dict[str, list[str]] = {}
    for run in fits.left_out:
        kinds.setdefault(VARIANT if run["why"].startswith(VARIANT) else run["why"], []).append(run["run_id"])
    return [f"{counted(len(runs), 'run')} left out of the fits, {why}: {named(runs)}" for why, runs in kinds.items()]
