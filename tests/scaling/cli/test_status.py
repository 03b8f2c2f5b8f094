"""`scaling status`: how long runs have left where they share GPUs, and a finished study of a thousand runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from data.files import new_directory, write_json
from jobs import local
from scaling.cli.status import _shared
from scaling.rundir.directory import RunDir
from scaling.rundir.metrics import record_of
from scaling.rundir.owner import this_host
from scaling.study.spec import load_study


@pytest.mark.parametrize(("gpus", "seconds"), [([], 10.0), (["0"], 40.0), (["0", "1"], 20.0), (list("01234567"), 10.0)])
def test_four_runs_that_share_the_gpus_here_take_longer_than_a_single(
    gpus: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    row = {"state": "running", "node": this_host(), "seconds_left": 10.0}
    others = [row | {"state": "done", "seconds_left": None}, row | {"node": "elsewhere"}]
    rows = _shared([dict(row) for _ in range(3)] + [row | {"seconds_left": None}, *others])
    assert [run["seconds_left"] for run in rows] == [seconds] * 3 + [None, None, 10.0]


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
    n = len(runs[0].checkpoint_steps)
    assert len(rows) == 1000
    assert {(row["state"], row["checkpoints"], row["evaluated"]) for row in rows} == {("done", n, n)}
