"""Whole training steps on one GPU as benchmarks take them: eager, and replayed as one CUDA graph."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .floors import PEAK

PARTS = ("forward", "backward", "optimizer")
LossOf = Callable[[Tensor], Tensor]  # of ids [rows, context + 1]


class Training:
    """A model on the GPU with its optimizer; `loss_of` is called with the same random tokens in every step."""

    def __init__(self, model: nn.Module, loss_of: LossOf, tokens: Tensor) -> None:
        self.model, self.loss_of, self.tokens = model, loss_of, tokens
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
        self.n_params = sum(parameter.numel() for parameter in model.parameters())

    def step(self, mark: Callable[[], None] = lambda: None) -> Tensor:
        """One step; `mark` is called before it and after each of its parts."""
        mark()
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss_of(self.tokens)
        mark()
        loss.backward()
        mark()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mark()
        return loss.detach()

    def record(self) -> Callable[[], None]:
        """A replay of the whole step as one graph; eager steps must have run before."""
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what a stream's first step sets up cannot be recorded
            self.step()
        torch.cuda.current_stream().wait_stream(stream)
        gc.collect()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.step()
        return graph.replay


def measure_eager(training: Training, steps: int) -> dict[str, Any]:
    """tokens/s, ms a step and by part, MFU, peak memory in GiB, seconds of the first step, ms of the host a step."""
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    training.step()
    torch.cuda.synchronize()
    row: dict[str, Any] = {"first_step_s": round(time.perf_counter() - begin, 2)}
    for _ in range(2):
        training.step()
    marks: list[torch.cuda.Event] = []

    def mark() -> None:
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()

    loss: list[Tensor] = []
    elapsed, issued = timed(lambda: loss.append(training.step(mark)), steps)
    tokens = training.tokens[:, 1:].numel()
    speed = tokens / elapsed
    row |= {"tokens_per_s": round(speed), "mfu_6nd": round(6 * training.n_params * speed / PEAK, 4)}
    row["step_ms"] = round(1e3 * elapsed, 2)
    for index, name in enumerate(PARTS):
        times = [marks[at + index].elapsed_time(marks[at + index + 1]) for at in range(0, len(marks), len(PARTS) + 1)]
        row[f"{name}_ms"] = round(statistics.median(times), 2)
    row["host_ms"] = round(1e3 * issued, 2)
    row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return row | {"n_params": training.n_params, "loss": round(loss[-1].item(), 4)}


def timed(step: Callable[[], object], steps: int) -> tuple[float, float]:
    """Seconds of a step, and of the host in it, over `steps` steps that nothing waits for."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    gc.collect()
    gc.disable()  # a pass over what a profiler left would count as a step's
    wait()
    try:
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        issued = time.perf_counter() - begin
        wait()
        elapsed = time.perf_counter() - begin
    finally:
        gc.enable()
    return elapsed / steps, issued / steps
