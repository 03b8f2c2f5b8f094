"""A study with shapes, a ladder and two axes, one of them a nuisance, from plan to report."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from analysis.fits.prepare import HIGHER
from data.files import read_json
from scaling.study.spec import load_study

pytestmark = pytest.mark.slow

STUDY = """
name: tiny
corpus: {source: "synthetic:0:200000"}
grid:
  archs: [llama]
  sizes:
    - s: {n_layers: 1, d_model: 16, n_heads: 2, d_ffn: 32}
    - m: {n_layers: 1, d_model: 24, n_heads: 2, d_ffn: 48}
    - l: {n_layers: 2, d_model: 32, n_heads: 2, d_ffn: 64}
    - {from: 19.1k, to: 41k, count: 2}
  axes: {training.lr: [1e-3, 1e-2], model.context_length: [32, 64]}
  nuisance: {training.lr: best}
training: {n_tokens: 7680, batch_tokens: 256, warmup_tokens: 512, n_checkpoints: 2, checkpoint_dtype: fp32}
evaluation: {validation_tokens: 2048}
fit: {smoothing_tokens: 512, grid_points: 10}
"""
TRAIN = """
import sys, time
from scaling.trainer import process
codes = [process.finish(process.steps([run], started=time.perf_counter())) for run in sys.argv[1:]]
process.leave_group()
sys.exit(max(codes))
"""  # one process for all, as on GPUs: starting it takes longer than such a run


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("axes")
    (folder / "tiny.yaml").write_text(STUDY)
    home, study = folder / "out" / "tiny", load_study(folder / "tiny.yaml", None, folder / "out")
    assert scaling("train", folder, "--prepare").returncode == 0
    paths = [str(study.run_directory(run)) for run in study.runs()]
    subprocess.run([sys.executable, "-c", TRAIN, *paths], check=True, capture_output=True, timeout=600)
    result = scaling("run", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, home, study, result.stdout


def scaling(command, folder, *arguments):
    line = [sys.executable, "-m", "scaling", *command.split(), str(folder / "tiny.yaml"), "--out", str(folder / "out")]
    return subprocess.run([*line, *arguments], capture_output=True, text=True, timeout=600, check=False)


def test_from_plan_to_report(studied):
    _, home, study, output = studied
    runs = study.runs()
    assert len(runs) == 20 and "train: 0 of 20 runs to do, 20 done" in output
    table = pd.read_parquet(home / "results" / "runs.parquet").set_index("run_id")
    for run in runs:
        row = table.loc[run.run_id]
        assert row["state"] == "done" and row["point"] == f"lr={run.training.lr}, context_length={run.context_length}"
        assert (row["lr"], row["context_length"]) == (run.training.lr, run.context_length)
    fits = read_json(home / "results" / "fits.json")
    groups = ["llama, context_length=32", "llama, context_length=64"]
    assert [(fit["name"], fit["n_runs"]) for fit in fits["groups"]] == [(group, 5) for group in groups]
    assert [verdict["at"] for verdict in fits["verdicts"]] == ["context_length=32", "context_length=64"]
    # the rate of each size and context is the one whose runs ended lower, and every other run is listed as left out
    curves = pd.read_parquet(home / "results" / "curves.parquet")
    last = curves[curves["n_tokens"] > 7680 - 512].groupby("run_id")["loss"].mean()
    for group in fits["groups"]:
        mine = [run for run in runs if group["name"].endswith(f"={run.context_length}")]
        best = {
            min((run for run in mine if run.size == size), key=lambda run: last[run.run_id]).run_id
            for size in {run.size for run in mine}
        }
        assert {run["run_id"] for run in group["left_out"]} == {run.run_id for run in mine} - best
    page = (home / "report" / "index.html").read_text()
    for text in (f"LLaMA, {group.partition(', ')[2]}" for group in groups):
        assert text in page, text


def test_other_commands_know_the_axes(studied):
    folder, home, _, _ = studied
    rows = json.loads(scaling("status", folder, "--only", "lr=1e-3,context_length=64", "--json").stdout)["runs"]
    sizes = ("s", "m", "l", "n19.1k", "n41k")
    assert [row["run_id"] for row in rows] == [f"llama-{size}-c64-s0-lr0.001" for size in sizes]
    fit = scaling("fit runs", folder, "--approach", "envelope")
    assert fit.returncode == 0 and HIGHER in fit.stdout, fit.stderr
    asked = ["budget", "--compute", "1e9", "--unit", "flop", "--law", str(home), "--arch", "llama", "--json"]
    line = [sys.executable, "-m", "scaling.cli.flops", *asked]
    budget = subprocess.run(line, capture_output=True, text=True, check=False)
    assert budget.returncode == 0, budget.stderr
    rows = json.loads(budget.stdout)
    assert [row["arch"] for row in (rows["rows"] if isinstance(rows, dict) else rows)] == [
        f"llama, context_length={c}" for c in (32, 64)
    ]
