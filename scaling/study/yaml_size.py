"""How many values a YAML text expands to: by its aliases a short one can expand to billions."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

MOST_BYTES = 1 << 18  # of a file
MOST_VALUES = 200_000


def check_size(root: yaml.Node | None) -> None:
    """Raise yaml.MarkedYAMLError where a text expands to too many values, each alias counted as what it repeats, or an
    alias holds itself."""
    sizes: dict[int, int] = {}
    around, stack = set[int](), [] if root is None else [(root, False)]
    while stack:
        node, is_left = stack.pop()
        key = id(node)
        if is_left:
            around.discard(key)
            sizes[key] = 1 + sum(sizes[id(node)] for node in _inner(node))
            if sizes[key] > MOST_VALUES:
                raise yaml.MarkedYAMLError(problem="it expands to too many values", problem_mark=node.start_mark)
        elif key in around:
            raise yaml.MarkedYAMLError(problem="an alias holds itself", problem_mark=node.start_mark)
        elif key not in sizes:
            around.add(key)
            stack += [(node, True), *((node, False) for node in _inner(node))]


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
