"""A whole study on a real cluster, from `scaling submit` to the report, while the cluster is taken apart under it.

Four runs on nodes of their own, two of them over two nodes. One run is preempted, one gets USR1 as ahead of a time
limit, a task of a two-node run is killed, a node is lost while its task hangs, and the controller is started again.
Every run ends with the rows of one that was left alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.files import read_manifest
from scaling.rundir.directory import RunDir
from scaling.rundir.owner import attempts
from scaling.study.spec import load_study
from scaling.trainer.loop import Trainer
from tests.gate import gated
from tests.scaling.small_runs import exact_rows
from tests.scaling.trainer.branch_runs import train

from .cluster import Cluster, cluster, needs_slurm

N_STEPS = 100
STUDY = """
name: campaign
corpus: {source: "synthetic:0:600000", tokenizer: bytes, validation_fraction: 0.1}
grid: {archs: [tnl, hgrn2], sizes: [14k, 25k]}
model: {context_length: 64}
training:
  n_tokens: 51_200
  batch_tokens: 512
  lr: 4e-3
  warmup_tokens: 4_000
  n_checkpoints: 3
  state_every_tokens: 25_600
  checkpoint_dtype: fp32
evaluation: {validation_tokens: 4_096}
fit: {smoothing_tokens: 4_000}
jobs:
  resources: {25k: {nodes: 2, tasks_per_node: 1, minutes: 10}, 14k: {minutes: 10}}
  cluster:
    nodes: 2
    cpus_per_node: 64
    gpu: cpu
    pack_minutes: 0
    signal_s: 30
    sbatch: [--exclusive]
    partition: debug
    environment: ENVIRONMENT
