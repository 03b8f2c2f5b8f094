"""Modules from outside: they are imported because the user named them, in a study file or by --plugin. A name in a
run's record, a bundle, a published folder or a checkpoint imports nothing."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from .errors import InputError

REMEDY = "import it first (--plugin, or plugins: of a study file of your own)"
_allowed: set[str] = set()


def allow(modules: Iterable[str]) -> None:
    """Let these modules be imported: the user named them."""
    _allowed.update(modules)


def import_allowed(module: str) -> ModuleType:
    """Import a module for which `allow` was called. Raises InputError where it was not, where Python finds no such
    module, and for whatever the module raises, SystemExit included and KeyboardInterrupt excepted."""
    if module not in _allowed:
        raise InputError(f"{module!r} is code that no study file of your own names, and is not imported")
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(_reason(module, error)) from error


def modules_of(tasks: Iterable[str]) -> list[str]:
    """The modules of the evaluation tasks that are named module:task; lm_eval:NAME is a task of our own."""
    return [module for module, colon, _ in (task.partition(":") for task in tasks) if colon and module != "lm_eval"]


def _reason(module: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return "is no module that Python finds: install it, or name its folder in PYTHONPATH"
    reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return f"cannot be imported: {' '.join(reason.split())}"
