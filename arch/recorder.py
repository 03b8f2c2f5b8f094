"""CUDA graphs: the host's launches are recorded once and then replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

Work = Callable[[], None]
Recorder = Callable[[Work], Work]  # records its argument's work on the device, and returns a function that repeats it


class CudaRecorder:
    """Records CUDA graphs of the current device. They share one pool of memory: replay them in the order of recording.

    The caller's own stream, if any, is recorded on: cuBLAS has a workspace for each stream, and graphs that share a
    workspace must not run at the same time. Raises RuntimeError where something cannot be recorded, or memory is short.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream(self.device)
        own = before if before != torch.cuda.default_stream(self.device) else None  # which cannot be recorded
        # thread_local: other threads, NCCL's and those that pin memory, talk to the device meanwhile
        recording = torch.cuda.graph(graph, pool=self.pool, stream=own, capture_error_mode="thread_local")
        collects = gc.isenabled()
        gc.disable()  # an earlier graph that is garbage by now must not be destroyed meanwhile: that ends the recording
        try:
            with recording:
                work()
        finally:
            torch.cuda.set_stream(before)  # a recording that fails leaves its own current
            if collects:
                gc.enable()
        return graph.replay


def reason_of(error: Exception) -> str:
    """The error's type and the first line of its message."""
    lines: Any = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
