"""Names of what is fitted together: an architecture at a point of the grid's axes, as `llama, context_length=4096`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

SEPARATOR = ", "


def parts(point: str) -> dict[str, str]:
    """{field: value as text} of a point as tables name it, "lr=0.001, context_length=4096"."""
    return dict(one.split("=", 1) for one in point.split(SEPARATOR) if "=" in one)


def joined(fields: Mapping[str, str]) -> str:
    """The point of these fields."""
    return SEPARATOR.join(f"{field}={value}" for field, value in fields.items())


def without(point: str, fields: Collection[str]) -> str:
    """The point without some of its fields."""
    return joined({field: value for field, value in parts(point).items() if field not in fields})


def group_of(arch: str, point: str) -> str:
    """The group of an architecture's runs at a point: the architecture alone where the grid has no axes."""
    return SEPARATOR.join(filter(None, (arch, point)))


def arch_of(group: str) -> str:
    """The architecture of a group."""
    return group.partition(SEPARATOR)[0]


def point_of(group: str) -> str:
    """The point of a group, "" without axes."""
    return group.partition(SEPARATOR)[2]


def families(groups: Sequence[str], alike: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """(name, groups) of what is compared: the architectures at each point, and the points of each architecture where
    these are `alike` (by group: the same of all whose losses can be compared, as their context length). A group that
    has nothing to be compared with stands alone; without axes all are one family called "".

    An architecture to which a field means nothing has one group, which is compared at every value of it.
    """
    points = {group: frozenset(parts(point_of(group)).items()) for group in groups}
    whole = [one for one in dict.fromkeys(points.values()) if not any(one < other for other in points.values())]
    found: list[tuple[str, list[str]]] = []
    for point in whole:
        mine = [group for group in groups if points[group] <= point]
        found.append((next(point_of(group) for group in mine if points[group] == point), mine))
    for arch in dict.fromkeys(map(arch_of, groups)):
        mine = [group for group in groups if arch_of(group) == arch]
        if len(mine) > 1 and len({alike.get(group) for group in mine}) == 1:
            found.append((arch, mine))
    compared = [one for one in found if len(one[1]) > 1]
    alone = [one for one in found if len(one[1]) == 1 and not _inside(one[1][0], compared)]
    return [*compared, *alone]


def _inside(group: str, found: Iterable[tuple[str, list[str]]]) -> bool:
    return any(group in mine for _, mine in found)
