"""Steps as runs make them, on this process's device: `python -m scaling.trainer.bench --model tnl --size 8x256`.

    --size 410m,8x256                presets, or layers x width, as in arch.bench
    --vocab-size 257 --batch 32 --context-length 2048
    --micro-batch 8 --zero-stage 1   rows of a pass on each GPU, and DeepSpeed's stage
    --recompute 0.5                  activations of half of the layers are made again; without a number, of all
    --at-once 1,2,4                  runs that take turns in one process, as small ones do on a GPU
    torchrun --standalone --nproc-per-node 4 -m scaling.trainer.bench ...    --batch is the rows of all GPUs
    --sequence-processes 2           of them neighbours, which read a part of the same rows each

Under bf16 autocast, with clipping, on random tokens; the corpus's loader is not timed. eager_ms, at stage 0: of a step
whose loss and norm are read after it; run_ms: of a step as runs make it, replayed as CUDA graphs where nothing prevents
that (`notes` has what a run would say), with numbers that are read some steps later; run_ms_4: of a step of 4 runs that
take turns, divided by 4. tflop_per_s: FLOP of each process by the convention exact, without what is computed again;
over the device's peak it is the MFU. counted_gb: of a GPU by flops.training_memory; peak_gb, on GPUs: the most that
tensors took of the first one's, in eager steps where those are timed. Each row is printed, and the --json file written
anew, once its model is measured. One that runs out of memory gets a note, and the others follow: of several processes
only where all run out, since one that does not waits for the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch

from arch.arguments import Parser, add_plugin, at_least_one, file_to_write, run, whole_numbers
from arch.bench.measure import device as described
from arch.bench.measure import last_line
from arch.bench.steps import timed
from arch.bench.whole_model import config_of
from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.lm import build_model
from arch.tables import rows_table
from data.files import write_json
from flops import train_flops_per_token, training_memory
from flops.params import count_params

from ..rundir.launcher import Ranks
from ..study.file import register_architectures
from ..study.training import Training, split_batch
from ..study.training_rules import check_parts
from .engine import Engine, start_distributed
from .process import free_memory
from .readings import Readings
from .stepper import Stepper
from .turns import Lane

RATE, WARM_UP = 1e-3, 4  # steps before the timed ones: the first is checked, and recorded


def parser() -> Parser:
    options = Parser("python -m scaling.trainer.bench", __doc__)
    options.add_argument("--model", required=True, help="architectures, comma-separated")
    options.add_argument("--study", help="a study file: its hybrids and plugins have names here too")
    add_plugin(options)
    options.add_argument("--size", default="410m", help="presets or LAYERSxWIDTH, comma-separated")
    options.add_argument("--vocab-size", type=int, help="default: the preset's own")
    options.add_argument("--batch", type=int, default=4, help="rows of a step, of all processes together")
    options.add_argument("--micro-batch", type=int, help="rows of a pass of each process; default: all of its rows")
    options.add_argument("--context-length", type=int, default=8192)
    in_parts = "processes that read a part of the same rows each, as jobs.sequence_processes"
    options.add_argument("--sequence-processes", type=int, default=1, help=in_parts)
    options.add_argument("--zero-stage", type=int, default=0, choices=(0, 1, 2, 3))
    again = "activations, in the backward pass; of a share of the layers"
    options.add_argument("--recompute", type=float, nargs="?", const=1.0, default=0.0, metavar="SHARE", help=again)
    options.add_argument("--at-once", default="1", help="runs in one process, comma-separated numbers")
    options.add_argument("--steps", type=int, default=50, help="timed ones")
    options.add_argument("--json", help="also write all rows to this file")
    return options


def settings_of(config: ModelConfig, options: argparse.Namespace) -> Training:
    micro = None if options.micro_batch is None else options.micro_batch * config.context_length
    batch = {"batch_tokens": options.batch * config.context_length, "micro_batch_tokens": micro}
    return Training(lr=RATE, precision="bf16", zero_stage=options.zero_stage, **batch)


def measure(
    row: dict[str, Any], config: ModelConfig, options: argparse.Namespace, ranks: Ranks, device: torch.device
) -> None:
    """Add to the row milliseconds of a step, eager (at ZeRO stages a run's are) and as a run makes it, and what a run
    would say of its graphs."""
    settings = settings_of(config, options)
    notes: list[str] = []
    row |= {"n_params": count_params(config).total, "processes": ranks.world}
    row["sequence_processes"] = options.sequence_processes
    row["counted_gb"] = round(counted_bytes(config, settings, options, ranks, device) / 1e9, 3)
    ways = [("run_ms" if n == 1 else f"run_ms_{n}", notes.append, n) for n in options.at_once]
    for name, say, n in ways if settings.zero_stage else [("eager_ms", None, 1), *ways]:
        run = milliseconds(config, settings, options, ranks, device, say, n)
        row[name] = round(run, 3)
        if device.type == "cuda" and "peak_gb" not in row:
            row["peak_gb"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
    tokens = options.batch * config.context_length
    row["tokens_per_s"] = round(1e3 * tokens / run)
    flops = tokens * train_flops_per_token(config, "exact") / ranks.world
    row["tflop_per_s"] = round(flops / run / 1e9, 1)
    row["notes"] = "; ".join(dict.fromkeys(notes))


def counted_bytes(
    config: ModelConfig, settings: Training, options: argparse.Namespace, ranks: Ranks, device: torch.device
) -> float:
    """Bytes of training on each of the processes."""
    split = split_batch(settings, config.context_length, ranks.world, options.batch, options.sequence_processes)
    return training_memory(
        config,
        micro_batch_tokens=split.micro_rows * config.context_length,
        zero_stage=settings.zero_stage,
        world_size=ranks.world,
        sequence_processes=options.sequence_processes,
        recompute=options.recompute,
        accumulate=split.passes > 1,
        kernels=device.type == "cuda",
    )["total"]


def milliseconds(
    config: ModelConfig, settings: Training, options: argparse.Namespace, ranks: Ranks, device: torch.device,
    say: Callable[[str], None] | None, n_runs: int = 1,
) -> float:  # fmt: skip
    """Milliseconds of a step on random tokens. Its numbers are read after it, or, with `say`, as late as a run reads
    them; of `n_runs` that take turns, divided by their number."""
    free_memory()  # of the engine before this one
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    lanes = [Lane() for _ in range(n_runs)]
    steps = []
    for lane in lanes:
        with lane.entered():
            steps.append(stepping(config, settings, options, ranks, device, say))

    def step() -> None:
        for lane, make_step in zip(lanes, steps, strict=True):
            with lane.entered():
                make_step()

    for _ in range(WARM_UP):
        step()
    return 1e3 * timed(step, options.steps)[0] / n_runs


def stepping(
    config: ModelConfig, settings: Training, options: argparse.Namespace, ranks: Ranks, device: torch.device,
    say: Callable[[str], None] | None,
) -> Callable[[], None]:  # fmt: skip
    """Makes the next step of a run of its own."""
    model = build_model(config, None)
    model.decoder.gradient_checkpointing = options.recompute
    engine = Engine(model, settings, options.batch, device, ranks, 0, options.sequence_processes)
    stepper = Stepper(engine, say)
    readings, steps = Readings(engine, lag=None if say else 0), count(1)
    generator = torch.Generator().manual_seed(engine.rows.start)  # processes that share rows must have the same
    shape = (engine.rows.stop - engine.rows.start, config.context_length + 1)
    batch = torch.randint(config.vocab_size, shape, generator=generator)
    batch[:, -1] %= config.n_outputs

    def step() -> None:
        number = next(steps)
        tokens = batch.pin_memory() if device.type == "cuda" else batch
        readings.put(number, RATE, *stepper.step(tokens, RATE), stop=False)
        list(readings.take(number - readings.lag))

    return step


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    numbers = ["batch", "context_length", "steps", "sequence_processes"]
    at_least_one(options, *numbers, *(["micro_batch"] if options.micro_batch is not None else []))
    register_architectures(options.plugin, options.study)
    if not 0 <= options.recompute <= 1:
        raise InputError(f"--recompute: must be a share of the layers, 0 to 1, not {options.recompute:g}")
    options.at_once = whole_numbers(options.at_once, "--at-once")
    file_to_write(options.json, "--json")
    chosen = [
        (arch, size, config_of(arch, size, options.vocab_size, options.context_length))
        for size in options.size.split(",")
        for arch in options.model.split(",")
    ]
    for arch, size, config in chosen if options.sequence_processes > 1 else ():
        check_parts(config, settings_of(config, options), options.sequence_processes, f"{arch}/{size}")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = start_distributed(kind)
    device = torch.device("cuda", ranks.local) if kind == "cuda" else torch.device("cpu")
    if ranks.rank == 0:
        print(described() if kind == "cuda" else "on the CPU", flush=True)
    rows: list[dict[str, Any]] = []
    for arch, size, config in chosen:
        rows.append({"model": arch, "size": size})
        try:
            measure(rows[-1], config, options, ranks, device)
        except torch.OutOfMemoryError as error:
            rows[-1]["notes"] = last_line(error)
        if ranks.rank == 0:
            print(rows[-1], flush=True)
            if options.json:
                write_json(Path(options.json), rows)
    if ranks.rank == 0:
        print(rows_table(rows))


if __name__ == "__main__":
    run(main)
