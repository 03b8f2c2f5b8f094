"""One process that trains runs one after another: as each alone, and what ends it."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import torch

from jobs.local import run_tasks
from jobs.workers import Task, Worker
from scaling.rundir.directory import RunDir
from scaling.trainer.loop import Trainer

from ..small_runs import BATCH, exact_rows, make_run, status

SERVER = [sys.executable, "-m", "scaling.trainer.server"]


def served(rundir: RunDir) -> Task:
    return Task(rundir.path.parent.parent.name, [str(rundir.path), "--device", "cpu"], rundir.log, {}, SERVER)


def test_runs_one_after_another_are_those_of_processes_of_their_own(tmp_path: Path) -> None:
    archs = ("hgrn2", "llama", "tnl")
    torch.set_num_threads(1)
    alone = [make_run(tmp_path / "alone", arch, n_steps=6, name=arch) for arch in archs]
    here = [make_run(tmp_path / "served", arch, n_steps=6, name=arch) for arch in archs]
    (here[1].study / "corpus" / "manifest.json").unlink()  # this one cannot be trained: the next must not suffer
    here = [here[0], here[1], here[2], here[0]]  # the last is trained already
    events = [e for e in run_tasks([served(one) for one in here], 1) if e.kind == "finished"]
    assert [event.exit_code for event in events] == [0, 2, 0, 0]
    for one, other in zip(alone, here, strict=False):
        assert Trainer(one, torch.device("cpu"), time.perf_counter()).train() == 0
        if other is not here[1]:
            assert exact_rows(one) == exact_rows(other) and status(one) == status(other)
            weights = [r.checkpoints()[-1].path / "model.safetensors" for r in (one, other)]
            assert weights[0].read_bytes() == weights[1].read_bytes()
            assert other.log.read_text().count("first step") == 1
    assert "error: " in here[1].log.read_text()


def test_a_signal_stops_the_run_and_the_process(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, n_steps=4000, source="synthetic:0:3000000", state_every_tokens=1000 * BATCH)
    worker = Worker(served(rundir), None, None)
    until = time.monotonic() + 120
    while rundir.last_row() is None and time.monotonic() < until:
        time.sleep(0.02)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 75 and worker.exit_code() == 75
    assert "stopped by SIGTERM" in rundir.log.read_text() and status(rundir)["state"] == "running"


def test_an_error_nobody_expected_ends_the_process_and_the_next_run_gets_a_fresh_one(tmp_path: Path) -> None:
    broken, whole = (make_run(tmp_path, n_steps=3, name=name) for name in ("broken", "whole"))
    broken.metrics.mkdir()
    with closing(run_tasks([served(broken), served(whole)], 1)) as events:
        codes = {event.task.name: event.exit_code for event in events if event.kind == "finished" and event.task}
    assert codes["whole"] == 0 and codes["broken"] not in (0, None)
    assert "Traceback" in broken.log.read_text()
