"""`scaling clean-text` as job arrays on a real scheduler: the same result as on this machine."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from scaling.cli.main import main
from tests.commands import in_this_process
from tests.data.clean.sample import sample

from .cluster import Cluster

pytest.importorskip("datatrove", reason="needs the extra corpus")
TASKS = 3


def command(slurm: Cluster, folder: Path, to: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["clean-text", *sample(folder, 4), "--to", str(folder / to), "--tasks", str(TASKS), "--json", *more]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, slurm.environment[name])
        return in_this_process(main, *words)


def rows(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.gz")) for line in gzip.open(path, "rt", encoding="utf-8")]


@pytest.mark.slow
def test_arrays_on_the_cluster_do_what_this_machine_does(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "nodes: 4\ncpus_per_node: 64\npartition: debug\nmax_hours: 0.2\nsbatch: [--nice=1]\n"
    )
    profile = ("--cluster", str(tmp_path / "cluster.yaml"))
    submitted = command(slurm, tmp_path, "there", *profile)
    assert submitted.returncode == 0, submitted.stderr
    jobs = json.loads(submitted.stdout)
    assert list(jobs) == ["rules", "signatures", "buckets", "clusters", "near", "finish"]
    again = command(slurm, tmp_path, "there", *profile)
    assert again.returncode == 2 and "are queued or running" in again.stderr and again.stderr.count("\n") == 1
    here = json.loads(command(slurm, tmp_path, "here").stdout)
    ids = {int(job) for job in jobs.values()}

    def ended(message: list[dict]) -> bool:
        ours = [job for job in message if job["array_job_id"] in ids or job["job_id"] in ids]
        return bool(ours) and all(job["job_state"] not in ("PENDING", "RUNNING", "COMPLETING") for job in ours)

    slurm.wait_for_jobs(ended, 300, "the stages")
    states = [job["job_state"] for job in slurm.jobs() if job["array_job_id"] in ids]
    assert set(states) == {"COMPLETED"} and len(states) == 3 * TASKS + 14 + 2
    done = command(slurm, tmp_path, "there", *profile)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["steps"] == here["steps"] and there["counts"] == here["counts"] and there["counts"]["kept"] == 30
    assert rows(tmp_path / "there" / "text") == rows(tmp_path / "here" / "text")


def test_a_profile_without_a_partition_is_refused(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: 4\ncpus_per_node: 64\n")
    refused = command(slurm, tmp_path, "there", "--cluster", str(tmp_path / "cluster.yaml"))
    assert refused.returncode == 2 and "needs a partition" in refused.stderr and not (tmp_path / "there").exists()


def test_what_sbatch_says_else_is_one_line(slurm: Cluster, tmp_path: Path) -> None:
    """A refusal, an id that is not printed, and a record of jobs that is damaged."""
    (tmp_path / "cluster.yaml").write_text("nodes: 4\ncpus_per_node: 64\npartition: debug\n")
    (tmp_path / "bin").mkdir()
    shown = ("there", "--cluster", str(tmp_path / "cluster.yaml"))
    path = slurm.environment["PATH"]
    slurm.environment["PATH"] = f"{tmp_path}/bin:{path}"
    try:
        for line, why in (("exit 1", "sbatch refused the stage rules"), ("echo 17 queued", "printed no job id ('17 q")):
            (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/bash\n{line}\n")
            (tmp_path / "bin" / "sbatch").chmod(0o755)
            refused = command(slurm, tmp_path, *shown)
            assert refused.returncode == 2 and why in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
            assert not (tmp_path / "there" / "jobs.json").exists()
        for content in ("", "[]", '{"rules": ["7"]}', '{"rules": "INFO\\n7"}'):
            (tmp_path / "there" / "jobs.json").write_text(content)
            refused = command(slurm, tmp_path, *shown)
            assert refused.returncode == 2 and "jobs.json: cannot be read" in refused.stderr, refused.stderr
            assert refused.stderr.count("\n") == 1
    finally:
        slurm.environment["PATH"] = path


def test_the_id_is_read_among_other_lines() -> None:
    from data.clean.datatrove_stages import _job_id

    assert _job_id("INFO: 3 nodes\nSubmitted batch job 12\nquota: 3 of 20\n") == "12"
