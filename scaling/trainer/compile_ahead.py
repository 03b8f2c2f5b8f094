"""A process that compiles the kernels of runs to come: `python -m scaling.trainer.compile_ahead RUN_DIR..`.

Kernels are compiled for a model's widths at their first call, which takes 5 to 25 s of a run. This process calls them
before the run does, on a few rows: one forward and backward pass, the loss of a checkpoint, and the passes of an
evaluation. It trains nothing and writes nothing else. A failure is in its log; the run then compiles by itself.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from arch.arguments import Parser, add_plugin
from arch.registry import load_plugins

from ..rundir.directory import RunDir
from . import process

if TYPE_CHECKING:
    import torch

    from ..study.run import RunSpec

NICE = 10
SHARE = 1 / 20  # of the GPU's memory, for this process; a model that needs more compiles in its run
ROOM = 1 / 3  # of the GPU's memory: where the runs in training need more, nothing is compiled beside them


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("python -m scaling.trainer.compile_ahead", "Compile the kernels of prepared runs on a GPU.")
    parser.add_argument("run_dirs", type=Path, nargs="+", help="directories with a run.json, in the order of training")
    parser.add_argument("--layers", type=int, required=True, help="of each model, at most")
    parser.add_argument("--beside", type=float, default=0.0, help="bytes that the runs on a GPU need meanwhile")
    add_plugin(parser)
    options = parser.parse_args(arguments)
    load_plugins(options.plugin)
    process.set_threads(1)
    os.nice(NICE)
    import torch

    from arch.no_compiler import keep_from_the_compiler

    if not torch.cuda.is_available():
        print("nothing is compiled: PyTorch sees no CUDA device here", flush=True)
        return 0
    if options.beside > ROOM * torch.cuda.mem_get_info()[1]:
        print("nothing is compiled ahead: the runs may need the memory", flush=True)
        return 0
    torch.cuda.set_per_process_memory_fraction(SHARE)
    keep_from_the_compiler()
    for path in options.run_dirs:
        begin = time.perf_counter()
        try:
            run = RunDir(path).spec()
            compile_kernels(run, torch.device("cuda"), options.layers)
        except Exception:  # memory, most of all; the run itself reports what is wrong with it
            traceback.print_exc()
        else:
            print(f"{run.run_id}: {time.perf_counter() - begin:.1f} s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return 0


def compile_kernels(run: RunSpec, device: torch.device, layers: int) -> None:
    """Call each kernel that training `run` and reading its checkpoints calls on `device`, with a model of at most
    `layers` layers."""
    import torch

    from arch.model.lm import build_model

    from ..rundir.checkpoint_writer import PROBE_ROWS, probe_loss
    from .kernel_check import ALIGNED, rows_like

    config = run.config.shortened(layers)
    model = build_model(config, run.seed).to(device).train()
    model.decoder.gradient_checkpointing = run.recompute
    model.decoder.document_start_id = run.config.vocab_size - 1 if run.training.reset_at_documents else None
    rows = rows_like(run.batch_split(1).micro_rows, config.positions(run.context_length), config.d_model)
    most = max(rows, ALIGNED)
    ids = torch.arange(most * (run.context_length + 1), device=device).view(most, -1) % run.config.vocab_size
    ids[:, -1] %= run.config.n_outputs
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=run.training.precision == "bf16")
    with autocast:
        loss = model(input_ids=ids[:rows, :-1], targets=ids[:rows, 1:], loss_only=True).loss
    loss.backward()
    probe_loss(model.eval(), ids[:PROBE_ROWS])  # of checkpoints, which are read back in fp32, as the weights are here
    model.decoder.document_start_id = None
    with torch.inference_mode(), autocast:  # as evaluations read: full batches, and a last one of fewer rows
        for some in (ids[:ALIGNED], ids[:2]):
            model.decoder(some[:, :-1].contiguous(), None, None, None, False, None)


if __name__ == "__main__":
    process.end_with(main)
