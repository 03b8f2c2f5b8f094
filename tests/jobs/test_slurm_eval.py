"""Evaluation jobs on a real SLURM: ended ahead of a time limit or by a preemption, they are queued again and go on."""

from pathlib import Path
from typing import NamedTuple

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


class Job(NamedTuple):
    number: str
    folder: Path
    line: str
    at_once: int

    def called(self):
        """The calls, without the name of the start that workers side by side share."""
        lines = (self.folder / "called").read_text().splitlines()
        assert all((" --attempt " in line) is (self.at_once > 1) for line in lines)
        return [line.partition(" --attempt ")[0] for line in lines]

    def begun(self):
        return (self.folder / "began").exists() and len(self.called()) == self.at_once


def submit(slurm, folder, max_restarts=3, setup=(), at_once=1):
    folder.mkdir()
    submission = folder / "out" / "jobs" / "0001"
    program = folder / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    paths = Paths(submission, submission / "code", submission / "study.yaml", folder / "out", folder)
    context = ScriptContext(
        "s", Cluster(**CPUS | {"max_restarts": max_restarts, "setup": list(setup)}), paths, str(program)
    )
    job = ArrayJob("eval-0", "eval", Resources(1, 1, 0, 1, None, 5, at_once=at_once), (("a b",),))
    line = f"-m scaling eval worker {paths.study_file} --out {folder} --checkpoint a b"
    return Job(slurm.submit(context, job), folder, line, at_once)


def ends(slurm, job, *states):
    """Waits until the array is in one of these states, its only element and no other."""

    def ended(jobs):
        reached = [element["job_state"] for element in jobs if str(element["array_job_id"]) == job.number]
        return len(reached) == 1 and reached[0] in states

    slurm.wait_for_jobs(ended, 600, states[0])


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A node and its jobs, all disturbed: what is queued again waits for seconds, here for all at the same time."""
    home = tmp_path_factory.mktemp("jobs")
    with cluster(nodes=1) as slurm:
        limit = {f"limit {most}": submit(slurm, home / f"limit{most}", most) for most in (3, 0)}
        taken = {f"preempted {n}": submit(slurm, home / f"preempted{n}", at_once=n) for n in (1, 2)}
        cancelled = {
            f"{name} {n}": submit(slurm, home / f"{name}{n}", setup=setup, at_once=n)
            for name, setup in (("signalled", ()), ("deaf", DEAF))
            for n in (1, 2)
        }
        jobs = limit | taken | cancelled
        slurm.wait_for_jobs(lambda _: all(job.begun() for job in jobs.values()), 600, "the first start of all")
        slurm.run("scancel", *(job.number for job in cancelled.values()))
        for job in limit.values():
            slurm.run("scancel", "--batch", "--signal=USR1", f"{job.number}_0")
        ends(slurm, limit["limit 0"], "FAILED")
        ends(slurm, limit["limit 3"], "PENDING", "COMPLETED")
        for job in cancelled.values():
            ends(slurm, job, "CANCELLED")
        slurm.run("sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        yield slurm, jobs


@pytest.mark.parametrize(("max_restarts", "calls", "state"), [(3, 2, "COMPLETED"), (0, 1, "FAILED")])
def test_an_evaluation_is_queued_again_before_its_time_limit(held, max_restarts, calls, state):
    slurm, job = held[0], held[1][f"limit {max_restarts}"]
    ends(slurm, job, state)
    assert job.called() == [job.line] * calls


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_preempted_evaluation_is_queued_again(held, at_once):
    """Its step ends within the grace time: SLURM alone would take the job for one that failed."""
    slurm, job = held[0], held[1][f"preempted {at_once}"]
    ends(slurm, job, "COMPLETED")
    assert job.called() == [job.line] * 2 * at_once


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("setup", ["signalled", "deaf"])
def test_a_cancelled_evaluation_stays_away(held, setup, at_once):
    slurm, job = held[0], held[1][f"{setup} {at_once}"]
    ends(slurm, job, "CANCELLED")
    assert job.called() == [job.line] * at_once
