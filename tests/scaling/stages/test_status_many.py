"""`scaling status` on a finished study of a thousand runs."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from data.files import new_directory, write_json
from scaling.rundir.directory import RunDir
from scaling.rundir.metrics import record_of
from scaling.study.spec import load_study

STUDY = """
name: many
corpus: {source: "synthetic:0:60000"}
grid: {archs: [llama, tnl], sizes: [6k, 14k], seeds: SEEDS}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256, lr: 3e-3, n_checkpoints: 6}
"""


def finish(rundir, run):
    """What a finished run leaves, but for weights."""
    for step in run.checkpoint_steps:
        rundir.evaluation(step).parent.mkdir(parents=True)
        rundir.evaluation(step).write_text("{}")
        with new_directory(rundir.checkpoint(step), {"step": step, "spec_hash": run.spec_hash}) as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
    row = {"step": run.n_steps, "n_tokens": run.n_tokens, "loss": 2.0, "tokens_per_s": 1e4}
    rundir.metrics.write_text("".join(json.dumps(row | {"step": step}) + "\n" for step in range(1, run.n_steps + 1)))
    rundir.write_status("done", run.n_steps, run.n_tokens, None, None)


@pytest.mark.slow  # to write and remove that many files
def test_a_thousand_finished_runs_are_shown(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(STUDY.replace("SEEDS", str(list(range(250)))))
    spec = load_study(path, out=tmp_path / "out")
    runs = spec.runs()
    finish(RunDir(spec.run_directory(runs[0])), runs[0])
    for run in runs[1:]:  # the same files: writing them safely a thousand times would take minutes
        shutil.copytree(spec.run_directory(runs[0]), spec.run_directory(run), copy_function=os.link)
        of_run = RunDir(spec.run_directory(run))  # but the status, which names its run
        of_run.status_json.unlink()
        record = {"state": "done", "step": run.n_steps, "n_tokens": run.n_tokens, "run_id": run.run_id}
        write_json(of_run.status_json, record | {"metrics": record_of(of_run.metrics)})
    command = [sys.executable, "-m", "scaling", "status", str(path), "--out", str(tmp_path / "out"), "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(shown.stdout)["runs"]
    assert len(rows) == 1000
    assert {(row["state"], row["checkpoints"], row["evaluated"]) for row in rows} == {
        ("done", n, n) for n in {len(run.checkpoint_steps) for run in spec.runs()}
    }
