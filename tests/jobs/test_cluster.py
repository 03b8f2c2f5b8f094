"""Two clusters of one machine: what a test does to one must not reach the other."""

from __future__ import annotations

from .cluster import Cluster, cluster, needs_slurm


def running_job(slurm: Cluster) -> list[int]:
    """The processes of job 1, once its step runs: script, srun, task and the slurmstepds of both."""
    slurm.run("sbatch", "-o", "/dev/null", "--wrap", "srun sleep 3600")
    slurm.wait_for_jobs(lambda _: any("SLURM_STEP_ID" in env for env in slurm.pids("3600").values()), 600, "the step")
    return slurm.processes_of("1")


@needs_slurm
def test_jobs_of_one_number_in_two_clusters() -> None:
    with cluster(1) as one, cluster(1) as other:
        processes = [running_job(one), running_job(other)]
        assert one.processes_of("1") == processes[0] and not set(processes[0]) & set(processes[1])
        assert min(map(len, processes)) >= 5, "a script, an srun, a task, two slurmstepds"
