"""The costs by architecture: those of this package and those that plugins register (docs/adding.md), in one table."""

from __future__ import annotations

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError, shown
from arch.registry import KNOWN, in_family, kinds_of

from .entry import Entry

INF = float("inf")
BY_NAME = ("matrices", "vectors", "core", "excess", "state", "once")  # functions of an Entry that give numbers by name
ENTRIES: dict[str, Entry] = {}
_OWNERS: dict[str, str] = {}
_FAMILIES: dict[str, Callable[[str], Entry]] = {}  # of arch.registry's families, by prefix


def register(name: str, entry: Entry) -> None:
    """Give the architecture that arch.registry knows as `name` its costs. Raises InputError where another module gave
    it some, and where a function is none; what a plugin's function raises becomes one when it is called."""
    module = str(sys._getframe(1).f_globals["__name__"])
    if name in KNOWN and _OWNERS.get(name, module) != module:  # a plugin that failed owns nothing
        raise InputError(
            f"the costs of {name!r} are those of {_OWNERS[name]}: register an architecture of another name"
        )
    guarded: dict[str, Any] = {}
    for field in dataclasses.fields(Entry) if not module.startswith(f"{__package__}.") else ():
        function = getattr(entry, field.name)
        if callable(function):
            guarded[field.name] = _guarded(name, field.name, function)
        elif callable(field.default) or field.name == "matrices":
            raise InputError(f"costs of {name!r}: {field.name} must be a function, not {function!r}")
    ENTRIES[name], _OWNERS[name] = dataclasses.replace(entry, **guarded), module


def _guarded(name: str, line: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A plugin's function of costs, whose exceptions, and answers that are no counts, are an InputError."""

    @functools.wraps(function)
    def guarded(*given: Any) -> Any:
        try:
            answer = function(*given)
        except InputError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {' '.join(str(error).split())} ({last.filename}:{last.lineno})"
            raise InputError(f"costs of {name!r}: {line}: {what}") from error
        if line in BY_NAME and not isinstance(answer, dict):
            raise InputError(f"costs of {name!r}: {line} must give {{name: number}}, not {shown(answer)}")
        numbers = list(answer.values()) if isinstance(answer, dict) else [answer]
        if wrong := [x for x in numbers if isinstance(x, bool) or not isinstance(x, int | float) or not -INF < x < INF]:
            raise InputError(f"costs of {name!r}: {line} must give numbers by name, not {shown(wrong[0])}")
        return answer

    return guarded


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
