"""A study with a plugin on a real SLURM: its jobs run the code that was submitted, whatever becomes of the files."""

import os
from pathlib import Path

import pytest

from data.files import read_json
from scaling.rundir.directory import RunDir

from ..registries import as_registered
from ..scaling.eighth import module
from .cluster import Cluster, needs_slurm
from .studies import CPUS, study_file

pytestmark = needs_slurm


def test_a_plugin_travels_with_the_submission(slurm: Cluster, tmp_path: Path) -> None:
    """To jobs that the site hands no environment on to."""
    (tmp_path / "average.py").write_text("import average_mixer\n")
    (tmp_path / "average_mixer.py").write_text(module())
    grid = {"archs": ["average"], "sizes": ["6k"], "seeds": [0]}
    handed_on = {"OMP_NUM_THREADS": "1", "BROWSER_PATH": os.environ["BROWSER_PATH"]}
    jobs = {"cluster": CPUS | {"sbatch": ["--export=NONE"], "environment": handed_on}}
    more = {
        "jobs": jobs,
        "plugins": ["average"],
        "fit": {"smoothing_tokens": 1000},
        "evaluation": {"validation_tokens": 1024},
    }
    file = study_file(tmp_path, ["6k"], grid=grid, name="average", **more)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with as_registered(), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        done = slurm.scaling("submit", file, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: memory of average is not known" in done.stderr
    for name in ("average.py", "average_mixer.py"):
        (tmp_path / name).write_text("raise RuntimeError('not the code that was submitted')")
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    slurm.wait_for_jobs(lambda jobs: all(job["job_state"] in ended for job in jobs), 300, "the end of the study")
    folder = tmp_path / "out" / "average"
    logs = "\n".join(log.read_text() for log in sorted(folder.glob("jobs/0001/logs/*")))
    assert {job["job_state"] for job in slurm.jobs()} == {"COMPLETED"}, logs
    (run,) = (RunDir(path) for path in (folder / "runs").iterdir())
    code = read_json(folder / "jobs" / "0001" / "submission.json")["code"]
    assert run.status()["state"] == "done" and code.keys() == {"average", "average_mixer"}
    assert {name: run.record()["versions"][name] for name in code} == code
