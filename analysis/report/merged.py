"""Merged weights beside decays: the report's table and notes, from fits.json only."""

from __future__ import annotations

from analysis.figures.palette import name_of
from analysis.fits.study_fits import StudyFits
from analysis.pages.cells import shown, signed


def merged_rows(fits: StudyFits) -> list[dict[str, str]]:
    """A row an architecture: how far merged losses lie above decayed ones after the same tokens."""
    return [
        {
            "architecture": name_of(group),
            "pairs": f"{len(merged.pairs)} of {len({pair.trunk for pair in merged.pairs})} trunks",
            "sizes": ", ".join(sorted({pair.size for pair in merged.pairs})),
            "merged above decayed": signed(merged.offset.value, ".2%", merged.offset.ends) or merged.offset.reason,
            "scatter": shown(merged.scatter, ".2%"),
        }
        for group, merged in fits.merged.items()
    ]


def merged_notes(fits: StudyFits) -> list[str]:
    if not fits.merged:
        return []
    used = fits.settings.points == "merged"
    return [
        "The mean of a trunk's last weights stands in for a decay that nobody trained. Each pair compares it with the "
        "branch that has decayed to the same tokens, in log held-out loss. The interval is that of the offset in the "
        "middle of the pairs, by Student's t over trunks: pairs of one trunk share its error.",
        "The fits use merged losses less this offset, and their intervals count its error, which these losses share."
        if used
        else "No fit uses merged losses unless fit.points is merged.",
    ]
