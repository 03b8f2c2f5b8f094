"""Numbers that are read some steps after their step: the same rows, and nothing written that nobody has looked at."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from scaling.rundir.directory import RunDir
from scaling.trainer import loop
from scaling.trainer.loop import Trainer
from scaling.trainer.readings import Readings

from ..small_runs import BATCH, exact_rows, make_run, status

CPU = torch.device("cpu")


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(loop, "Readings", partial(Readings, lag=4))


def trainer(rundir: RunDir) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(rundir, CPU, time.perf_counter())


@pytest.mark.parametrize("log_every", [1, 3])
def test_rows_and_files_are_those_without_a_lag(tmp_path: Path, log_every: int, request: pytest.FixtureRequest) -> None:
    runs = [make_run(tmp_path / name, n_steps=20, log_every=log_every) for name in ("at-once", "later")]
    assert trainer(runs[0]).train() == 0
    request.getfixturevalue("lagging")
    assert trainer(runs[1]).train() == 0
    assert exact_rows(runs[0]) == exact_rows(runs[1]) and status(runs[0]) == status(runs[1])
    times = [row["time_s"] for row in runs[1].checked_rows().rows]
    assert times == sorted(times)


@pytest.mark.usefixtures("lagging")
@pytest.mark.parametrize(("bad", "reached"), [(3, 7), (9, 10)])
def test_the_bad_step_is_named_and_no_later_one_is_kept(tmp_path: Path, bad: int, reached: int) -> None:
    """4 steps later, or where a checkpoint is due: that of step 10 is not written."""
    rundir = make_run(tmp_path, n_steps=20)
    training, taken = trainer(rundir), []
    step = training.engine.step

    def spoilt_step(tokens: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        loss, norm = step(tokens, lr)
        taken.append(1)
        return (loss * float("nan") if len(taken) == bad else loss), norm

    training.engine.step = spoilt_step  # type: ignore[method-assign]
    assert training.train() == 3 and len(taken) == reached
    assert status(rundir)["reason"] == f"loss is nan at step {bad}"
    assert [row["step"] for row in rundir.checked_rows().rows] == list(range(1, bad))
    assert not rundir.checkpoints() and not list((rundir.path / "state").glob("[0-9]*"))


@pytest.mark.usefixtures("lagging")
@pytest.mark.parametrize(("log_every", "last"), [(1, 12), (5, 15)])
def test_a_signal_stops_at_the_next_logged_step_and_the_run_goes_on(tmp_path: Path, log_every: int, last: int) -> None:
    undisturbed, rundir = (make_run(tmp_path / name, n_steps=20, log_every=log_every) for name in ("one", "other"))
    assert trainer(undisturbed).train() == 0
    training, taken = trainer(rundir), []
    step = training.engine.step

    def with_a_signal(tokens: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        taken.append(1)
        training.stop.name = "SIGTERM" if len(taken) == 12 else training.stop.name
        return step(tokens, lr)

    training.engine.step = with_a_signal  # type: ignore[method-assign]
    assert training.train() == 75 and len(taken) == last
    assert status(rundir)["step"] == last and status(rundir)["n_tokens"] == last * BATCH
    assert trainer(rundir).train() == 0
    assert exact_rows(rundir) == exact_rows(undisturbed)
