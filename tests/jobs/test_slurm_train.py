"""Training jobs on a real SLURM: ways in which a cluster takes its nodes back, beside those of test_campaign.py."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.model import ArrayJob, Resources
from jobs.render import Paths, ScriptContext
from scaling.rundir.directory import RunDir
from scaling.rundir.owner import attempts
from scaling.study.jobs_schema import Cluster as Profile
from tests.gate import gated
from tests.scaling.small_runs import BATCH, exact_rows, make_run, train_here

from .cluster import Cluster, cluster

pytestmark = pytest.mark.slow
STEPS = 300
SETTINGS = {
    "n_steps": STEPS,
    "source": "synthetic:0:400000",
    "state_every_tokens": 100 * BATCH,
    "checkpoint_tokens": [150 * BATCH, STEPS * BATCH],
}
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@dataclass
class Job:
    """A submitted array of one element."""

    cluster: Cluster
    job_id: str
    rundir: RunDir
    folder: Path

    def info(self) -> dict[str, Any]:
        return next(job for job in self.cluster.jobs() if str(job["job_id"]) == self.job_id)

    @property
    def state(self) -> str:
        return str(self.info()["job_state"])

    def step(self) -> int:
        """The last step whose row is on disk."""
        return int((self.rundir.last_row() or {"step": 0})["step"])

    def tasks(self, restart: int = 0) -> dict[int, dict[str, str]]:
        """{pid: environment} of the run's processes of one start of the job."""
        processes = self.cluster.pids("jobs.task", str(self.rundir.path))
        processes = {pid: env for pid, env in processes.items() if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env}
        return {pid: env for pid, env in processes.items() if int(env.get("SLURM_RESTART_COUNT", "0")) == restart}

    def until(self, done: Callable[[], object], what: str, seconds: float = 600.0) -> None:
        """Wait. Raises TimeoutError with the job's logs."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s\n{self.info()}\n{self.logs()}")
            time.sleep(0.1)

    def finished(self, seconds: float = 600.0) -> None:
        """Wait for the end, and that it is a good one."""
        self.until(lambda: self.state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), "the end", seconds)
        assert self.state == "COMPLETED", self.logs()

    def logs(self) -> str:
        files = [*sorted((self.folder / "logs").iterdir()), self.rundir.log]
        return "\n".join(f"--- {file.name}\n{file.read_text(encoding='utf-8')}" for file in files if file.exists())

    def stopped(self, by: str, attempt: int = 1) -> int:
        """The step after which the run was stopped by the signal `by` to be queued again, by its log."""
        shown = re.findall(
            r"stopped by (\w+) after step (\d+), to be continued", self.rundir.log.read_text(encoding="utf-8")
        )
        assert shown[attempt - 1][0] == by, shown
        return int(shown[attempt - 1][1])

    def exit_codes(self) -> list[int | None]:
        """Of srun, at the end of each attempt; None where the script did not come to it."""
        return [attempt.get("exit_code") for attempt in attempts(self.rundir.path)]


def submit(
    cluster: Cluster, rundir: RunDir, nodes: int = 1, minutes: int = 5, max_restarts: int = 3,
    options: tuple[str, ...] = (), environment: Mapping[str, str] | None = None,
) -> Job:  # fmt: skip
    """One run as an array of one element, on `nodes` nodes of one task each."""
    folder = rundir.study / "jobs" / "0001"
    paths = Paths(folder, ROOT, folder / "study.yaml", rundir.study, ROOT)
    words = {"environment": ENVIRONMENT | dict(environment or {}), "sbatch": list(options)}
    profile = Profile(nodes=4, cpus_per_node=64, signal_s=30, max_restarts=max_restarts, **words)
    context = ScriptContext(study=rundir.study.name, profile=profile, paths=paths, python=sys.executable)
    job = ArrayJob("train-0", "train", Resources(nodes, 1, 0, 1, None, minutes), ((rundir.path.name,),))
    return Job(cluster, cluster.submit(context, job), rundir, folder)


def started(cluster: Cluster, tmp_path: Path, nodes: int = 1, **options: int) -> Job:
    """A job whose run is under way; it waits at step 120, past a saved state, for a signal or the file `go`."""
    run = make_run(tmp_path, name="a study; $(x) 'of' \"mine\"", **SETTINGS)
    job = submit(cluster, run, nodes, environment=gated(120, tmp_path / "go"), **options)
    job.until(lambda: job.step() >= 120, "step 120")
    return job


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
        assert [row["step"] for row in job.rundir.checked_rows().rows] == list(range(1, 21))
    assert len({job.info()["nodes"] for job in jobs}) == 1, "both were on the same nodes"
    assert exact_rows(jobs[0].rundir) == exact_rows(jobs[1].rundir)


@pytest.mark.skipif(os.getuid() != 0, reason="GPUs of a test cluster are device files: only root can make them")
def test_runs_side_by_side_on_a_whole_node(tmp_path: Path) -> None:
    """Five runs in four places, each on GPUs of its own: bad input of the first stops no other, a notice of the time
    limit reaches all, and a run whose process is killed goes on when the others have ended."""
    archs, name = ("cosformer2", "tnl", "hgrn2", "llama"), "a study; $(x) 'of' \"mine\""
    alone = make_run(tmp_path, "tnl", name="alone", **SETTINGS)
    bad = make_run(tmp_path, size="25k", name=name, **SETTINGS)
    runs = [make_run(tmp_path, arch, name=name, **SETTINGS) for arch in archs]
    bad.run_json.write_text("{")
    folder = bad.study / "jobs" / "0001"
    environment = ENVIRONMENT | gated(120, tmp_path / "go")
    profile = Profile(
        nodes=1, cpus_per_node=64, gpus_per_node=4, whole_nodes=True, signal_s=30, environment=environment
    )
    paths = Paths(folder, ROOT, folder / "study.yaml", bad.study, ROOT)
    context = ScriptContext(study="s", profile=profile, paths=paths, python=sys.executable)
    asked = Resources(1, 1, 4, 2, 8000, 10, at_once=4)
    with cluster(1, gpus=4) as node:
        array = ArrayJob("train-0", "train", asked, (tuple(run.path.name for run in (bad, *runs)),))
        number = node.submit(context, array)
        jobs = [Job(node, number, run, folder) for run in runs]
        for job in jobs:
            job.until(lambda job=job: job.step() == 120, "all are at step 120")
        places = [env["CUDA_VISIBLE_DEVICES"] for job in jobs for env in job.tasks().values()]
        assert sorted(places) == ["0", "1", "2", "3"]
        node.run("scancel", "--batch", "--signal=USR1", f"{number}_0")
        for job in jobs:
            job.until(lambda job=job: job.tasks(restart=1), "queued again")
            assert job.stopped("SIGUSR1") >= 120 and job.exit_codes()[0] == 75
        os.kill(next(iter(jobs[1].tasks(restart=1))), signal.SIGKILL)
        jobs[0].until(lambda: jobs[0].state == "FAILED", "the end")
        assert jobs[0].info()["restart_cnt"] == 2 and f"error: {bad.run_json}" in jobs[0].logs()
    for job in jobs:
        assert job.rundir.status()["state"] == "done", job.logs()
        assert [row["step"] for row in job.rundir.checked_rows().rows] == list(range(1, STEPS + 1))
        assert job.exit_codes() == [75, 137 if job is jobs[1] else 0, 0]
    train_here(alone)
    assert exact_rows(alone) == exact_rows(jobs[1].rundir)
