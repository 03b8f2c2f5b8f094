"""Names and colours of the architectures in every picture and table, as they were registered; of a group of fits
(analysis.labels) those of its architecture, and a dash of its own for each point of the axes, with shades of the colour
where the points are more than the dashes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.labels import arch_of, group_of, point_of
from arch.registry import ARCHITECTURES

APPROACH_COLORS = {
    "envelope": "#009e73",
    "isoflop": "#d55e00",
    "parametric": "#0072b2",
}  # also for the colour-blind
SPARE_COLORS = ("#000000", "#a6761d", "#5e4fa2", "#666666")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SHADES = (0.0, -0.45, 0.5, -0.7, 0.75)  # of a colour: how far on its way to black (below 0) or white
DARK = 120  # the sum of a dark colour's parts, whose shades are all lighter


def name_of(group: str) -> str:
    """The architecture's label, with the point of a group; `group` itself where the architecture is not registered."""
    arch = arch_of(group)
    return group_of(ARCHITECTURES[arch].label, point_of(group)) if arch in ARCHITECTURES else group


def arch_colors(groups: Sequence[str]) -> dict[str, str]:
    """A colour for each group: that of its architecture for its first points, other shades of it where dashes repeat.
    Architectures without a registered colour get spare colours in the order of their registration, whichever are drawn,
    then those of architectures elsewhere; names that are not registered come after them in turn."""
    archs = list(dict.fromkeys(map(arch_of, groups)))
    registered = {arch: ARCHITECTURES[arch].color for arch in archs if arch in ARCHITECTURES}
    elsewhere = [known.color for known in ARCHITECTURES.values() if known.color]
    free = [color for color in (*SPARE_COLORS, *elsewhere) if color not in registered.values()]
    without = [arch for arch, known in ARCHITECTURES.items() if not known.color]
    without += [arch for arch in archs if arch not in ARCHITECTURES]
    colors = {arch: registered.get(arch) or free[without.index(arch) % len(free)] for arch in archs}
    points = list(dict.fromkeys(map(point_of, groups)))
    rounds = {group: points.index(point_of(group)) // len(DASHES) for group in groups}
    return {group: _shade(colors[arch_of(group)], SHADES[rounds[group] % len(SHADES)]) for group in groups}


def _shade(color: str, by: float) -> str:
    """The colour #rrggbb mixed with black (by < 0) or white."""
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    end = 0 if by < 0 and sum(parts) > DARK else 255
    mixed = [round(end * abs(by) + part * (1 - abs(by))) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed) if by else color


def dashes(groups: Sequence[str]) -> dict[str, str]:
    """A dash for each group, the same for all architectures at a point; solid without axes."""
    points = list(dict.fromkeys(map(point_of, groups)))
    return {group: DASHES[points.index(point_of(group)) % len(DASHES)] for group in groups}
