"""Names of what is fitted together: an architecture at a point of the grid's axes, as `llama, context_length=4096`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

SEPARATOR = ", "
OF_SOURCE = "loss:"  # a metric of the held-out loss: that of one source of a mixture, whose name follows


def parts(point: str) -> dict[str, str]:
    """{field: value as text} of a point as tables name it, "lr=0.001, context_length=4096"."""
    return dict(field.split("=", 1) for field in point.split(SEPARATOR) if "=" in field)


def without(point: str, fields: Collection[str]) -> str:
    """The point without some of its fields."""
    return SEPARATOR.join(f"{field}={value}" for field, value in parts(point).items() if field not in fields)


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
    whole = [point for point in dict.fromkeys(points.values()) if not any(point < other for other in points.values())]
    together: list[tuple[str, list[str]]] = []
    for point in whole:
        members = [group for group in groups if points[group] <= point]
        together.append((next(point_of(group) for group in members if points[group] == point), members))
    for arch in dict.fromkeys(map(arch_of, groups)):
        members = [group for group in groups if arch_of(group) == arch]
        if len(members) > 1 and len({alike.get(group) for group in members}) == 1:
            together.append((arch, members))
    compared = [(name, members) for name, members in together if len(members) > 1]
    inside = {group for _, members in compared for group in members}
    return compared + [(name, members) for name, members in together if len(members) == 1 and members[0] not in inside]
