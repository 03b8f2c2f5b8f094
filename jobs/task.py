"""One process of a run under srun: `python -m jobs.task RUN_DIR --submission N`.

Takes its rank from SLURM's variables, claims the run (rank 0; scaling.rundir.owner), joins the others
(jobs.rendezvous) and trains in this same process. Exit codes are those of scaling.trainer.process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from arch.arguments import Parser, add_plugin
from arch.errors import InputError
from arch.registry import load_plugins
from data.files import STAGE
from scaling.rundir.directory import RunDir
from scaling.rundir.launcher import leave, number
from scaling.rundir.owner import SUPERSEDED, Attempt, Superseded, Token
from scaling.rundir.worklist import EXIT_INPUT, EXIT_STOPPED, is_trained, thread_environment
from scaling.trainer import process as train_run
from scaling.trainer.stop import Stopped, StopRequest

from .rendezvous import SrunTask, join, publish


def srun_task(env: Mapping[str, str]) -> SrunTask:
    """From srun's variables. Raises InputError outside of srun, and where several nodes have no MASTER_ADDR."""
    try:
        world, nodes = (number(env, f"SLURM_STEP_NUM_{name}", 1) for name in ("TASKS", "NODES"))
        rank, local = (number(env, f"SLURM_{name}", 0, world - 1) for name in ("PROCID", "LOCALID"))
    except InputError as error:
        raise InputError(f"{error}: srun starts jobs.task; elsewhere use scaling.trainer.process") from None
    address = env.get("MASTER_ADDR") if nodes > 1 else "127.0.0.1"
    if address is None:
        raise InputError("environment: MASTER_ADDR is missing: a step over several nodes needs the first one's address")
    devices = env.get("CUDA_VISIBLE_DEVICES", "")
    alone = bool(devices) and "," not in devices  # some sites show each task its own GPU only
    return SrunTask(rank, world, 0 if alone else local, world // nodes, address)


def token(env: Mapping[str, str], submission: int) -> Token:
    """This job's, the same on every rank: see scaling.rundir.owner. Raises InputError outside of a job."""
    return Token(submission, number(env, "SLURM_JOB_ID", 1), number(env, "SLURM_RESTART_COUNT", 0, default=0))


def main(arguments: list[str] | None = None) -> int:
    """Train the run of the command line as one of its processes; returns the exit code."""
    parser = Parser("python -m jobs.task", "Train one prepared run under srun.")
    parser.add_argument("run_dir", type=Path, help="a directory with run.json; the corpus lies two levels above it")
    parser.add_argument("--submission", type=int, default=0, help="number of the submission; a later one takes over")
    parser.add_argument("--retry", action="store_true", help="train the run even if it failed before")
    add_plugin(parser)
    options = parser.parse_args(arguments)
    stop = StopRequest()
    stop.listen()  # importing PyTorch can take longer than a preemption waits
    try:
        load_plugins(options.plugin)
        here = srun_task(os.environ)
        attempt = Attempt(options.run_dir, token(os.environ, options.submission))
        code = _start(RunDir(options.run_dir), here, attempt, stop)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except Superseded as error:
        print(f"stopped: {error}", file=sys.stderr)
        return SUPERSEDED
    except Stopped as error:
        print(f"stopped {error}", file=sys.stderr)
        return EXIT_STOPPED
    if code is not None:
        return code
    retry = ["--retry"] if options.retry else []
    return train_run.main([str(options.run_dir), *retry], attempt if here.rank == 0 else None, stop)


def _start(rundir: RunDir, here: SrunTask, attempt: Attempt, stop: StopRequest) -> int | None:
    """Register the attempt and join the others; an exit code where there is nothing to train."""
    run = rundir.spec()
    leave()  # srun's variables are read by now; a launcher's are of other processes
    os.environ.update(thread_environment(run.training.threads))  # read when PyTorch is imported
    # Compiled kernels on the node's own disk: a shared one would be written by every rank at once.
    local = os.environ.get(STAGE) or tempfile.gettempdir()
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(local) / f"triton-cache-{os.getuid()}"))
    if here.rank == 0:
        attempt.register()
        if is_trained(run, rundir):
            publish(attempt, {"exit": 0})
            return 0
    attempt.watch()
    return join(attempt, stop, here)


if __name__ == "__main__":
    train_run.end_with(main)
