"""The kernels that a training step spends its time in, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..tables import rows_table

PROFILED = 3  # steps
# What a kernel's name must contain, first match first
KINDS = (
    ("attention", ("fmha", "flash", "sdpa", "cudnn_generated", "attention")),
    ("matrix products", ("gemm", "cutlass", "cublas", "nvjet", "project_silu")),
    ("optimizer", ("adam",)),
    (
        "sequence kernels",
        ("gated_", "decay_", "delta_", "channel_", "rotary_", "activate", "carry", "scan", "selective", "filter"),
    ),
)


def kind_of(kernel: str) -> str:
    return next((kind for kind, words in KINDS if any(word in kernel.lower() for word in words)), "other")


def profile(step: Callable[[], object]) -> list[dict[str, Any]]:
    """The kernels of a step, mean of a few, longest first: ms, share of all kernels' time, number of calls, kind."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    step()
    torch.cuda.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    events = [x for x in recorded.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    times_of: dict[str, list[float]] = {}
    for event in events:
        times_of.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3 / PROFILED)
    total = sum(map(sum, times_of.values()))
    return [
        {
            "ms": round(sum(times), 4),
            "share": round(sum(times) / total, 4),
            "calls": len(times) // PROFILED,
            "kind": kind_of(name),
            "kernel": name[:110],
        }
        for name, times in sorted(times_of.items(), key=lambda x: -sum(x[1]))
    ]


def show(kernels: list[dict[str, Any]], rows: int) -> None:
    """Print the first `rows`, after a line with the sums by kind."""
    kinds: dict[str, float] = {}
    for kernel in kernels:
        kinds[kernel["kind"]] = kinds.get(kernel["kind"], 0.0) + kernel["ms"]
    shares = ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.items())
    print(f"{sum(kinds.values()):.2f} ms of kernels: {shares}")
    print(rows_table(kernels[:rows]), flush=True)
