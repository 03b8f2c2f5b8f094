"""Names and colours of the architectures in every picture and table, as they were registered; of a group of fits
(analysis.labels) those of its architecture, and a dash of its own for each point of the axes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.labels import arch_of, group_of, point_of
from arch.registry import ARCHITECTURES

APPROACH_COLORS = {"envelope": "#009e73", "isoflop": "#d55e00", "parametric": "#0072b2"}  # told apart by all eyes
SPARE_COLORS = ("#000000", "#a6761d", "#5e4fa2", "#666666")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def name_of(group: str) -> str:
    """The architecture's label, and the point of a group; the name where nothing is known of it."""
    arch = arch_of(group)
    return group_of(ARCHITECTURES[arch].label, point_of(group)) if arch in ARCHITECTURES else group


def arch_colors(groups: Sequence[str]) -> dict[str, str]:
    """A colour for each, the same for all points of an architecture; architectures without one of their own get spare
    ones in turn."""
    archs = list(dict.fromkeys(map(arch_of, groups)))
    spare = iter(SPARE_COLORS * len(archs))
    own = {arch: ARCHITECTURES[arch].color for arch in archs if arch in ARCHITECTURES}
    colors = {arch: own.get(arch) or next(spare) for arch in archs}
    return {group: colors[arch_of(group)] for group in groups}


def dashes(groups: Sequence[str]) -> dict[str, str]:
    """A dash for each, the same for all architectures at a point; solid without axes."""
    points = list(dict.fromkeys(map(point_of, groups)))
    return {group: DASHES[points.index(point_of(group)) % len(DASHES)] for group in groups}
