"""Forecast runs without a learning rate do not stop the grid's runs."""

import pytest

from scaling.cli.forecast import Waiting, trainable
from scaling.cli.request import Request
from scaling.study.spec import load_study
from tests.commands import invoke, printed, refusal_of
from tests.scaling.cli.test_forecast import STUDY

UNRATED = "\noverrides: {by_run: {llama/55k: {lr: law}}}\nsweep: {rates: [1e-3, 2e-3, 4e-3], share: null}\n"
WITHOUT_RATE = "forecast: 2 runs have no learning rate and are not trained (llama-55k-c64-s5: "


@pytest.fixture
def study(tmp_path):
    """A study with three runs of a few steps, whose forecast waits for a sweep."""
    path = tmp_path / "tiny.yaml"
    short = STUDY.replace("n_tokens: 10240", "n_tokens: 2048").replace("10k, 14k, 25k, 38k]", "10k]")
    path.write_text(short + UNRATED)
    return path, ("--out", tmp_path / "out")


def test_the_grid_is_trained_without_forecast_runs_that_have_no_rate(study):
    path, out = study
    request = Request(load_study(path, out=out[1]))
    assert [run.run_id for run in Waiting.of(request).for_rate] == [f"llama-55k-c64-s{seed}" for seed in (5, 6)]
    assert not Waiting.of(request).for_prediction and [run.role for run in trainable(request)] == ["grid"] * 3
    request.check_rates()
    output = invoke("train", path, *out).output
    assert (
        "train: 3 of 3 runs to do" in output
        and WITHOUT_RATE in output
        and "rates.json is not there yet); `scaling sweep " in output
    )
    assert all(WITHOUT_RATE in invoke(name, path, *out).output for name in ("plan", "status"))
    assert "2 forecast runs without a learning rate" in printed(
        "submit", path, *out, "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}"
    )
    assert "none of its forecast runs has a learning rate: " in refusal_of("predict", path, *out)
    assert not list(out[1].rglob("predictions.json"))
