"""What SLURM's own commands answer, as jobs/slurm.py understands them."""

import pytest

from arch.errors import InputError
from jobs import slurm
from jobs.slurm import Element

from .cluster import cluster, needs_slurm

SCRIPT = "#!/bin/bash\n#SBATCH --output=/dev/null --time=60\nsleep 3600\n"
SACCT = """#!/bin/bash
# stands for sacct, which needs a database: two elements that ended, and those that never began
[ "$1 $2 $3 $4" = "-X -n -P -j" ] || exit 9
printf '%s\\n' '7_0|TIMEOUT|n1|00:10:00|a' '7_1|CANCELLED by 0||00:00:00|a' '8|COMPLETED|n[1-2]|00:00:09|b'
printf '%s\\n' '7_[2-9]|PENDING||00:00:00|a'
"""


def test_accounting_tells_of_jobs_that_left_the_queue(tmp_path, monkeypatch):
    (tmp_path / "sacct").write_text(SACCT)
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert slurm.accounted(["7", "8"]) == [
        Element("7", 0, "TIMEOUT", "", "n1", "00:10:00", "", 0, "a"),
        Element("7", 1, "CANCELLED", "", "", "00:00:00", "", 0, "a"),
        Element("8", None, "COMPLETED", "", "n[1-2]", "00:00:09", "", 0, "b"),
    ]
    (tmp_path / "sacct").write_text("#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    assert slurm.accounted(["7"]) == []


@needs_slurm
def test_a_jobs_life_in_the_queue(tmp_path, monkeypatch):
    with cluster(nodes=1) as held:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, held.environment[name])
        assert slurm.max_array_size() == 1001
        (tmp_path / "job.sbatch").write_text(SCRIPT + "#\n")
        (tmp_path / "array.sbatch").write_text(SCRIPT.replace("--time=60", "--time=60 --array=0-2%1 --job-name=mine"))
        array = slurm.submit(tmp_path / "array.sbatch", "mine")
        single = slurm.submit(tmp_path / "job.sbatch", "job.sbatch", [("afterok", [array]), ("afterany", [array])])
        assert slurm.find("mine", tmp_path) == array and slurm.find("nobody", tmp_path) is None
        assert slurm.find("mine", tmp_path / "another") is None
        held.wait_for_jobs(lambda jobs: any("RUNNING" in element["job_state"] for element in jobs), 600)
        reasons = {"JobArrayTaskLimit", "Dependency"}  # shown once the scheduler has come to them
        held.wait_for_jobs(lambda jobs: reasons <= {element["state_reason"] for element in jobs}, 600)
        queued = {(element.job_id, element.index): element for element in slurm.queue([array, single])}
        assert set(queued) == {(array, 0), (array, 1), (array, 2), (single, None)}
        running = queued[array, 0]
        assert (running.state, running.nodes, running.name, running.active) == ("RUNNING", "n1", "mine", True)
        assert queued[array, 1].reason == "JobArrayTaskLimit" and queued[single, None].reason == "Dependency"
        slurm.cancel([f"{array}_0", single])
        held.wait_for_jobs(lambda jobs: sum(element["job_state"] == "CANCELLED" for element in jobs) == 2, 600)
        ended = {(element.job_id, element.index): element for element in slurm.queue([array, single])}
        assert not ended[array, 0].active and not ended[single, None].active and ended[array, 2].active
        slurm.cancel([array, single, "99999"])  # what has ended, or is unknown, is no error
        assert slurm.queue(["99999"]) == [], "a job that the controller has forgotten"
        assert slurm.queue([]) == []
        (tmp_path / "bad.sbatch").write_text(SCRIPT.replace("--time=60", "--time=60 --partition=nowhere"))
        with pytest.raises(InputError, match=r"bad\.sbatch: sbatch: invalid partition specified: nowhere"):
            slurm.submit(tmp_path / "bad.sbatch", "bad")
