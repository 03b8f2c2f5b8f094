"""Branches on a real SLURM: element by element after their trunks, evaluated, and the bits of those trained here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.study.spec import StudySpec, load_study

from ..scaling.small_runs import EXACT
from .cluster import Cluster, needs_slurm
from .studies import study_file

pytestmark = [needs_slurm, pytest.mark.slow]


def scaling(slurm: Cluster, *words: object) -> None:
    command = [sys.executable, "-m", "scaling", *map(str, words)]
    done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rows(study: StudySpec) -> dict[str, list[tuple[float, ...]]]:
    rows_of = {}
    for run in study.runs():
        lines = (study.run_directory(run) / "metrics.jsonl").read_text().splitlines()
        rows_of[run.run_id] = [tuple(row[key] for key in EXACT) for row in map(json.loads, lines)]
    return rows_of


def test_a_study_of_branches(slurm: Cluster, tmp_path: Path) -> None:
    training = {"schedule": "wsd", "branches": [5_120, 10_240], "batch_tokens": 512, "lr": 3e-3, "warmup_tokens": 1024}
    more = {"fit": {"smoothing_tokens": 1000}, "evaluation": {"validation_tokens": 1024}}
    file = study_file(tmp_path, ["6k", "14k"], training=training, **more)
    on_cluster, here = (load_study(file, out=tmp_path / out) for out in ("cluster", "here"))
    scaling(slurm, "train", file, "--out", tmp_path / "here")
    scaling(slurm, "submit", file, "--out", tmp_path / "cluster")
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    slurm.wait_for_jobs(lambda jobs: all(job["job_state"] in ended for job in jobs), 500, "the end of the study")
    assert {job["job_state"] for job in slurm.jobs()} == {"COMPLETED"}
    assert rows(on_cluster) == rows(here) and len(rows(here)) == 12
    for run in on_cluster.runs():
        assert (on_cluster.run_directory(run) / f"evals/{run.n_steps:08d}/validation.json").exists()
        states = sorted(path.name for path in (on_cluster.run_directory(run) / "state").iterdir())
        assert len(states) <= run.training.keep_states, "no branch needs more"
