"""YAML as study files, cluster profiles, variants and --set hold it.

Words and numbers are those of YAML 1.2: 1e-3 is a number, `off` and 2026-01-01 are text, a key is always text. What
YAML 1.1 and 1.2 read as different numbers (0500000, 1:30, 0b11) is refused. Underscores between digits are allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from arch.errors import InputError, shown

MOST_BYTES = 1 << 18  # of a file
MOST_VALUES = 200_000  # that a text expands to: by its aliases a short one can expand to billions
TAG = "tag:yaml.org,2002:"
DOUBTFUL = "!doubtful"
NUMBERS = {
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)"),
    "float": re.compile(
        r"[-+]?(?:(?:[0-9]+(?:_[0-9]+)*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|\.[0-9]+(?:[eE][-+]?[0-9]+)?)"
    ),
}
PLAIN = {  # tag: how a scalar without quotes reads to be of it; the first that fits counts
    f"{TAG}null": re.compile(r"~|null|Null|NULL|"),
    f"{TAG}bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    f"{TAG}merge": re.compile(r"<<"),
    **{f"{TAG}{kind}": pattern for kind, pattern in NUMBERS.items()},
    DOUBTFUL: re.compile(
        r"[-+]?(?:[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)"
    ),
}


class _Resolver(yaml.resolver.BaseResolver):
    """What a scalar without quotes is."""

    yaml_implicit_resolvers: dict[Any, Any] = {}


for _tag, _pattern in PLAIN.items():
    _Resolver.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern.pattern})\Z"), None)


def _check_size(root: yaml.Node | None) -> None:
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


class _Loader(_Resolver, yaml.SafeLoader):
    """Keys once and text, aliases few."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        _check_size(node)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping whose keys are text, each once."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        pairs = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
            if key.tag != f"{TAG}merge":
                key = yaml.ScalarNode(f"{TAG}str", key.value, key.start_mark, key.end_mark)
            pairs.append((key, value))
        node.value = pairs
        return node

    def number(self, node: yaml.ScalarNode) -> int | float:
        text = node.value.replace("_", "")
        if not math.isfinite(value := float(text)):
            raise yaml.MarkedYAMLError(
                problem=f"{shown(node.value)} is too large for a number", problem_mark=node.start_mark
            )
        return int(text) if node.tag == f"{TAG}int" else value

    def doubtful(self, node: yaml.ScalarNode) -> Any:
        raise yaml.MarkedYAMLError(
            problem=f"{shown(node.value)} is one number to some readers of YAML and another, or text, to others: write "
            f"decimal digits without leading zeros, or quotes around text",
            problem_mark=node.start_mark,
        )


for _kind in NUMBERS:
    _Loader.add_constructor(f"{TAG}{_kind}", _Loader.number)
_Loader.add_constructor(DOUBTFUL, _Loader.doubtful)


class _Dumper(_Resolver, yaml.SafeDumper):
    """Writes what `_Loader` reads."""


def dump(value: Any) -> str:
    """YAML text that `parse` reads as `value`."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def parse(text: str, where: str) -> Any:
    """The value of YAML `text`; raises InputError, one line that begins with `where`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise InputError(f"{where}:{line} {error.problem}; correct the YAML") from None
    except RecursionError:
        raise InputError(f"{where}: is nested too deeply to be read; correct the YAML") from None
    except Exception as error:  # a tag's own constructor raises what it likes
        raise InputError(f"{where}: not YAML: {' '.join(str(error).split()) or type(error).__name__}") from None


def read_mapping(path: Path, kind: str, hint: str) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises InputError, one line that begins with its path: it cannot be read, is
    no YAML, gives a key twice, or holds something else than the `kind` of thing expected; `hint` says what to write."""
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
            raise InputError(f"{path}: is no file of at most {MOST_BYTES:,} bytes, as a {kind} is; give another path")
        text = path.read_text(encoding="utf-8")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; write one ({hint}), or give another path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    raw = parse(text, str(path))
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds no {kind}: write keys and values ({hint})")
    return raw
