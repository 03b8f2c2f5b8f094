"""A process under srun, without SLURM: its srun_task, its token, and what a batch script receives afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arch.errors import InputError
from data.files import write_json
from jobs import outcome
from jobs.outcome import judge_attempt
from jobs.task import srun_task, token
from scaling.rundir.owner import Attempt, Superseded, Token, attempts, last_attempt
from tests.scaling.small_runs import BATCH, make_run, train

STEP = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "2"}


def test_the_place_is_slurms() -> None:
    place = srun_task(STEP | {"MASTER_ADDR": "10.0.0.1"})
    assert (place.rank, place.world, place.local, place.local_world, place.address) == (3, 4, 1, 2, "10.0.0.1")
    gpus = STEP | {"MASTER_ADDR": "10.0.0.1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert srun_task(gpus).local == 1
    assert srun_task(gpus | {"CUDA_VISIBLE_DEVICES": "1"}).local == 0, "a task that sees its own GPU alone calls it 0"
    assert srun_task(STEP | {"SLURM_STEP_NUM_NODES": "1"}).address == "127.0.0.1"
    with pytest.raises(InputError, match="MASTER_ADDR is missing"):
        srun_task(STEP)
    with pytest.raises(InputError, match="SLURM_STEP_NUM_TASKS is missing: srun"):
        srun_task({})
    assert token({"SLURM_JOB_ID": "7"}, 2) == Token(2, 7, 0)
    assert token({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3"}, 2) == Token(2, 7, 3)


def test_outside_of_srun_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "jobs.task", str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "srun starts jobs.task" in done.stderr


def test_what_the_script_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    rundir = make_run(tmp_path)
    run = rundir.path

    def shown(code: int, restart: int, most: int = 2) -> int:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        return outcome.main([str(run), str(code), "--submission", "1", "--max-restarts", str(most)])

    assert [shown(137, 0), shown(1, 1)] == [75, 75]
    assert shown(137, 2) == 137 and "given up after 3 attempts without a newer saved state" in capfd.readouterr().err
    assert shown(2, 3) == 2
    rundir.write_status("failed", 2, 2 * BATCH, "loss is nan at step 2", None)
    assert shown(3, 4) == 3 and "failed: loss is nan at step 2" in capfd.readouterr().err
    rundir.status_json.unlink()
    Attempt(run, Token(1, 7, 9)).register()
    assert shown(1, 5) == 76
    assert train(rundir)[0] == 0
    assert shown(137, 10) == 0, "what is on disk decides, not how the step ended"
    assert outcome.main([str(tmp_path / "nowhere"), "1", "--max-restarts", "1"]) == 2


def test_attempts_that_save_a_state_are_not_counted(tmp_path: Path) -> None:
    """A run that is preempted every time but comes further goes on for ever; one that does not ends."""
    rundir = make_run(tmp_path, n_steps=12, state_every_tokens=2 * BATCH)
    assert train(rundir)[0] == 0
    (rundir.checkpoint(12) / "manifest.json").unlink()  # not done, and states lie there
    newest = rundir.states()[-1].step
    for restart in range(6):
        attempt = Attempt(rundir.path, Token(1, 7, restart))
        attempt.register()
        record = attempt.read() | {"step": newest - 6 + restart}
        write_json((rundir.path / "attempts" / f"{attempt.token}.json"), record)
        assert judge_attempt(rundir, attempt, 75, max_restarts=0)[0] == 75
    attempt = Attempt(rundir.path, Token(1, 7, 6))
    assert judge_attempt(rundir, attempt, 143, max_restarts=0)[0] == 143
    with pytest.raises(Superseded):
        judge_attempt(rundir, Attempt(rundir.path, Token(1, 7, 5)), 143, max_restarts=0)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"step": ["x"], "host": 7}', '{"step": null}', "\xff"])
def test_damaged_records_of_attempts_count_as_attempts(tmp_path: Path, content: str) -> None:
    """A node that dies leaves an empty file: the verdict ended in a traceback, and with it the run."""
    rundir = make_run(tmp_path)
    for restart in range(2):
        attempt = Attempt(rundir.path, Token(1, 7, restart))
        attempt.register()
        (rundir.path / "attempts" / f"{attempt.token}.json").write_bytes(content.encode("latin-1"))
        damaged = attempt.read().pop("damaged")
        assert attempt.read() == {"token": str(attempt.token), "step": 0, "damaged": damaged}
    assert judge_attempt(rundir, attempt, 137, max_restarts=2)[0] == 75
    code, shown = judge_attempt(rundir, Attempt(rundir.path, Token(1, 7, 2)), 137, max_restarts=2)
    assert code == 137 and "given up after 3 attempts" in shown


def test_what_an_attempt_records_is_read_again(tmp_path: Path) -> None:
    """Keys of any name and numbers of any size, but for a time that is no date."""
    attempt = Attempt(make_run(tmp_path).path, Token(1, 7, 0))
    attempt.register()
    attempt.record(peak=2.5e11, resumed=True)
    assert (attempt.read()["peak"], attempt.read()["resumed"]) == (2.5e11, True) and "damaged" not in attempt.read()
    attempt.record(started=1e12)
    assert "started" not in attempt.read() and attempt.read()["damaged"].endswith(".json is damaged: started")


def test_a_run_that_never_began_tells_why(tmp_path: Path) -> None:
    """48 starts of srun died of the same line, and the run was "waiting" afterwards."""
    rundir, line = make_run(tmp_path), "srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive."
    for restart in range(3):
        rundir.log.write_text(f"{line}\n\n")
        code, shown = judge_attempt(rundir, Attempt(rundir.path, Token(1, 7, restart)), 1, max_restarts=2)
    why = (
        "ended with exit code 1 at step 0 of 12: given up after 3 attempts without a newer saved state; its log ends: "
    )
    why += line
    assert (code, shown) == (1, f"{rundir.path.name}: {why}")
    last = last_attempt(rundir.path)
    assert last is not None and last["reason"] == why
    Attempt(rundir.path, Token(2, 8, 0)).register()
    assert last_attempt(rundir.path) == attempts(rundir.path)[-1] and "reason" not in attempts(rundir.path)[-1]
