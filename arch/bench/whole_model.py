"""Whole training steps on one GPU: `python -m arch.bench --model llama,tnl,hgrn2,cosformer2`.

    --size 410m --batch 4 --context-length 8192      a preset, rows and tokens a row; vocabulary and widths are its own
    --backend triton                                 of the sequence operations (default: what a training run takes)
    --compile                                        the model under torch.compile
    --profile                                        also the kernels that a step spends its time in

A step is forward and loss under bf16 autocast, backward, and AdamW (fused) on fp32 parameters: what the trainer does on
one GPU without clipping. Tokens are random, so the loss stays near log(vocabulary).

tokens/s come from the wall clock over all timed steps, the parts from CUDA events (medians). MFU counts 6 N FLOPs a
token, N being all parameters with the tied embedding once, against the bf16 peak of H100 and H200 (989 TFLOP/s, dense).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import Any

import torch

from ..arguments import Parser, at_least_one, file_to_write
from ..config import ARCHS
from ..errors import InputError
from ..model.lm import LanguageModel
from ..ops.common import BACKENDS
from ..presets import preset
from ..tables import rows_table
from .floors import PEAK
from .measure import device, failed

PROFILED = 3  # steps
PARTS = ("forward", "backward", "optimizer")
# What a kernel's name must contain, first match first
KINDS = (
    ("attention", ("fmha", "flash", "sdpa", "cudnn_generated", "attention")),
    ("matrix products", ("gemm", "cutlass", "cublas", "nvjet")),
    ("optimizer", ("adam",)),
    ("sequence kernels", ("gated_", "decay_", "rotary_", "activate", "carry", "scan", "selective", "filter")),
)


class Training:
    """A model with its optimizer and one batch of random tokens on the GPU."""

    def __init__(self, arch: str, options: argparse.Namespace) -> None:
        config = preset(arch, options.size, context_length=options.context_length)
        generator = torch.Generator("cuda").manual_seed(0)
        with torch.device("cuda"):
            self.model = LanguageModel(config).to("cuda").train()  # what starts from tables is made on the CPU
            self.model.decoder.reset_parameters(generator)
            shape = (options.batch, options.context_length + 1)
            self.tokens = torch.randint(config.vocab_size, shape, generator=generator)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
        self.call = torch.compile(self.model) if options.compile else self.model
        self.arguments = {"backend": options.backend, "loss_only": True}
        self.n_params = sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, mark: Any = lambda: None) -> torch.Tensor:
        """One step; `mark` is called before it and after each of its parts."""
        mark()
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.call(input_ids=self.tokens[:, :-1], targets=self.tokens[:, 1:], **self.arguments).loss
        mark()
        loss.backward()
        mark()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mark()
        return loss.detach()


def measure(training: Training, steps: int) -> dict[str, Any]:
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

    gc.collect()
    gc.disable()  # a pass over what a profiler left would count as a step's
    torch.cuda.synchronize()
    try:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = training.step(mark)
        issued = time.perf_counter() - begin
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
    finally:
        gc.enable()
    tokens = training.tokens[:, 1:].numel()
    speed = steps * tokens / elapsed
    row |= {"tokens_per_s": round(speed), "mfu_6nd": round(6 * training.n_params * speed / PEAK, 4)}
    row["step_ms"] = round(1e3 * elapsed / steps, 1)
    for index, name in enumerate(PARTS):
        times = [marks[at + index].elapsed_time(marks[at + index + 1]) for at in range(0, len(marks), len(PARTS) + 1)]
        row[f"{name}_ms"] = round(statistics.median(times), 1)
    row["host_ms"] = round(1e3 * issued / steps, 1)
    row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return row | {"n_params": training.n_params, "loss": round(loss.item(), 4)}


def kind_of(kernel: str) -> str:
    return next((kind for kind, words in KINDS if any(word in kernel.lower() for word in words)), "other")


def profile(training: Training, rows: int) -> list[dict[str, Any]]:
    """The kernels of a step, mean of a few, longest first: ms, share of all kernels' time, number of calls, kind."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    training.step()
    with profiler(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(PROFILED):
            training.step()
        torch.cuda.synchronize()
    events = [x for x in recorded.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    span = max(x.time_range.end for x in events) - min(x.time_range.start for x in events)
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3 / PROFILED)
    total = sum(map(sum, found.values()))
    kernels: list[dict[str, Any]] = [
        {
            "ms": round(sum(times), 3),
            "share": round(sum(times) / total, 4),
            "calls": len(times) // PROFILED,
            "kind": kind_of(name),
            "kernel": name[:110],
        }
        for name, times in sorted(found.items(), key=lambda x: -sum(x[1]))
    ]
    kinds: dict[str, float] = {}
    for kernel in kernels:
        kinds[kernel["kind"]] = kinds.get(kernel["kind"], 0.0) + kernel["ms"]
    shares = ", ".join(f"{kind} {ms:.1f}" for kind, ms in kinds.items())
    print(f"{total:.1f} ms of kernels in {span / 1e3 / PROFILED:.1f} ms: {shares}")
    print(rows_table(kernels[:rows]), flush=True)
    return kernels


def parser() -> Parser:
    found = Parser("python -m arch.bench", __doc__, renamed={"--form": "--backend"})
    found.add_argument("--model", required=True, help="architectures, comma-separated: " + ", ".join(ARCHS))
    found.add_argument("--size", default="410m")
    found.add_argument("--batch", type=int, default=4)
    found.add_argument("--context-length", type=int, default=8192)
    found.add_argument("--backend", choices=BACKENDS)
    found.add_argument("--compile", action="store_true")
    found.add_argument("--profile", nargs="?", type=int, const=25, default=0, metavar="KERNELS")
    found.add_argument("--steps", type=int, default=10, help="timed ones, after three")
    found.add_argument("--json", help="also write all rows to this file")
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    at_least_one(options, "batch", "context_length", "steps")
    file_to_write(options.json, "--json")
    archs = options.model.split(",")
    for arch in archs:
        preset(arch, options.size)
    if not torch.cuda.is_available():
        raise InputError("arch.bench --model needs a GPU and found none")
    print(device(), flush=True)
    rows: list[dict[str, Any]] = []
    for arch in archs:
        row: dict[str, Any] = {"model": f"{arch}-{options.size}", "batch": options.batch}
        row |= {"context_length": options.context_length, "backend": options.backend or "", "compile": options.compile}
        rows.append(row)
        try:
            training = Training(arch, options)
            row |= measure(training, options.steps)
            print(row, flush=True)
            if options.profile:
                row["kernels"] = profile(training, options.profile)
        except Exception as error:
            row |= failed(f"{arch} step", error)
        training = None  # type: ignore[assignment]
        torch.compiler.reset()
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    print(rows_table([{name: value for name, value in row.items() if name != "kernels"} for row in rows]))
