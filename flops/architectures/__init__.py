"""The costs of the architectures of this package, a module each, which has the architecture's name and its ENTRY."""

from importlib import import_module
from pkgutil import iter_modules

from ..registry import register


def register_all() -> None:
    """Register the costs of this package's architectures, as a plugin's module registers its own."""
    for module in iter_modules(__path__):
        register(module.name, import_module(f"{__name__}.{module.name}").ENTRY)
