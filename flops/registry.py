"""The cost entries by architecture, also those that plugins register (arch/ADDING.md). Imports no torch."""

from __future__ import annotations

from arch.config import ARCHS
from arch.errors import InputError

from .mixers import ENTRIES, Entry


def register(name: str, entry: Entry) -> None:
    """Give the architecture that arch.registry knows as `name` its costs. Raises InputError for one of this package."""
    if name in ARCHS:
        raise InputError(f"the costs of {name!r} are those of this package: register an architecture of another name")
    ENTRIES[name] = entry


def entry_of(arch: str) -> Entry:
    """The costs of an architecture. Raises InputError where a plugin gives none."""
    if arch not in ENTRIES:
        raise InputError(f"architecture {arch!r} has no costs: call flops.register({arch!r}, Entry(...)) in its plugin")
    return ENTRIES[arch]
