"""Architectures from outside of this package: a plugin registers them, studies and tools then know them by name.

A registration adds to the tables that hold the architectures of this package (config.py, presets.py, mixers/), and
flops.register to that of the costs; ADDING.md is the guide. Imports no torch: a mixer named "module:Class" is imported
when a model is built.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import ARCHS, DEFAULT_NORM, KNOWN, NORMS, ONLY_FOR
from .errors import InputError, nearest
from .presets import RULES, Rule

if TYPE_CHECKING:
    from .model.mixer import Mixer

# A name stands in the names of runs, in --only and in arch/size, between characters that it cannot hold.
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Registered:
    """mixer: a class or "module:Class"; module: the one that called `register`; plugin: what to import to get it."""

    mixer: str | type[Mixer]
    module: str
    plugin: str


REGISTERED: dict[str, Registered] = {}


def register(
    name: str,
    mixer: str | type[Mixer],
    norm: str = "srms",
    preset: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
    fields: Iterable[str] = (),
) -> None:
    """Make `name` an architecture whose token mixer is `mixer`, a subclass of arch.model.mixer.Mixer or "module:Class".

    norm: the one it uses unless a configuration says otherwise; preset(size, shape): its own fields at a size, where
    they differ from `shape`, the fields that the architectures share there; fields: those of ModelConfig that it reads
    although they mean nothing to most (config.ONLY_FOR). Beside them it has the common ones and no others. The same
    module may register a name again (a reload), another may not: InputError.
    """
    module = str(sys._getframe(1).f_globals["__name__"])
    if not NAME.fullmatch(name):
        raise InputError(f"architecture {name!r}: a name is small letters, digits and _, and begins with a letter")
    if name in ARCHS or (name in REGISTERED and REGISTERED[name].module != module):
        owner = "linear-scaling" if name in ARCHS else REGISTERED[name].module
        raise InputError(f"architecture {name!r} of {module} is already one of {owner}: choose another name")
    if isinstance(mixer, str) and not re.fullmatch(r"[\w.]+:\w+", mixer):
        raise InputError(f"architecture {name!r}: mixer {mixer!r} is no class and not written as module:Class")
    if norm not in NORMS:
        raise InputError(f"architecture {name!r}: unknown norm {norm!r}{nearest(norm, list(NORMS))}")
    fields = tuple(fields)
    for field in fields:
        if field not in ONLY_FOR:
            raise InputError(f"architecture {name!r}: no optional field {field!r}{nearest(field, list(ONLY_FOR))}")
    _forget(name)
    REGISTERED[name] = Registered(mixer, module, module)
    DEFAULT_NORM[name] = norm
    if preset is not None:
        RULES[name] = _rule(preset)
    for field in fields:
        ONLY_FOR[field] += (name,)


def _rule(preset: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Rule:
    """A plugin's rule among those of presets.py, which are also given the changes."""

    def rule(size: str, shape: dict[str, Any], changes: dict[str, Any] | None = None) -> dict[str, Any]:
        return preset(size, shape)

    return rule


def _forget(name: str) -> None:
    """Take a registration back."""
    REGISTERED.pop(name, None)
    DEFAULT_NORM.pop(name, None)
    RULES.pop(name, None)
    for field, archs in ONLY_FOR.items():
        ONLY_FOR[field] = tuple(arch for arch in archs if arch != name)


def load_plugins(names: Iterable[str]) -> None:
    """Import the modules that register architectures; one imported before is left as it is.

    Raises InputError for one that is not there, fails, takes a name that is given away, or registers nothing.
    """
    for name in names:
        before = set(REGISTERED)
        try:
            importlib.import_module(name)
        except Exception as error:
            for arch in set(REGISTERED) - before:
                _forget(arch)
            raise InputError(f"plugin {name!r} {_reason(name, error)}") from error
        for arch in set(REGISTERED) - before:
            REGISTERED[arch] = Registered(REGISTERED[arch].mixer, REGISTERED[arch].module, name)
        if not any(f"{part}.".startswith(f"{name}.") for r in REGISTERED.values() for part in (r.plugin, r.module)):
            raise InputError(f"plugin {name!r} registers no architecture: call arch.registry.register in it")


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return "is no module that Python finds: install it, or name its folder in PYTHONPATH"
    told = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return f"cannot be imported: {' '.join(told.split())}"


def plugin_of(arch: str) -> str | None:
    """The module to import before `arch` is known; None for an architecture of this package."""
    return REGISTERED[arch].plugin if arch in REGISTERED else None


def require(arch: str, plugin: str | None, where: str) -> None:
    """Raise InputError where a model's architecture is not known, naming the plugin that it was saved with.

    Nothing is imported: a file must not decide what code runs.
    """
    if arch in KNOWN:
        return
    if plugin:
        raise InputError(f"{where}: architecture {arch!r} comes from the plugin {plugin!r}: import it first (--plugin)")
    raise InputError(f"{where}: unknown architecture {arch!r}{nearest(str(arch), list(KNOWN))}")
