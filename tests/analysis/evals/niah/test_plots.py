"""From checkpoints through `scaling eval` to heatmaps, and what a heatmap shows."""

import json

import numpy as np
from typer.testing import CliRunner

from analysis.evals.niah.plots import heatmap
from analysis.evals.niah.scores import measures
from scaling.cli.evaluation import current_results
from scaling.cli.main import app
from scaling.cli.request import Request
from tests.analysis.evals.small_study import write_study

GRID = {"first_length": 256, "last_length": 512, "n_lengths": 2, "n_depths": 3, "max_new_tokens": 4}


def grid_values(context_length=4096):
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


def test_a_heatmap_has_length_to_the_right_depth_downwards_and_a_line_where_the_training_ends():
    figure = heatmap(grid_values(), "title")
    (cells,) = figure.data
    assert np.array(cells.z).shape == (3, 5) and list(np.array(cells.z)[:, 0]) == [10, 7, 1]
    assert figure.layout.yaxis.autorange == "reversed" and cells.y[0] == "0%" and cells.x[-1] == "8,000"
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == 2.5 and "4,096 tokens" in figure.layout.title.text
    assert (cells.zmin, cells.zmax) == (1, 10)
    assert not heatmap(grid_values(16_000), "title").layout.shapes


def test_from_checkpoints_to_heatmaps(tmp_path, browser):
    """Two architectures and two tasks, by the command line."""
    (tmp_path / "data/needle").mkdir(parents=True)
    (tmp_path / "data/needle/text.txt").write_text("The sun is yellow. The grass is green. " * 40)
    tasks = {name: GRID for name in ("niah-easy", "niah-standard-facts")}
    more = f"evaluation: {{data: {tmp_path}/data, settings: {json.dumps(tasks)}}}"
    study = write_study(tmp_path, steps=1, more=more)
    command = ["eval", "study", str(tmp_path / "small.yaml"), "--tasks", ",".join(tasks), "--checkpoints", "last"]
    assert CliRunner().invoke(app, command).exit_code == 0  # the workers are processes
    results = current_results(Request(study)).results
    assert len(results) == 4
    for result in results:
        assert np.array(result.values["scores"]).shape == (2, 3)
        assert result.values["extrapolated"] is True and result.values["acc_trained"] is None
        assert result.forward_tokens < 2 * (3 * 256 + 3 * 512) * 0.6
    page = (study.directory / "evals/index.html").read_text()
    assert all(result.run_id in page and result.task in page for result in results)
    pictures = study.directory / "evals/figures"
    made = {path.stem for path in pictures.glob("*.png")}
    assert not pictures.exists() or made == {f"{result.task}-{result.run_id}" for result in results}
