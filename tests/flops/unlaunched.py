"""The host's side of a GPU's training step on the CPU: every module takes its kernels, and no kernel is launched.

All that autograd keeps is then there with its shape and dtype, and holds no number of meaning.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ..arch.ops.compare import too_wide


def _launch(kernel: Any, grid: Any) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """That of the loss, whose output dtype a CPU does not know."""
    return _product_in(torch.float32, a, b) if total is None else total


def _product_in(dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=dtype)


@contextmanager
def unlaunched(own_instructions: bool = True) -> Iterator[None]:
    """Inside, tensors count as a GPU's. own_instructions: whether it is a Hopper whose own are used."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    import arch.ops

    # a module imported inside would keep the stand-ins that it takes by name from others
    for module in pkgutil.walk_packages(arch.ops.__path__, "arch.ops."):
        importlib.import_module(module.name)
    with ExitStack() as stack:
        for owner, name, value in (
            (JITFunction, "__getitem__", _launch),
            (InterpretedFunction, "__getitem__", _launch),
            (torch.Tensor, "is_cuda", True),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        for name, value in (
            ("common.kernel_obstacle", too_wide),
            ("fused.pointwise.device_obstacle", lambda device: None),
            ("fused.cross_entropy._add_product", _add_product),
            ("fused.linear.product_in", _product_in),
            ("triton.launch.interpreted", lambda: False),
            ("triton.device_config.hopper_instructions", lambda exact: own_instructions and not exact),
            ("triton.device_config.GLUON", False),  # the same on every Triton
        ):
            stack.enter_context(mock.patch(f"arch.ops.{name}", value))
        yield
