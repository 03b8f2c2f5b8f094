"""A process that trains runs one after another: `python -m scaling.trainer.server`, as jobs.workers starts it.

It reads a line of JSON for each run, {"argv": those of scaling.trainer.process, "log": file}, sends all output to that
file meanwhile, and answers as jobs.workers says. Imports, the GPU's context and its kernels are made once;
models, graphs and their memory are freed between runs. It ends where its input does, with a run that a signal has
stopped, and with an error that nobody expected, which may have left the GPU unusable.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time

from . import process
from .stop import SIGNALS, StopRequest


def main() -> int:
    answers = os.dup(1)
    started = process.STARTED  # the first run waits for the imports
    while line := sys.stdin.readline():
        told = json.loads(line)
        os.write(answers, b"begun\n")
        _send_output_to(told["log"])
        stop = StopRequest()
        code = process.main(told["argv"], stop=stop, started=started)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # nothing is to be saved now
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(answers, b"%d\n" % code if stop.name is None else b"%d last\n" % code)
        if stop.name is not None:
            process.leave_group()
            return code
        _free_memory()
        started = time.perf_counter()
    process.leave_group()
    return 0


def _send_output_to(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _free_memory() -> None:
    gc.unfreeze()  # the trainer froze what there was
    gc.collect()
    torch = sys.modules.get("torch")  # a run that has nothing to train imports none
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    process.end_with(main)
