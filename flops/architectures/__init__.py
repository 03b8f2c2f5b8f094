"""The costs of the architectures of this package, a module each, which has the architecture's name and its ENTRY; of a
family, entry(name)."""

from importlib import import_module
from pkgutil import iter_modules

from ..registry import register, register_family


def register_all() -> None:
    """Register the costs of this package's architectures, as a plugin's module registers its own."""
    for info in iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        if hasattr(module, "entry"):
            register_family(info.name, module.entry)
        else:
            register(info.name, module.ENTRY)
