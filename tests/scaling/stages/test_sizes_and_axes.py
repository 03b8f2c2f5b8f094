"""A study file with shapes, a ladder and two axes, by one command from the corpus to the report."""

import subprocess
import sys

import pandas as pd
import pytest

from data.files import read_json
from scaling.study.spec import load_study

STUDY = """
name: own
corpus: {source: "synthetic:0:300000"}
grid:
  archs: [tnl]
  sizes:
    - 8k: {n_layers: 2, d_model: 16, n_heads: 2, d_ffn: 64}
    - 12k: {n_layers: 2, d_model: 24, n_heads: 2, d_ffn: 64, tnl: {d_ffn: 56}}
    - 20k: {n_layers: 2, d_model: 32, n_heads: 2, d_ffn: 64}
    - {from: 30k, to: 60k, count: 2}
  axes: {training.lr: [1.0e-3, 4.0e-3], model.context_length: [32, 64]}
  nuisance: {training.lr: best}
training: {n_tokens: 16384, batch_tokens: 512, n_checkpoints: 2}
evaluation: {validation_tokens: 2048}
fit: {smoothing_tokens: 2048, grid_points: 10}
jobs: {parallel: 2}
"""


@pytest.mark.slow
def test_from_the_file_to_the_report(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(STUDY)
    words = [sys.executable, "-m", "scaling", "run", str(path), "--out", str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    planned = {run.run_id: run for run in load_study(path).runs()}
    runs = pd.read_parquet(tmp_path / "own" / "results" / "runs.parquet").set_index("run_id")
    assert len(planned) == 20 and set(runs.index) == set(planned) and set(runs["state"]) == {"done"}
    sizes = runs.groupby("size")["n_params_non_embedding"].unique().map(list)
    assert list(sizes["n30k"]) == pytest.approx([30e3], rel=0.03) and list(sizes["n60k"]) == pytest.approx(
        [60e3], rel=0.03
    )
    assert list(sizes["8k"]) == [2 * (4 * 16**2 + 3 * 16 * 64 + 2 * 16 * 8)]  # and a gate of the head's rank
    for run_id, run in planned.items():
        assert (runs.loc[run_id, "lr"], runs.loc[run_id, "context_length"]) == (run.training.lr, run.context_length)
    fits = read_json(tmp_path / "own" / "results" / "fits.json")
    assert set(fits["archs"]) == {"tnl, context_length=32", "tnl, context_length=64"}
    report = (tmp_path / "own" / "report" / "index.html").read_text()
    assert all(name in report for name in ("n30k", "20k", "context_length=64"))
