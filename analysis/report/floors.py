"""The fitted irreducible loss beside the entropy rate of the text, where a corpus has a computed one."""

from __future__ import annotations

from analysis.figures.palette import name_of
from analysis.fits.fit import L_OPT, Estimate
from analysis.fits.study_fits import StudyFits
from analysis.report.approaches import NAMES


def floor_notes(fits: StudyFits) -> list[str]:
    """A line a law that has an E: its interval, and where the computed rate lies. [] of text whose rate is unknown."""
    rate = (fits.entropy_rate or {}).get("nats_per_token")
    if rate is None:
        return []
    level = fits.settings.level
    floors = [(law, law.law(L_OPT).floor) for law in fits.laws]
    return [
        f"{name_of(law.group)}, {NAMES[law.approach]}: E = {floor.value:.4f} {fits.unit}, where the text's entropy "
        f"rate is {rate:.4f} by its source; {_place(rate, floor, level)}."
        for law, floor in floors
        if floor.value is not None
    ]


def _place(rate: float, floor: Estimate, level: float) -> str:
    if floor.ends is None:
        return "E has no interval"
    low, high = floor.ends
    where = "below" if rate < low else "above" if rate > high else "inside"
    return f"it lies {where} E's interval [{low:.4f}, {high:.4f}] (nominal level {level:g})"
