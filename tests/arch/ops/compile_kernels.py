"""Compiles every Triton kernel that an operation launches, for a GPU that need not be there, and prints what it needs.

    python -m tests.arch.ops.compile_kernels 80 hgrn2 128 '{}'    compute capability, benchmark's case, head size, sizes
    python -m tests.arch.ops.compile_kernels 90 model:hgrn2 256 '{}'    forward and backward of a model of that width

One JSON line a kernel: name, shared memory in bytes. Run without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from .compare import too_wide


class Device:
    """What Triton asks a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def operation(name: str, width: int) -> None:
    from arch.bench.cases import CASES
    from arch.bench.measure import gradients

    inputs, weight = CASES[name].inputs(1, 2048, 2, width, dtype=torch.bfloat16, device="cpu")
    gradients(CASES[name].runs["triton"](1, 2048, 2, width), inputs, weight)


def model(arch: str, width: int) -> None:
    """As a run on a GPU does it: under autocast, with every fused kernel."""
    from arch.bench.whole_model import config_of
    from arch.model.lm import build_model
    from arch.ops.fused import embedding, linear  # noqa: F401 - loaded before they are searched
    from arch.ops.fused.cross_entropy import linear_cross_entropy
    from arch.ops.fused.triton.rows import copy_rows

    built, tokens = build_model(config_of(arch, f"2x{width}", 257, 2048)), torch.zeros(1, 256, dtype=torch.int64)
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("arch.") and hasattr(module, "uses_kernels"):
                stack.enter_context(mock.patch.object(module, "uses_kernels", lambda x: True))
        stack.enter_context(mock.patch.object(linear, "_copy", copy_rows))
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = built.decoder(tokens, None, None, None, False, None if arch == "llama" else "triton")
            loss = linear_cross_entropy(hidden.flatten(0, 1), built.lm_head.weight, tokens.flatten())
        loss.backward()


def main(capability: int, name: str, width: int, sizes: dict[str, Any]) -> None:
    from arch import kernel_config
    from arch.ops import common
    from arch.ops.triton import device_config

    triton.runtime.driver.set_active(Device(capability))
    shared_bytes: dict[Any, int] = {}

    def compile_only(kernel: JITFunction, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled = kernel.run(*args, grid=grid, warmup=True, **kwargs)
            shared_bytes[kernel.__name__, compiled.hash] = compiled.metadata.shared

        return launch

    with (
        mock.patch.object(JITFunction, "__getitem__", compile_only),
        mock.patch.object(common, "kernel_obstacle", too_wide),
        # any assembler compiles Hopper's own instructions, and nothing is run here
        mock.patch.object(device_config, "trusted_assembler", lambda: True),
        kernel_config.override(**sizes),
    ):
        kind, _, arch = name.partition(":")
        if arch:
            model(arch, width)
        else:
            operation(kind, width)
    for (kernel, _), shared in shared_bytes.items():
        print(json.dumps({"kernel": kernel, "shared": shared}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
