"""One process that trains runs, one after another and in turns: as each alone, and what ends it."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.evals.losses import Validation
from analysis.evals.matrix import matrix_of
from analysis.evals.task import TaskContext
from analysis.evals.worker import Worker
from arch.model.lm import LanguageModel, build_model
from jobs import workers
from jobs.local import run_tasks
from jobs.workers import Task
from scaling.rundir.directory import VALIDATION, RunDir
from scaling.rundir.owner import SUPERSEDED, Attempt, tokens
from scaling.trainer import loop, process
from scaling.trainer.loop import Trainer

from ..small_runs import exact_rows, make_run, status, train, train_here

SERVER = [sys.executable, "-m", "scaling.trainer.server"]


def served(rundir: RunDir, share: float = 1.0, *options: str) -> Task:
    name, argv = rundir.path.parent.parent.name, [str(rundir.path), "--device", "cpu", *options]
    return Task(name, argv, rundir.log, {}, SERVER, share=share)


def wait_for_rows(*rundirs: RunDir) -> None:
    until = time.monotonic() + 120
    while not all(rundir.last_row() for rundir in rundirs) and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.parametrize(
    "share",
    [pytest.param(1.0, id="one after another", marks=pytest.mark.slow), pytest.param(1 / 4, id="in turns")],
)
def test_runs_of_one_process_are_those_of_processes_of_their_own(share: float, tmp_path: Path) -> None:
    archs = ("hgrn2", "llama", "tnl")
    torch.set_num_threads(1)
    alone = [make_run(tmp_path / "alone", arch, n_steps=6, name=arch) for arch in archs]
    here = [make_run(tmp_path / "served", arch, n_steps=6, name=arch) for arch in archs]
    (here[1].study / "corpus" / "manifest.json").unlink()  # this one cannot be trained: the next must not suffer
    here = [here[0], here[1], here[2], here[0]]  # the last is trained already
    tasks = [served(rundir, share) for rundir in here[:3]] + [served(here[3])]
    codes = [(event.task.name, event.exit_code) for event in run_tasks(tasks, 1) if event.kind == "finished"]
    assert sorted(codes) == [("hgrn2", 0), ("hgrn2", 0), ("llama", 2), ("tnl", 0)]
    for first, other in zip(alone, here, strict=False):
        assert Trainer(first, torch.device("cpu"), time.perf_counter()).train() == 0
        if other is not here[1]:
            assert exact_rows(first) == exact_rows(other) and status(first) == status(other)
            weights = [r.checkpoints()[-1].path / "model.safetensors" for r in (first, other)]
            assert weights[0].read_bytes() == weights[1].read_bytes()
            assert [row["time_s"] for row in other.checked_rows().rows] == sorted(
                row["time_s"] for row in other.checked_rows().rows
            )
            log = other.log.read_text()
            assert log.count("first step") == 1 and log.count("done: ") == 1 and log.count("checkpoint") == 2
    assert ("runs took turns" in here[0].log.read_text()) is (share < 1)
    assert "error: " in here[1].log.read_text()


@pytest.mark.parametrize("stage", [0, 3])
def test_the_memory_of_a_run_that_ended_is_free(stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[LanguageModel]] = []

    def build(*arguments: Any) -> LanguageModel:
        model = build_model(*arguments)
        made.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loop, "build_model", build)
    assert train_here(make_run(tmp_path, n_steps=4, zero_stage=stage)) == 0
    process.free_memory()
    assert [model() for model in made] == [None]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_trained_run_is_evaluated_where_it_was_trained_as_by_a_worker(processes: int, tmp_path: Path) -> None:
    """Two runs in turns in one process, of which one cannot be evaluated; and a run of two processes."""
    runs, held_out = [make_run(tmp_path, arch, n_steps=4, name=arch) for arch in ("hgrn2", "tnl")], ("1024", "4")
    if processes == 1:
        runs[1].checkpoint(2).parent.parent.joinpath("evals").write_text("no folder")
        tasks = [served(rundir, 1 / 2, "--held-out", *held_out) for rundir in runs]
        assert [event.exit_code for event in run_tasks(tasks, 1) if event.kind == "finished"] == [0, 0]
        assert "not evaluated: " in runs[1].log.read_text() and status(runs[1])["state"] == "done"
    else:
        code, out, err = train(runs[0], "--held-out", *held_out, processes=2)
        assert code == 0 and out.count("validation: done") == 2, err
    run, corpus = runs[0].spec(), runs[0].study / "corpus"
    settings = {VALIDATION: {"validation_tokens": 1024, "batch_rows": 4}}
    matrix = matrix_of(runs[0].path.parent, [run], [Validation(VALIDATION, TaskContext(corpus, None, settings))])
    values = [pair.stored().values for pair in matrix.pairs]
    for pair in matrix.pairs:
        pair.path.unlink()
    Worker(corpus, "cpu", "again").work(matrix)
    assert len(values) == 2 and values == [pair.stored().values for pair in matrix.pairs]


def test_an_error_nobody_expected_ends_the_process_and_the_next_run_gets_a_fresh_one(tmp_path: Path) -> None:
    broken = make_run(tmp_path, n_steps=3, name="broken", shape={"d_ffn": 10**10})  # of a terabyte
    whole = make_run(tmp_path, n_steps=3, name="whole")
    with closing(run_tasks([served(broken), served(whole)], 1)) as events:
        codes = {event.task.name: event.exit_code for event in events if event.kind == "finished" and event.task}
    assert codes == {"broken": 1, "whole": 0}
    assert "Traceback" in broken.log.read_text()


def test_a_signal_stops_all_runs_that_take_turns_and_the_process(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, arch, n_steps=4000, source="synthetic:0:3000000", name=arch) for arch in ("tnl", "hgrn2")
    ]
    worker = workers.Worker(served(runs[0], 1 / 2), None, None)
    worker.give(served(runs[1], 1 / 2))
    wait_for_rows(*runs)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 75 and [code for _, code in worker.ended()[0]] == [75, 75]
    for rundir in runs:
        log = rundir.log.read_text()
        assert "stopped by SIGTERM" in log and status(rundir)["state"] == "running"
        assert [path.name for path in (rundir.path / "state").glob("[0-9]*")] == [f"{status(rundir)['step']:08d}"]


def test_who_takes_a_run_over_stops_that_run_alone(tmp_path: Path) -> None:
    taken, other = (make_run(tmp_path, n_steps=n, source="synthetic:0:3000000", name=str(n)) for n in (4000, 60))
    worker = workers.Worker(served(taken, 1 / 2), None, None)
    worker.give(served(other, 1 / 2))
    wait_for_rows(taken, other)
    assert tokens(taken.path), taken.log.read_text()
    last = tokens(taken.path)[-1]
    Attempt(taken.path, replace(last, local=last.local + 1)).register()
    ended: dict[str, int] = {}
    until = time.monotonic() + 120
    while len(ended) < 2 and time.monotonic() < until:
        ended |= {task.name: code for task, code in worker.ended()[0]}
        time.sleep(0.02)
    assert ended == {"4000": SUPERSEDED, "60": 0} and status(other)["state"] == "done"
    worker.dismiss()
    assert worker.process.wait(60) == 0
