"""The fitted irreducible loss beside the entropy rate of the text, where a corpus has a computed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.figures.palette import name_of
from analysis.report.approaches import NAMES
from analysis.units import unit_of


def floor_notes(fits: dict[str, Any]) -> list[str]:
    """A line a law that has an E: its interval, and where the computed rate lies. [] of text whose rate is unknown."""
    rate = (fits.get("entropy_rate") or {}).get("nats_per_token")
    if rate is None:
        return []
    level = fits["settings"]["level"]
    return [
        f"{name_of(law['group'])}, {NAMES[law['approach']]}: E = {law['params']['E']:.4f} {unit_of(fits)}, where the "
        f"text's entropy rate is {rate:.4f} by its source; {_place(rate, law['intervals'].get('E'), level)}."
        for law in (fits.get("approaches") or {}).get("laws", ())
        if law["params"].get("E") is not None
    ]


def _place(rate: float, ends: Sequence[float | None] | None, level: float) -> str:
    if ends is None or ends[0] is None or ends[1] is None:
        return "E has no interval"
    where = "below" if rate < ends[0] else "above" if rate > ends[1] else "inside"
    return f"it lies {where} E's interval [{ends[0]:.4f}, {ends[1]:.4f}] (nominal level {level:g})"
