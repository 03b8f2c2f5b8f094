"""Architectures from outside, which a plugin registers in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_registered() -> Iterator[None]:
    """Afterwards the same architectures are registered as before, and the plugins of others are not imported."""
    from arch.registry import ARCHITECTURES
    from flops.registry import _OWNERS, ENTRIES
    from scaling.rundir.versions import code_digests, code_places

    tables = (ARCHITECTURES, ENTRIES, _OWNERS)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    try:
        yield
    finally:
        added = [architecture for name, architecture in ARCHITECTURES.items() if name not in before[0]]
        for table, contents in zip(tables, before, strict=True):
            table.clear()
            table.update(contents)
        names = {name for architecture in added for name in (architecture.module, architecture.plugin) if name}
        for name in {*names, *code_places(tuple(sorted(names)))} - modules:
            sys.modules.pop(name, None)
        code_places.cache_clear()
        code_digests.cache_clear()
