"""Evaluation jobs on a real SLURM: ended ahead of a time limit or by a preemption, they are queued again and go on."""

import pytest

from jobs.model import ArrayJob, Resources
from jobs.render import Paths, ScriptContext
from scaling.study.jobs_schema import Cluster

from .cluster import cluster, needs_slurm
from .studies import CPUS

pytestmark = needs_slurm

PROGRAM = """#!/bin/bash
# stands for python: the first time it is in the middle of its work, the second time it ends it
echo "$@" >> called
[ -e began ] && exit 0
touch began
sleep 3600
"""


# A shell that TERM never reaches: the signal to the script is not always ahead of the end of its step.
DEAF = ["builtin trap '' TERM", 'trap() { [ "${*: -1}" = TERM ] || builtin trap "$@"; }']


@pytest.fixture(scope="module")
def slurm():
    """Of one node, which the jobs of these tests have one after the other."""
    with cluster(nodes=1) as held:
        yield held


def submit(slurm, tmp_path, max_restarts, setup=(), at_once=1):
    submission = tmp_path / "out" / "jobs" / "0001"
    program = tmp_path / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    paths = Paths(submission, submission / "code", submission / "study.yaml", tmp_path / "out", tmp_path)
    context = ScriptContext(
        "s", Cluster(**CPUS | {"max_restarts": max_restarts, "setup": list(setup)}), paths, str(program)
    )
    job = ArrayJob("eval-0", "eval", Resources(1, 1, 0, 1, None, 5, at_once=at_once), (("a b",),))
    number = slurm.submit(context, job)
    slurm.wait_for_jobs(lambda jobs: (tmp_path / "began").exists(), 600, "the first start")
    return number, f"-m scaling eval worker {paths.study_file} --out {tmp_path} --checkpoint a b"


def ends(slurm, number, state):
    """Waits until the array is in this state, its only element and no other."""

    def ended(jobs):
        return [job["job_state"] for job in jobs if str(job["array_job_id"]) == number] == [state]

    slurm.wait_for_jobs(ended, 600, state)


@pytest.mark.parametrize(("max_restarts", "calls", "state"), [(3, 2, "COMPLETED"), (0, 1, "FAILED")])
def test_an_evaluation_is_queued_again_before_its_time_limit(slurm, tmp_path, max_restarts, calls, state):
    number, line = submit(slurm, tmp_path, max_restarts)
    slurm.run("scancel", "--batch", "--signal=USR1", f"{number}_0")
    ends(slurm, number, state)
    assert (tmp_path / "called").read_text().splitlines() == [line] * calls


def called(tmp_path, at_once):
    """The calls, without the name of the start that workers side by side share."""
    lines = (tmp_path / "called").read_text().splitlines()
    assert all((" --attempt " in line) is (at_once > 1) for line in lines)
    return [line.partition(" --attempt ")[0] for line in lines]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_preempted_evaluation_is_queued_again(slurm, tmp_path, at_once):
    """Its step ends within the grace time: SLURM alone would take the job for one that failed."""
    number, line = submit(slurm, tmp_path, 3, (), at_once)
    slurm.run("sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    ends(slurm, number, "COMPLETED")
    assert called(tmp_path, at_once) == [line] * 2 * at_once


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("setup", [(), DEAF], ids=["signalled", "not signalled yet"])
def test_a_cancelled_evaluation_stays_away(slurm, tmp_path, setup, at_once):
    number, line = submit(slurm, tmp_path, 3, setup, at_once)
    slurm.wait_for_jobs(lambda jobs: len(called(tmp_path, at_once)) == at_once, 600, "both")
    slurm.run("scancel", number)
    ends(slurm, number, "CANCELLED")
    assert called(tmp_path, at_once) == [line] * at_once
