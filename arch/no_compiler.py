"""Keeps a process that compiles nothing from importing torch's compiler, which takes seconds."""

from __future__ import annotations

from typing import Any

import torch


def keep_from_the_compiler() -> None:
    """Custom operators, dispatch modes and DeepSpeed's hooks import torch's compiler, for 3 to 6 s, only to exclude
    themselves from it. Those made after this call do not. Not for a process that compiles."""

    def as_it_is(function: Any = None, recursive: bool = True, **reason: Any) -> Any:
        return as_it_is if function is None else function

    torch._disable_dynamo = torch.compiler.disable = as_it_is  # type: ignore[assignment]
