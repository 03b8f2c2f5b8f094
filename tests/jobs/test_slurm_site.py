"""A site's own sbatch, squeue and the like, which print more than SLURM's, in front of a real scheduler."""

import json
import os
import shutil
from pathlib import Path

import pytest

from arch.errors import InputError
from data.files import read_json
from jobs import slurm as commands
from scaling.cli.main import main
from tests.commands import in_this_process

from .cluster import PATH, cluster, needs_slurm
from .studies import study_file

pytestmark = needs_slurm
# Before and behind SLURM's own words, in Latin-1, with what could be taken for a row of the queue.
TALKS = r"""#!/bin/bash
printf 'INFO: Gr\xfc\xdfe, job 77 of 100\n'
printf 'INFO: Gr\xfc\xdfe, 1 node down\n' >&2
{program} "$@"
code=$?
printf '\nquota|1|2|3|4|5|6|7|8|9|\n 1 | \nn1\n3 GB of 20\n'
exit $code
"""
SILENT = """#!/bin/bash
{program} "$@" >/dev/null && echo "queued, have a nice day"
"""
BLIND = """#!/bin/bash
exit 0
"""


@pytest.fixture(scope="module")
def slurm():
    with cluster(nodes=1, state="DOWN") as held:
        yield held


@pytest.fixture
def site(slurm, tmp_path, monkeypatch):
    """Puts a program's stand-in in front of it."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name, value in (slurm.environment | {"PATH": f"{folder}:{PATH}"}).items():
        monkeypatch.setenv(name, value)

    def put(text, *names):
        for name in names:
            (folder / name).write_text(text.replace("{program}", shutil.which(name, path=PATH)))
            (folder / name).chmod(0o755)

    yield put
    shutil.rmtree(folder)
    slurm.run("scancel", "-f", "-u", str(os.getuid()))


def scaling(*words, code=0):
    done = in_this_process(main, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def ids_of(tmp_path):
    return {name: job["id"] for name, job in read_json(tmp_path / "out/tiny/jobs/0001/submission.json")["jobs"].items()}


def test_lines_of_the_site_are_passed_over(slurm, site, tmp_path):
    """The id was 'INFO..\\n1234': a job that `cancel` did not know."""
    site(TALKS, "sbatch", "squeue", "sinfo", "scontrol", "scancel")
    study = study_file(tmp_path, ["6k"])
    ids = json.loads(scaling("submit", study, "--json"))["jobs"]
    assert list(ids) == ["corpus", "train-0", "eval-0", "finish"] and ids == ids_of(tmp_path)
    assert set(ids.values()) == {str(job["array_job_id"] or job["job_id"]) for job in slurm.jobs()}
    result = json.loads(scaling("status", study, "--json"))
    assert {run["state"] for run in result["runs"]} == {"queued"} and len(result["jobs"]) == 4
    assert commands._lost_nodes() == 0 and commands.max_array_size() == 1001 and commands.silent() is None
    assert scaling("cancel", study).startswith("cancelled: ")
    assert {job["job_state"] for job in slurm.jobs()} == {"CANCELLED"}


def test_a_job_without_an_id_is_not_lost(slurm, site, tmp_path):
    """It is looked up by its name. Where squeue is closed, or behind: one line, and `cancel` ends it later."""
    study = study_file(tmp_path, ["6k"])
    site(SILENT, "sbatch")
    ids = json.loads(scaling("submit", study_file(tmp_path, ["6k"], name="other"), "--json"))["jobs"]
    pending = {str(job["array_job_id"] or job["job_id"]) for job in slurm.jobs() if job["job_state"] == "PENDING"}
    assert pending == {*ids.values()}
    slurm.run("scancel", "-f", "-u", str(os.getuid()))
    site("#!/bin/bash\necho squeue is closed >&2\nexit 1\n", "squeue")
    with pytest.raises(InputError, match="squeue: squeue is closed"):
        commands.find("mine", tmp_path)
    site(BLIND, "squeue")
    output = scaling("submit", study, code=2)
    assert output.count("\n") == 1 and "took the job and printed no id: queued, have a nice day" in output
    assert "squeue shows no job tiny-0001-corpus yet: `scaling cancel` ends it" in output
    assert ids_of(tmp_path)["corpus"] is None
    (job,) = (job for job in slurm.jobs() if job["job_state"] == "PENDING")
    (Path(os.environ["PATH"].split(":")[0]) / "squeue").unlink()
    assert scaling("cancel", study).startswith(f"cancelled: {job['job_id']}\n")
    assert not [job for job in slurm.jobs() if job["job_state"] == "PENDING"]
