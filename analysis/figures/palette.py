"""Names and colours of the architectures in every picture and table, as they were registered."""

from __future__ import annotations

from collections.abc import Sequence

from arch.registry import ARCHITECTURES

APPROACH_COLORS = {"envelope": "#009e73", "isoflop": "#d55e00", "parametric": "#0072b2"}  # told apart by all eyes
SPARE_COLORS = ("#000000", "#a6761d", "#5e4fa2", "#666666")


def name_of(arch: str) -> str:
    """The architecture's label; its name where nothing is known of it."""
    return ARCHITECTURES[arch].label if arch in ARCHITECTURES else arch


def arch_colors(archs: Sequence[str]) -> dict[str, str]:
    """A colour for each; those without one of their own get spare ones in turn."""
    spare = iter(SPARE_COLORS * len(archs))
    own = {arch: ARCHITECTURES[arch].color for arch in archs if arch in ARCHITECTURES}
    return {arch: own.get(arch) or next(spare) for arch in archs}