"""
SECONDS = 1200.0


class Campaign:
    """The submitted study: its runs, its jobs, and waiting."""

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm, self.file, self.out = slurm, folder / "campaign.yaml", folder / "it's; $(touch pwned) out"
        self.go = folder / "go"  # until it is there, every run waits at step 60, or for a signal
        environment = {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"} | gated(60, self.go)
        self.file.write_text(STUDY.replace("ENVIRONMENT", json.dumps(environment)))
        self.begun = time.monotonic()
        self.study = load_study(self.file, [], self.out)
        self.runs = {run.run_id: RunDir(self.study.run_directory(run)) for run in self.study.runs()}

    def scaling(self, command: str, *options: str) -> str:
        """A `scaling` command on this study."""
        words = [sys.executable, "-m", "scaling", command, str(self.file), "--out", str(self.out), *options]
        return self.slurm.run(*words, timeout=600)

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["run_id"]: row for row in json.loads(self.scaling("status", "--json"))["runs"]}

    def tasks(self, run: str) -> dict[int, dict[str, str]]:
        """{pid: environment} of the run's processes under srun."""
        processes = self.slurm.pids("jobs.task", str(self.runs[run].path))
        return {pid: env for pid, env in processes.items() if "SLURM_STEP_ID" in env}  # srun itself has none

    def until(self, done: Callable[[], object], what: str) -> None:
        while not done():
            if time.monotonic() > self.begun + SECONDS:
                raise TimeoutError(f"{what}: not within {SECONDS:.0f} s of the submission\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        files = [*self.out.rglob("logs/*.log"), *(run.log for run in self.runs.values())]
        output = [f"--- {file.name}\n{file.read_text()[-1500:]}" for file in files if file.exists()]
        return "\n".join([self.slurm.run("squeue", "-a", "-t", "all", "-r", check=False), *output])


def starts(run: RunDir) -> int:
    return len(attempts(run.path))


@needs_slurm
@pytest.mark.slow
def test_a_study_survives_everything_a_cluster_does(tmp_path: Path) -> None:
    with cluster(6) as slurm:
        campaign = Campaign(slurm, tmp_path)
        campaign.scaling("submit")
        disturb(campaign)
        campaign.until((campaign.study.directory / "report" / "index.html").exists, "the report")
        campaign.until(lambda: not slurm.run("squeue", "-h", "-t", "R,PD,CG"), "an empty queue")
        seconds = time.monotonic() - campaign.begun
        jobs = {job["name"]: job["job_state"] for job in slurm.jobs()}
        assert jobs["campaign-0001-finish"] == "COMPLETED", campaign.logs()
        rows = campaign.status()
    print(f"from submission to report: {seconds:.0f} s")
    assert {row["state"] for row in rows.values()} == {"done"}
    assert {row["evaluated"] for row in rows.values()} == {row["checkpoints"] for row in rows.values()} == {3}
    assert not [path for path in tmp_path.rglob("*") if "pwned" in path.name and path.parent != tmp_path]
    assert not list(campaign.study.directory.glob("runs/**/*.tmp"))
    check(campaign, tmp_path)


def disturb(campaign: Campaign) -> None:
    """Each run once, when it is 60 steps under way and has saved a state; then the controller."""
    slurm, lost = campaign.slurm, dict[str, Any]()

    def lose_node(tasks: dict[int, dict[str, str]]) -> None:
        """Everything there hangs, and slurmd is gone."""
        ((task, env),) = tasks.items()
        lost.update(task=task, node=env["SLURMD_NODENAME"], hung=slurm.hang(env["SLURM_JOB_ID"]))
        slurm.lose(lost["node"])

    def preempt(tasks: dict[int, dict[str, str]]) -> None:
        node = next(iter(tasks.values()))["SLURMD_NODENAME"]
        slurm.run("sbatch", "-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")

    def kill_task(tasks: dict[int, dict[str, str]]) -> None:
        os.kill(next(pid for pid, env in tasks.items() if env["SLURM_PROCID"] == "1"), signal.SIGKILL)

    def announce_the_limit(tasks: dict[int, dict[str, str]]) -> None:
        env = next(iter(tasks.values()))  # the last element's own job number is its whole array's
        element = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        slurm.run("scancel", "--batch", "--signal=USR1", element)

    disturbances = {"hgrn2-14k": lose_node, "tnl-14k": preempt, "hgrn2-25k": kill_task, "tnl-25k": announce_the_limit}
    disturbances = {f"{name}-c64-s0": action for name, action in disturbances.items()}
    waiting = dict(disturbances)

    def all_disturbed() -> bool:
        for name in list(waiting):
            if (campaign.runs[name].last_row() or {"step": 0})["step"] >= 60:
                waiting.pop(name)(campaign.tasks(name))
        return not waiting

    campaign.until(all_disturbed, "all runs disturbed")
    campaign.go.touch()
    slurm.restart_controller(away_s=2.0)
    assert len(campaign.status()) == 4  # while everything moves
    campaign.until(lambda: starts(campaign.runs["hgrn2-14k-c64-s0"]) == 2, "the lost node's run elsewhere")
    os.kill(lost["task"], signal.SIGCONT)  # the hung task wakes up beside its successor
    time.sleep(2.0)
    slurm.kill_hung(lost["hung"])
    slurm.start_node(lost["node"])
    for name in disturbances:
        campaign.until(lambda name=name: starts(campaign.runs[name]) >= 2, f"{name} starts again")


def check(campaign: Campaign, tmp_path: Path) -> None:
    """Every run has the rows and weights of one that was trained alone, with as many processes."""
    undisturbed = load_study(campaign.file, [], tmp_path / "undisturbed")
    alone = tmp_path / "undisturbed" / undisturbed.name
    alone.mkdir(parents=True)
    os.symlink(campaign.study.directory / "corpus", alone / "corpus")
    others = {run.run_id: RunDir(undisturbed.run_directory(run)) for run in undisturbed.runs()}
    for name, other in others.items():
        other.path.mkdir(parents=True)
        other.run_json.write_bytes(campaign.runs[name].run_json.read_bytes())
    train_alone([others[run.run_id] for run in undisturbed.runs() if run.size != "25k"])
    train_in_pairs([others[run.run_id] for run in undisturbed.runs() if run.size == "25k"])
    for run in undisturbed.runs():
        rundir, other = campaign.runs[run.run_id], others[run.run_id]
        assert [row["step"] for row in rundir.checked_rows().rows] == list(range(1, N_STEPS + 1)), run.run_id
        assert exact_rows(rundir) == exact_rows(other), run.run_id
        for first, second in zip(rundir.checkpoints(), other.checkpoints(), strict=True):
            files = [read_manifest(snapshot.path)["files"]["model.safetensors"] for snapshot in (first, second)]
            assert files[0] == files[1], f"{run.run_id} at step {first.step}"


def train_alone(rundirs: list[RunDir]) -> None:
    torch.set_flush_denormal(True)
    for rundir in rundirs:
        assert Trainer(rundir, torch.device("cpu"), time.perf_counter()).train() == 0


def train_in_pairs(rundirs: list[RunDir]) -> None:
    """By two processes for all of them: their start takes longer than a run."""
    code, shown = train(rundirs, processes=2)
    assert code == 0, shown
