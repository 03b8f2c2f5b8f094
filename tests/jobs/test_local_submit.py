"""The local backend: the same plan and record as on a cluster, its jobs as processes of this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data.files import read_json
from jobs.local_submit import this_machine
from jobs.plan import Need, make_plan
from jobs.resources import ResourceEstimator

from .studies import study, study_file


def scaling(*arguments, code=0):
    command = [sys.executable, "-m", "scaling", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_this_machine_gives_every_run_its_processes(tmp_path):
    spec, profile = this_machine(study(tmp_path, ["6k", "98k"], jobs={"processes": 2}))
    plan = make_plan(
        spec, [Need(run, True) for run in spec.runs()], ResourceEstimator(profile), corpus=True, finish=True
    )
    assert {job.resources.world_size for job in plan.jobs if job.kind == "train"} == {2}
    assert profile.nodes == 1


@pytest.mark.slow
def test_a_study_is_submitted_here_and_nothing_is_done_twice(tmp_path):
    file = study_file(tmp_path, ["6k", "14k"], fit={"smoothing_tokens": 500}, jobs={"parallel": 2})
    result = json.loads(scaling("submit", file, "--local", "--json").stdout)
    assert result["failed"] == {} and result["jobs"] == {}
    submission = Path(result["submission"])
    record = read_json(submission / "submission.json")
    assert record["backend"] == "local" and {job["state"] for job in record["jobs"].values()} == {"submitted"}
    assert (tmp_path / "out" / "tiny" / "report" / "index.html").is_file()
    rows = json.loads(scaling("status", file, "--json").stdout)["runs"]
    assert [(row["state"], row["evaluated"]) for row in rows] == [("done", row["checkpoints"]) for row in rows]
    first = rows[0]["run_id"]
    code = read_json(tmp_path / "out" / "tiny" / "runs" / first / "run.json")["git_commit"]
    assert code == ((submission / "code" / "COMMIT").read_text() or None), (
        "the copy of the code says what it is a copy of"
    )

    again = json.loads(scaling("submit", file, "--local", "--json").stdout)
    assert again["submission"] is None and again["skipped"] == {"done": 4}

    lost = next((tmp_path / "out" / "tiny" / "runs" / first / "evals").rglob("validation.json"))
    before = read_json(lost)
    lost.unlink()
    third = json.loads(scaling("submit", file, "--local", "--json").stdout)
    kinds = [job["kind"] for job in third["plan"]["jobs"]]
    assert kinds == ["eval", "finish"] and third["plan"]["jobs"][0]["elements"] == [
        [f"{first}/{int(lost.parent.name)}"]
    ]
    after = read_json(lost)
    assert [after[name] for name in ("key", "values")] == [before[name] for name in ("key", "values")]


@pytest.mark.slow
def test_runs_that_fail_are_reported_and_tried_again_on_request(tmp_path):
    """A learning rate that no run survives: their loss is no number."""
    file = study_file(tmp_path, ["6k"], training={"n_tokens": 5120, "batch_tokens": 512, "lr": 1e30, "grad_clip": 0})
    done = scaling("submit", file, "--local", "--only", "arch=llama", code=1)
    assert "failed: llama-6k-c64-s0: " in done.stderr
    again = json.loads(scaling("submit", file, "--local", "--only", "arch=llama", "--json").stdout)
    assert again["skipped"] == {"failed before (--retry-failed submits them again)": 1} and again["submission"] is None
    retried = scaling("submit", file, "--local", "--only", "arch=llama", "--retry-failed", code=1)
    assert "training: 1 task" in retried.stdout
