"""Whole training steps on one GPU: `python -m arch.bench --model llama,tnl,hgrn2,cosformer2`.

    --size 410m,8x256                presets, or layers x width (heads of 128 channels, FFN 8/3 of the width)
    --vocab-size 257,8192            instead of the presets' own
    --batch 4 --context-length 8192  rows, and tokens of a row
    --backend triton                 of the sequence operations (default: what a training run takes)
    --compile                        the model under torch.compile
    --profile                        also the kernels that a step spends its time in

A step is forward and loss under bf16 autocast, backward, and AdamW (fused) on fp32 parameters: what the trainer does on
one GPU without clipping. Tokens are random, so the loss stays near log(vocabulary).

tokens/s and step_ms come from the wall clock over all timed steps, the parts from CUDA events (medians). MFU counts 6 N
FLOPs a token, N being all parameters with the tied embedding once, against the bf16 peak of H100 and H200 (989 TFLOP/s,
dense). graph_ms is the same step replayed as one CUDA graph; kernels_ms the sum of its kernels' times by the profiler,
launches their number; host_share is the part of the eager step in which the GPU waits for the host, idle what is left
of it in a replay.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..arguments import Parser, at_least_one, file_to_write, whole_numbers
from ..config import ARCHS, ModelConfig
from ..errors import InputError
from ..model.lm import LanguageModel
from ..ops.common import BACKENDS
from ..presets import preset
from ..tables import rows_table
from .kernels import profile, show
from .measure import device, failed, require_gpu
from .steps import Training, measure_eager, timed

SHAPE = re.compile(r"(\d+)x(\d+)")
HEAD = 128  # channels


def config_of(arch: str, size: str, vocab_size: int | None, context_length: int) -> ModelConfig:
    """A preset by name, or `LAYERSxWIDTH`. Raises InputError where it is neither, or no model has that shape."""
    changes: dict[str, Any] = {"context_length": context_length}
    if vocab_size is not None:
        changes["vocab_size"] = vocab_size
    if not (shape := SHAPE.fullmatch(size)):
        try:
            return preset(arch, size, **changes)
        except InputError as error:
            raise InputError(f"--size {size}: {error}; or LAYERSxWIDTH, as 8x256") from None
    n_layers, d_model = map(int, shape.groups())
    multiple = 8 if d_model < 2 * HEAD else 16
    d_ffn = -(-8 * d_model // (3 * multiple)) * multiple
    heads = max(1, d_model // HEAD)
    return preset(arch, "70m", n_layers=n_layers, d_model=d_model, n_heads=heads, d_ffn=d_ffn, **changes)


def make(model: str, config: ModelConfig, options: argparse.Namespace) -> Training:
    """One of ours with random weights, on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    tokens = random_tokens(config, options.batch, generator)
    with torch.device("cuda"):
        ours = LanguageModel(config).to("cuda").train()  # what starts from tables is made on the CPU
        ours.decoder.reset_parameters(generator)
    call = torch.compile(ours) if options.compile else ours

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = call(
            input_ids=ids[:, :-1], targets=ids[:, 1:], backend=options.backend, loss_only=True
        ).loss
        return loss

    return Training(ours, loss_of, tokens)


def random_tokens(config: ModelConfig, batch: int, generator: torch.Generator) -> torch.Tensor:
    """Ids [batch, context + 1] on the GPU."""
    return torch.randint(config.vocab_size, (batch, config.context_length + 1), generator=generator, device="cuda")


def measure(training: Training, options: argparse.Namespace, graph: bool = True) -> dict[str, Any]:
    """measure_eager's numbers and the kernels' and, with `graph`, those of the step as a graph."""
    row = measure_eager(training, options.steps)
    step: Any = training.step
    if graph:
        step = training.record()
        step()
        row["graph_ms"] = round(1e3 * timed(step, options.steps)[0], 2)
    kernels = profile(step)
    row["kernels_ms"] = round(sum(kernel["ms"] for kernel in kernels), 2)
    row["launches"] = sum(kernel["calls"] for kernel in kernels)
    row["host_share"] = share_waiting(row["step_ms"], row.get("graph_ms", row["kernels_ms"]))
    if graph:
        row["idle"] = share_waiting(row["graph_ms"], row["kernels_ms"])
    return row | {"kernels": kernels}


