"""Triton's interpreter in less than half of its time."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from triton.language.core import is_builtin
from triton.runtime import interpreter


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """It puts its functions in place at the first call of a device function, not at each, and leaves them there; looks
    once for their names, and for numpy's name of a dtype; and does not look for overflows of small integers."""
    builder, ready = interpreter.interpreter_builder, set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn not in ready:
            ready.add(function.fn)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    @cache
    def callables(where: Any) -> list[str]:
        return [name for name, _ in inspect.getmembers(where, callable)]

    def patch_builtin(where: Any, *more: Any) -> None:
        for name in callables(where):
            if is_builtin(member := getattr(where, name)):
                interpreter._patch_attr(where, name, member, *more)

    of_dtype, of_pointers = cache(interpreter._get_np_dtype), np.dtype(np.uint64)

    def np_dtype(kind: Any) -> np.dtype[Any]:
        return of_pointers if kind.scalar.is_ptr() else of_dtype(kind.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        patch.setattr(interpreter, "_patch_builtin", patch_builtin)
        patch.setattr(interpreter, "_get_np_dtype", np_dtype)
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield
