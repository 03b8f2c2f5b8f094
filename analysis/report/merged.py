"""Merged weights beside decays: the report's table and notes, from fits.json only."""

from __future__ import annotations

from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import signed
from arch.amounts import counted


def merged_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture: how far merged losses lie above decayed ones after the same tokens."""
    return [
        {
            "architecture": name_of(group),
            "pairs": f"{merged.n_pairs} of {counted(merged.n_trunks, 'trunk')}",
            "sizes": ", ".join(merged.sizes),
            "merged above decayed": signed(merged.offset.value, ".2%", merged.offset.ends),
        }
        for group, merged in fits.merged.items()
    ]


def merged_notes(fits: StudyFits) -> list[str]:
    if not fits.merged:
        return []
    return [
        "The mean of a trunk's last weights stands in for a decay that nobody trained. Each pair compares it with the "
        "branch that has decayed to the same tokens, in log held-out loss. The interval is Student's t over trunks: "
        "pairs of one trunk share its error. No fit uses merged losses.",
    ]
