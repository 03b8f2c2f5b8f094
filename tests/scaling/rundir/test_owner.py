"""A run's writes are its newest process's alone: tokens, the fence before each write, and what an older one does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from arch.errors import InputError
from data.files import guarded, new_directory, read_json, write_json
from scaling.rundir import metrics
from scaling.rundir.directory import RunDir
from scaling.rundir.lock import run_lock
from scaling.rundir.metrics import MetricsWriter
from scaling.rundir.owner import Attempt, Superseded, Token, attempt_by_hand, attempts, tokens
from scaling.trainer.loop import Trainer

from ..small_runs import exact_rows, make_run

CPU = torch.device("cpu")


def test_tokens_are_ordered_and_read_back() -> None:
    ordered = [Token(), Token(0, 0, 0, 1), Token(1, 9, 3), Token(1, 9, 12), Token(1, 70, 0), Token(2, 3, 0)]
    assert sorted(ordered[::-1]) == ordered
    assert [Token(*map(int, str(token).split("."))) for token in ordered] == ordered
    assert sorted(map(str, ordered)) == [str(token) for token in ordered], "names sort as their tokens do"


def test_the_newest_owns_the_run_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    old, new = Attempt(tmp_path, Token(1, 5, 0)), Attempt(tmp_path, Token(1, 5, 1))
    new.register()
    with pytest.raises(Superseded, match=r"attempt 0001\.0000000005\.0001\.0000 has taken over"):
        old.register()
    new.check()
    assert tokens(tmp_path) == [old.token, new.token]
    by_hand = attempt_by_hand(tmp_path)
    assert by_hand.token == Token(1, 5, 1, 1)
    with pytest.raises(Superseded):
        new.check()


def test_an_attempt_tells_where_and_from_what(tmp_path: Path) -> None:
    (tmp_path / "state" / "00000040").mkdir(parents=True)
    attempt = Attempt(tmp_path, Token(1, 5, 0))
    attempt.register()
    attempt.record(exit_code=75)
    attempt.register()  # once more changes nothing
    (record,) = attempts(tmp_path)
    assert (record["step"], record["exit_code"], record["pid"], record["token"]) == (
        40,
        75,
        os.getpid(),
        str(attempt.token),
    )


def test_no_write_of_an_older_process_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WRITE_SECONDS", 600.0)  # rows are written where it says so, however long that takes
    run = tmp_path / "run"
    old = Attempt(run, Token(1, 5, 0))
    old.register()
    rows = MetricsWriter(run / "metrics.jsonl")
    with guarded(old.check):
        write_json(run / "status.json", {"by": "old"})
        rows.append({"step": 1})
        rows.flush()
        Attempt(run, Token(1, 5, 1)).register()
        with pytest.raises(Superseded):
            write_json(run / "status.json", {"by": "old, again"})
        with pytest.raises(Superseded), new_directory(run / "checkpoint", {}) as temporary:
            (temporary / "weights").write_text("old")
        rows.append({"step": 2})
        with pytest.raises(Superseded):
            rows.flush()
    assert read_json(run / "status.json") == {"by": "old"}
    assert not (run / "checkpoint").exists() and not list(run.rglob(".*.tmp"))
    assert metrics.complete_rows(run / "metrics.jsonl") == [(1, b'{"step": 1}\n')]


def test_an_open_metrics_file_is_left_behind_on_resume(tmp_path: Path) -> None:
    """A process that hung between the check and the write appends to a file that no longer has a name."""
    path = tmp_path / "metrics.jsonl"
    old = MetricsWriter(path)
    old.append({"step": 1})
    old.flush()
    metrics.cut(path, 1)
    old.append({"step": 2})
    old.flush()
    assert [step for step, _ in metrics.complete_rows(path)] == [1]


WATCHER = """
import sys, time
from pathlib import Path
from scaling.rundir import owner
owner.WATCH_S = 0.05
attempt = owner.Attempt(Path(sys.argv[1]), owner.Token(1, 5, 0))
attempt.register()
attempt.watch()
print("watching", flush=True)
time.sleep(60)
"""


def test_a_process_that_hangs_ends_when_a_newer_one_comes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "watching\n"
    time.sleep(0.3)
    assert process.poll() is None
    Attempt(tmp_path, Token(1, 5, 1)).register()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 76 and "has taken over" in err


def test_a_claim_waits_for_the_older_holder_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling.rundir.lock.PATIENCE_S", 0.1)
    attempt, held, leave = Attempt(tmp_path, Token(1, 5, 1)), threading.Event(), threading.Event()
    attempt.register()

    def hold() -> None:
        with run_lock(tmp_path):
            held.set()
            leave.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(120)
    with pytest.raises(InputError, match="is training this run"), run_lock(tmp_path):
        pass
    threading.Timer(0.5, leave.set).start()
    with run_lock(tmp_path, attempt):
        assert leave.is_set()
    holder.join()


def test_waiting_for_the_lock_ends_when_a_newer_claim_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling.rundir.lock.TAKEOVER_S", 120.0)
    attempt = Attempt(tmp_path, Token(1, 5, 1))
    attempt.register()
    newer = threading.Timer(0.3, Attempt(tmp_path, Token(1, 5, 2)).register)
    newer.start()
    with run_lock(tmp_path), pytest.raises(Superseded), run_lock(tmp_path, attempt):
        pass
    newer.join()


def test_a_trainer_whose_run_is_taken_over_stops_and_the_run_can_go_on(tmp_path: Path) -> None:
    whole = make_run(tmp_path, n_steps=12, name="whole")
    assert Trainer(whole, CPU, time.perf_counter()).train() == 0
    rundir = make_run(tmp_path, n_steps=12, name="taken")
    attempt = Attempt(rundir.path, Token(1, 5, 0))
    attempt.register()
    trainer = Trainer(rundir, CPU, time.perf_counter(), attempt=attempt)
    step, taken = trainer.engine.step, []

    def take_over_in_step_8(*arguments: object) -> object:
        taken.append(1)
        if len(taken) == 8:
            Attempt(rundir.path, Token(1, 5, 1)).register()
        return step(*arguments)  # type: ignore[arg-type]

    trainer.engine.step = take_over_in_step_8  # type: ignore[method-assign, assignment]
    with pytest.raises(Superseded):
        trainer.train()
    assert rundir.status()["step"] == 6 and [c.step for c in rundir.checkpoints()] == [6]
    assert rundir.checked_rows().rows[-1]["step"] in (6, 7), "rows from step 8 on were not written"
    newer = Attempt(rundir.path, Token(1, 5, 1))
    assert Trainer(RunDir(rundir.path), CPU, time.perf_counter(), attempt=newer).train() == 0
    assert exact_rows(rundir) == exact_rows(whole)
