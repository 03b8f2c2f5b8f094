"""`scaling submit` in a job of a real SLURM (salloc, a notebook on a node): its jobs inherit nothing of that one."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from .cluster import Cluster
from .studies import CPUS, study_file

# What a job's processes have of its options, or a user of his own: sbatch takes its options from them, the jobs that it
# submits inherit them, and so does every srun in these.
INHERITED = {
    "SLURM_MEM_PER_CPU": "500",
    "SLURM_MEM_PER_GPU": "500",
    "SLURM_NTASKS": "7",
    "SLURM_NTASKS_PER_NODE": "7",
    "SLURM_CPU_BIND": "map_cpu:900",
    "SLURM_DISTRIBUTION": "plane",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_GRES": "gpu:9",
    "SLURM_HINT": "memory_bound",
    "SLURM_RESERVATION": "nowhere",
    "SLURM_RESTART_COUNT": "5",
    "SLURM_THREADS_PER_CORE": "3",
    "SLURM_TIMELIMIT": "never",
    "SRUN_EXPORT_ENV": "NONE",
    "SRUN_CPUS_PER_TASK": "63",
    "SBATCH_MEM_PER_CPU": "500",
    "SBATCH_PARTITION": "nowhere",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_ARRAY_INX": "0-99",
    "SQUEUE_USERS": "nobody",
    "SQUEUE_STATES": "CANCELLED",
    "SCANCEL_STATE": "PENDING",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "PMI_RANK": "3",
}


def in_a_job(slurm: Cluster, folder: Path, *words: str) -> str:
    """What a command of `scaling` says in a job of two cores at 500 MB each, with all of INHERITED."""
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in INHERITED.items())
    command = shlex.join([sys.executable, "-m", "scaling", *words])
    (folder / "inside.sbatch").write_text(f"#!/bin/bash\n{exports}\ncd {shlex.quote(str(folder))}\n{command}\n")
    options = ["--parsable", "--mem-per-cpu=500", "--cpus-per-task=2", f"--output={folder}/inside.log", "--wait"]
    slurm.run("sbatch", *options, str(folder / "inside.sbatch"), timeout=600)
    return (folder / "inside.log").read_text()


def test_jobs_submitted_in_a_job_train(slurm: Cluster, tmp_path: Path) -> None:
    """Every srun died of SLURM_MEM_PER_CPU beside the job's own memory: 48 starts, and nothing was trained."""
    profile = CPUS | {"environment": {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}}
    study = study_file(tmp_path, ["6k"], grid={"archs": ["llama"], "sizes": ["6k"]}, jobs={"cluster": profile})
    output = in_a_job(slurm, tmp_path, "submit", str(study))
    assert "warning: the environment's SBATCH_ARRAY_INX, SBATCH_EXPORT, SBATCH_MEM_PER_CPU, SBATCH_PARTITION" in output
    assert "scripts and logs:" in output, output
    jobs = tmp_path / "out" / "tiny" / "jobs" / "0001"
    record = json.loads((jobs / "submission.json").read_text())
    ids = {name: int(job["id"]) for name, job in record["jobs"].items()}
    assert set(ids) == {"corpus", "train-0", "eval-0", "finish"}
    finish = ids["finish"]
    slurm.wait_for_jobs(
        lambda message: _state(message, finish) not in ("PENDING", "RUNNING", "COMPLETING"), 600, "the end"
    )
    logs = "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(tmp_path.rglob("*.log")))
    message = [job for job in slurm.jobs() if job["array_job_id"] in ids.values() or job["job_id"] in ids.values()]
    assert {job["job_state"] for job in message} == {"COMPLETED"}, logs
    assert {job["restart_cnt"] for job in message} == {0} and len(message) == 4, logs
    (run,) = json.loads(in_a_job(slurm, tmp_path, "status", str(study), "--json"))["runs"]
    assert (run["state"], run["restarts"], run["evaluated"]) == ("done", 0, run["to_evaluate"])
    assert len(list((tmp_path / "out/tiny/runs" / run["run_id"] / "attempts").iterdir())) == 1


def _state(message: list[dict], job_id: int) -> str:
    return str(next(job["job_state"] for job in message if job["job_id"] == job_id))
