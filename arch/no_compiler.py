"""A process that compiles nothing can do without torch's compiler, whose import takes seconds."""

from __future__ import annotations

from typing import Any

import torch


def keep_from_the_compiler() -> None:
    """Custom operators that are defined from now on, as those of the kernels are, import torch's compiler when they are
    first called, for 3 to 6 s, to keep it from compiling them. Not for a process that compiles."""

    def as_it_is(function: Any = None, recursive: bool = True) -> Any:
        return as_it_is if function is None else function

    torch._disable_dynamo = as_it_is  # type: ignore[assignment]