def share_waiting(whole_ms: float, busy_ms: float) -> float:
    """Of `whole_ms`; 0 where clocks differed so that the busy part was longer."""
    return round(max(0.0, 1 - busy_ms / whole_ms), 3)


def measure_one(
    model: str,
    config: ModelConfig,
    options: argparse.Namespace,
    make: Callable[[str, ModelConfig, argparse.Namespace], Training],
    graph: bool = True,
) -> dict[str, Any]:
    """`measure` of a model that `make` makes, whose memory is given back; or why it failed, as `error`."""
    training: Training | None = None
    try:
        training = make(model, config, options)
        row = measure(training, options, graph)
    except Exception as error:
        row = failed(f"{model} step", error)
    del training
    gc.collect()  # a model in a cycle of references would keep its memory from the next
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return row


def parser(prog: str = "python -m arch.bench", description: str | None = __doc__) -> Parser:
    reader = Parser(prog, description)
    reader.add_argument("--model", required=True, help="architectures, comma-separated: " + ", ".join(ARCHS))
    reader.add_argument("--size", default="410m", help="presets or LAYERSxWIDTH, comma-separated")
    reader.add_argument("--vocab-size", help="comma-separated; default: the preset's own")
    reader.add_argument("--batch", type=int, default=4)
    reader.add_argument("--context-length", type=int, default=8192)
    reader.add_argument("--backend", choices=BACKENDS)
    reader.add_argument("--compile", action="store_true")
    reader.add_argument("--profile", nargs="?", type=int, const=25, default=0, metavar="KERNELS")
    reader.add_argument("--steps", type=int, default=10, help="timed ones, after three")
    reader.add_argument("--json", help="also write all rows to this file")
    return reader


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, ModelConfig]]:
    """(architecture, size, its shape), sizes outermost, then vocabularies. Raises InputError."""
    vocab_sizes = whole_numbers(options.vocab_size, "--vocab-size") if options.vocab_size else [None]
    for size in options.size.split(","):
        for vocab_size in vocab_sizes:
            for arch in options.model.split(","):
                yield arch, size, config_of(arch, size, vocab_size, options.context_length)


def check(options: argparse.Namespace) -> None:
    """Raises InputError for numbers and files that cannot be, or where there is no GPU."""
    at_least_one(options, "batch", "context_length", "steps")
    file_to_write(options.json, "--json")
    require_gpu()


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    chosen = list(cases(options))
    check(options)
    measure_all(options, chosen, make)


def measure_all(
    options: argparse.Namespace,
    chosen: Iterable[tuple[str, str, ModelConfig]],
    make: Callable[[str, ModelConfig, argparse.Namespace], Training],
    without_graphs: tuple[str, ...] = (),
) -> None:
    """Print a row for each of the `chosen` (model, size, shape), then a table of all, and write them where --json says.
    `make` makes the model; those of `without_graphs` are not replayed as a graph."""
    print(device(), flush=True)
    # Mamba1 of 410M takes nearly all memory: in the pieces that earlier models left it would not fit
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    rows: list[dict[str, Any]] = []
    for model, size, config in chosen:
        row: dict[str, Any] = {"model": model, "size": size, "vocab_size": config.vocab_size, "batch": options.batch}
        row |= {"context_length": options.context_length, "backend": options.backend or "", "compile": options.compile}
        rows.append(row)
        row |= measure_one(model, config, options, make, graph=model not in without_graphs)
        if "kernels" in row:
            print({name: value for name, value in row.items() if name != "kernels"}, flush=True)
            if options.profile:
                show(row["kernels"], options.profile)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(rows_table([{name: value for name, value in row.items() if name != "kernels"} for row in rows]))
