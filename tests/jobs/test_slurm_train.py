"""Training jobs on a real SLURM: ways in which a cluster takes its nodes back, beside those of test_campaign.py.

Each run is disturbed while it trains and must end with the very rows of one that was not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scaling.rundir.directory import RunDir
from scaling.rundir.owner import attempts
from tests.gate import gated
from tests.scaling.small_runs import BATCH, exact_rows, make_run, train

from .cluster import Cluster, name
from .slurm_runs import Job, submit

pytestmark = pytest.mark.slow
STEPS = 300
SETTINGS = {
    "n_steps": STEPS,
    "source": "synthetic:0:400000",
    "state_every_tokens": 100 * BATCH,
    "checkpoint_tokens": [150 * BATCH, STEPS * BATCH],
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    rundir = make_run(tmp_path_factory.mktemp("undisturbed"), **SETTINGS)
    code, out, err = train(rundir)
    assert code == 0, out + err
    return rundir


def started(cluster: Cluster, tmp_path: Path, nodes: int = 1, **options: int) -> Job:
    """A job whose run is under way; it waits at step 120, past a saved state, for a signal or the file `go`."""
    run = make_run(tmp_path, name="a study; $(x) 'of' \"mine\"", **SETTINGS)
    job = submit(cluster, run, nodes, environment=gated(120, tmp_path / "go"), **options)
    job.until(lambda: job.step() >= 120, "step 120")
    return job


def same(job: Job, undisturbed: RunDir) -> None:
    """The rows are the undisturbed ones, each once, and nothing unfinished is left."""
    rows = exact_rows(job.rundir)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows == exact_rows(undisturbed)
    for first, second in zip(job.rundir.checkpoints(), undisturbed.checkpoints(), strict=True):
        weights = [snapshot.path / "model.safetensors" for snapshot in (first, second)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list(job.rundir.path.rglob("*.tmp"))
    assert job.rundir.status()["state"] == "done"


def test_a_lost_node_whose_task_and_srun_wake_up_again(slurm: Cluster, tmp_path: Path, undisturbed: RunDir) -> None:
    """The node hangs, slurmd, job and all; its task goes on once another node trains the run, and the old srun cancels
    the step of its number, which is the new start's: one attempt more."""
    job = started(slurm, tmp_path)
    node = job.info()["nodes"]
    (old,) = job.tasks()
    hung = slurm.hang(job.job_id)
    slurm.lose(node)
    try:
        job.until(lambda: len(attempts(job.rundir.path)) == 2, "another node's task")
        os.kill(old, signal.SIGCONT)
        job.until(lambda: exit_code(old) is not None, "the old task ends")
        ended, rows = exit_code(old), len(job.rundir.rows())
        waking = [pid for pid in hung if name(pid) == "srun"]
        for number in (signal.SIGHUP, signal.SIGCONT):
            for pid in waking:
                os.kill(pid, number)
        job.until(lambda: len(attempts(job.rundir.path)) == 3, "a third attempt")
    finally:
        (tmp_path / "go").touch()
        slurm.kill_hung(hung)
        job.finished()
        slurm.start_node(node)
        slurm.wait_for_jobs(lambda _: slurm.idle_nodes() == len(slurm.nodes), 600, "the node is back")
    assert rows < STEPS and job.info()["nodes"] != node
    assert ended == 76, "it saw that it is no longer the owner"
    assert job.exit_codes() == [None, 137, 0], job.logs()
    same(job, undisturbed)


def exit_code(pid: int) -> int | None:
    """Of a process that ended and was not collected; None while it lives."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[-1]) >> 8 if fields[0] == "Z" else None


def test_a_cancelled_job_is_not_queued_again(slurm: Cluster, tmp_path: Path) -> None:
    job = started(slurm, tmp_path)
    slurm.run("scancel", job.job_id)
    job.until(lambda: job.state == "CANCELLED" and not job.tasks(), "cancelled")
    assert job.info()["restart_cnt"] == 0
    assert job.rundir.status()["reason"].startswith("stopped by SIGTERM after step")


def test_a_run_that_dies_before_it_saves_is_given_up(slurm: Cluster, tmp_path: Path) -> None:
    rundir = make_run(tmp_path, **SETTINGS)
    (rundir.study / "corpus" / "manifest.json").write_text("{")
    job = submit(slurm, rundir, max_restarts=1)
    job.until(lambda: job.state == "FAILED", "given up")
    assert job.exit_codes()[-1] == 2 and "bad input" in job.logs()


def test_a_submission_takes_over_from_an_earlier_one(slurm: Cluster, tmp_path: Path, undisturbed: RunDir) -> None:
    job = started(slurm, tmp_path)
    newer = submit(slurm, job.rundir, number=2)
    job.until(lambda: len(attempts(job.rundir.path)) == 2, "the newer task")
    (tmp_path / "go").touch()
    newer.finished()
    job.until(lambda: job.state == "FAILED", "the older one leaves")
    assert "has taken over from" in job.logs()
    same(newer, undisturbed)


def test_the_time_limit_is_announced_and_the_run_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    """SLURM's own notice, not ours: a job of one minute with a run of many."""
    rundir = make_run(tmp_path, **SETTINGS | {"n_steps": 200_000, "checkpoint_tokens": [200_000 * BATCH]}, epochs=300.0)
    job = submit(slurm, rundir, minutes=1)
    job.until(lambda: job.info()["restart_cnt"] == 1, "queued again")
    stopped = job.stopped("SIGUSR1")
    job.until(lambda: job.step() > stopped, "on from there")
    slurm.run("scancel", job.job_id)
    job.until(lambda: not job.tasks(restart=1), "cancelled")
    assert job.exit_codes()[0] == 75 and f"step {stopped} of 200000" in job.logs()


def test_two_jobs_share_their_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """So are addresses: each process must join those of its own run."""
    jobs = [
        submit(slurm, make_run(tmp_path, name=name, zero_stage=1, n_steps=20), nodes=2, options=("--nodelist=n1,n2",))
        for name in ("one", "two")
    ]
    for job in jobs:
        job.finished()
        assert job.exit_codes() == [0], "at the first attempt"
        assert [row["step"] for row in job.rundir.rows()] == list(range(1, 21))
    assert len({job.info()["nodes"] for job in jobs}) == 1, "both were on the same nodes"
    assert exact_rows(jobs[0].rundir) == exact_rows(jobs[1].rundir)
