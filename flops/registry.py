"""The costs by architecture: those of this package and those that plugins register (docs/adding.md), in one table."""

from __future__ import annotations

import sys
from collections.abc import Callable

from arch.config import ModelConfig
from arch.errors import InputError
from arch.registry import KNOWN, in_family, kinds_of

from .entry import Entry

ENTRIES: dict[str, Entry] = {}
_OWNERS: dict[str, str] = {}
_FAMILIES: dict[str, Callable[[str], Entry]] = {}  # of arch.registry's families, by prefix


def register(name: str, entry: Entry) -> None:
    """Give the architecture that arch.registry knows as `name` its costs. Raises InputError where another module gave
    it some."""
    module = str(sys._getframe(1).f_globals["__name__"])
    if name in KNOWN and _OWNERS.get(name, module) != module:  # a plugin that failed owns nothing
        raise InputError(
            f"the costs of {name!r} are those of {_OWNERS[name]}: register an architecture of another name"
        )
    ENTRIES[name], _OWNERS[name] = entry, module


def register_family(prefix: str, entry: Callable[[str], Entry]) -> None:
    """Give the architectures `prefix`:NAME their costs, by name."""
    _FAMILIES[prefix] = entry


def entries_of(cfg: ModelConfig) -> tuple[Entry, ...]:
    """The costs of each kind of a model's layers. Raises InputError where a plugin gives none."""
    return tuple(entry_of(kind.arch) for kind in cfg.kinds)


def has_mlp(arch: str) -> bool:
    """Whether layers of an architecture, or some of a pattern's, have an MLP."""
    return any(entry_of(kind).has_mlp for kind in kinds_of(arch))


def entry_of(arch: str) -> Entry:
    """The costs of an architecture that is no pattern. Raises InputError where a plugin gives none."""
    if in_family(arch):
        return _FAMILIES[arch.partition(":")[0]](arch)
    if arch not in ENTRIES:
        raise InputError(f"architecture {arch!r} has no costs: call flops.register({arch!r}, Entry(...)) in its plugin")
    return ENTRIES[arch]
