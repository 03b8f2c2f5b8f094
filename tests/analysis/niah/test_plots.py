"""From checkpoints through `scaling eval` to heatmaps, and what a heatmap shows."""

import json
import subprocess
import sys

import numpy as np
import pytest

from analysis.evals.niah.metrics import measures
from analysis.evals.niah.plots import figures, heatmap, newest_results
from arch.errors import InputError
from data.files import read_json
from tests.analysis.evals.small_study import write_study

GRID = {"first_length": 256, "last_length": 512, "n_lengths": 2, "n_depths": 3, "max_new_tokens": 4}


def result(context_length=4096):
    scores = np.tile(np.array([[10, 7, 1]]), (5, 1))
    lengths = [1000, 2000, 4000, 5000, 8000]
    values = measures(scores, lengths, 1.01, 1.01, 7)
    return values | {
        "lengths": lengths,
        "depths_percent": [0, 50, 100],
        "scores": scores.tolist(),
        "context_length": context_length,
        "extrapolated": context_length < 8000,
    }


def test_a_heatmap_has_length_to_the_right_depth_downwards_and_hatches_what_is_beyond():
    figure = heatmap(result(), "title")
    cells, stripes = figure.data
    assert np.array(cells.z).shape == (3, 5) and list(np.array(cells.z)[:, 0]) == [10, 7, 1]
    assert tuple(figure.layout.yaxis.range) == (2.5, -0.5)
    assert list(stripes.x) == [3, 4] and "4,096 tokens" in figure.layout.title.text
    assert (cells.zmin, cells.zmax) == (1, 10)
    assert len(heatmap(result(16_000), "title").data) == 1


def test_from_checkpoints_to_heatmaps(tmp_path):
    """Two architectures and two tasks, by the command line."""
    (tmp_path / "data/needle").mkdir(parents=True)
    (tmp_path / "data/needle/text.txt").write_text("The sun is yellow. The grass is green. " * 40)
    tasks = {name: GRID for name in ("niah-easy", "niah-standard-facts")}
    more = f"evaluation: {{data: {tmp_path}/data, settings: {json.dumps(tasks)}}}"
    study = write_study(tmp_path, steps=1, more=more)
    command = [sys.executable, "-m", "scaling", "eval", str(tmp_path / "small.yaml"), "--json"]
    command += ["--tasks", "niah-easy,niah-standard-facts", "--checkpoints", "last"]
    subprocess.run(command, capture_output=True, text=True, check=True)
    results = newest_results(study.directory)
    assert len(results) == 4
    for one in results.values():
        assert np.array(one["values"]["scores"]).shape == (2, 3)
        assert one["values"]["extrapolated"] is True and one["values"]["acc_trained"] is None
        assert one["forward_tokens"] < 2 * (3 * 256 + 3 * 512) * 0.6
    assert len(figures(study.directory)) == 4


def test_no_results_are_told(tmp_path):
    with pytest.raises(InputError, match="scaling eval"):
        newest_results(tmp_path)


def test_the_command_draws_pictures(tmp_path):
    folder = tmp_path / "study/runs/llama-14k-c256-s0/evals/00000002"
    folder.mkdir(parents=True)
    content = {"run_id": "llama-14k-c256-s0", "task": "niah-easy", "n_tokens": 512, "values": result()}
    (folder / "niah-easy.json").write_text(json.dumps(content))
    assert read_json(folder / "niah-easy.json")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/mine.txt").write_text("stays")
    command = [sys.executable, "-m", "analysis.evals.niah.plots", str(tmp_path / "study"), "--out"]
    told = subprocess.run([*command, str(tmp_path / "pictures")], capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "pictures/mine.txt").read_text() == "stays"
    made = (tmp_path / "pictures/llama-14k-c256-s0-niah-easy.png").exists()
    assert made or "no pictures" in told
