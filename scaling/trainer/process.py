"""The process that trains one run: `python -m scaling.trainer.process RUN_DIR`, alone or under torchrun.

Exit codes: 0 done, 2 bad input (one line on stderr), 3 the run failed (its loss or gradient became infinite or NaN), 75
stopped by a signal after saving its state, 76 a newer process has taken the run over. A finished run is recognised
before anything heavy is imported.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
import uuid
from argparse import Namespace
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from arch.arguments import Parser, add_plugin
from arch.errors import FULL, InputError
from arch.registry import load_plugins

from ..rundir.directory import VALIDATION, RunDir
from ..rundir.memory import keep_freed_memory
from ..rundir.owner import SUPERSEDED, Attempt, Superseded
from ..rundir.worklist import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, damage_of, is_trained, thread_environment
from ..study.run import RunSpec
from .stop import Stopped, StopRequest
from .turns import Steps, finish

STARTED = time.perf_counter()
PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None, attempt: Attempt | None = None, stop: StopRequest | None = None) -> int:
    """Make all steps of `steps`, without turns of other runs; returns the exit code."""
    return finish(steps(arguments, attempt, stop))


def steps(
    arguments: list[str] | None = None,
    attempt: Attempt | None = None,
    stop: StopRequest | None = None,
    started: float | None = None,
) -> Steps:
    """Train the run of the command line, a step a turn; returns the exit code.

    attempt, stop: of a process that has registered its attempt and listens to signals already; started: of a process
    that trains several runs, time.perf_counter() at the start of this run. The first turn only imports.
    """
    parser = Parser("python -m scaling.trainer.process", "Train one prepared run.")
    parser.add_argument("run_dir", type=Path, help="a directory with run.json; the corpus lies two levels above it")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--retry", action="store_true", help="train the run even if it failed before")
    held_out = "evaluate the trained run's checkpoints on so many held-out tokens, in batches of so many rows"
    parser.add_argument("--held-out", nargs=2, type=int, metavar=("TOKENS", "ROWS"), help=held_out)
    add_plugin(parser)
    options = parser.parse_args(arguments)
    rundir = RunDir(options.run_dir)
    try:
        load_plugins(options.plugin)
        return (yield from _train(rundir, options, attempt, stop or StopRequest(), started))
    except Superseded as error:
        print(f"stopped: {error}", file=sys.stderr)
        return SUPERSEDED
    except Stopped as error:
        print(f"stopped {error}", file=sys.stderr)
        return EXIT_STOPPED
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except OSError as error:
        if error.errno not in FULL and error.filename is None:  # of no file
            raise
        remedy = "free some space" if error.errno in FULL else "see that this path can be used,"
        path = Path(error.filename or options.run_dir)
        path = next((folder.parent for folder in path.parents if folder.suffix == ".tmp"), path)  # which is gone by now
        message = f"error: {path}: {error.strerror}; {remedy} and run again to continue"
        with suppress(OSError):  # the log may lie on the same disk
            print(message, file=sys.stderr, flush=True)
        return EXIT_INPUT


def _train(
    rundir: RunDir, options: Namespace, attempt: Attempt | None, stop: StopRequest, started: float | None
) -> Steps:
    run, status, device = rundir.spec(), rundir.status(), options.device
    if status["state"] == "failed" and not options.retry:
        last = status["last_checkpoint"] or "none"
        print(f"{run.run_id}: failed before: {status['reason']} (last good checkpoint: {last})", flush=True)
        return EXIT_FAILED
    if why := damage_of(rundir):
        raise InputError(f"{rundir.path}: {why}: `scaling train --repair` trains again what is lost")
    if is_trained(run, rundir):
        return 0
    _die_with_torchrun()
    set_threads(run.training.threads)
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no CUDA device here; use --device cpu")
    run.config.check_device(device == "cuda")
    set_numerics(device, run.training.threads)
    if device == "cpu":
        torch.set_flush_denormal(True)  # denormals cost tenfold; deterministic without further settings
    from .loop import Trainer

    yield 0.0  # the caller that gives the turns may choose a stream from here on
    stop.listen()
    start = STARTED if started is None else started
    try:
        code = yield from Trainer(rundir, torch.device(device), start, stop, attempt).steps()
    finally:
        if started is None:
            leave_group()
    if code == 0 and options.held_out and int(os.environ.get("RANK", "0")) == 0:
        yield from _evaluate(rundir, run, device, stop, *options.held_out)
    return code


def _evaluate(
    rundir: RunDir, run: RunSpec, device: str, stop: StopRequest, validation_tokens: int, batch_rows: int
) -> Generator[float, float | None, None]:
    """Evaluate the held-out loss of the run's checkpoints, one a turn, until a signal comes. What fails is written to
    the log and left to `scaling eval study`: the run is trained all the same."""
    from analysis.evals.losses import Validation
    from analysis.evals.matrix import matrix_of
    from analysis.evals.task import TaskContext
    from analysis.evals.worker import Worker

    free_memory()
    corpus = rundir.study / "corpus"
    settings = {"validation_tokens": validation_tokens, "batch_rows": batch_rows}
    worker = Worker(corpus, device, uuid.uuid4().hex)
    try:
        matrix = matrix_of(
            rundir.path.parent, [run], [Validation(VALIDATION, TaskContext(corpus, None, {VALIDATION: settings}))]
        )
        for pair in matrix.pairs:
            if stop.name is not None:
                return
            worker.work(replace(matrix, pairs=[pair]))
            yield 0.0
    except InputError as error:
        print(f"{run.run_id}: not evaluated: {error}", flush=True)


def free_memory() -> None:
    """Free what trainers held whose runs have ended."""
    gc.unfreeze()  # a trainer froze all objects
    gc.collect()
    gc.collect()  # what DeepSpeed had of engines, whose end the first collection was
    torch = sys.modules.get("torch")  # a run that has nothing to train imports none
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def leave_group() -> None:
    """Leave the processes of the run, where any were joined."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _die_with_torchrun() -> None:
    """End this process with torchrun, whose workers have sessions of their own and would survive a kill -9 of its
    process group."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def set_threads(threads: int) -> None:
    """Set the run's own number of threads, which changes bits. Call it before torch is imported."""
    os.environ.update(thread_environment(threads))


def set_numerics(device: str, threads: int) -> None:
    """Choose numerics of trainings and evaluations that repeat to the bit on the same machine, where that costs
    nothing."""
    import torch

    from arch.no_compiler import keep_from_the_compiler
    from arch.products import multiply_in_fp32

    keep_from_the_compiler()
    multiply_in_fp32()
    torch.set_num_threads(threads)
    if device == "cpu":
        keep_freed_memory()
    else:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def end_with(main: Callable[[], int]) -> NoReturn:
    """Run `main` and end this process with the code it returns; with 1 and a traceback where it raises.

    Exit handlers and threads are skipped: those of gloo, NCCL and libraries can wait for a peer that is gone, or crash
    the interpreter while it shuts down. All of the run is on disk.
    """
    try:
        code = main()
    except SystemExit as error:  # a command line that was refused
        code = error.code if isinstance(error.code, int) else 1
    except Exception:
        traceback.print_exc()
        code = 1
    with suppress(OSError):  # the readers of both may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end_with(main)
