"""Forecast runs read source by source."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.evals.results import Scores, tidy
from analysis.fits.settings import FitSettings
from analysis.forecast.by_source import by_source
from analysis.source.published import Published
from data.files import read_json

FOLDER = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "h200-2026"


@pytest.fixture(scope="module")
def study():
    """The first round of the published forecast: what is stored of it, its runs, and those that it was made from."""
    predicted = read_json(FOLDER / "predictions.json")
    folder = Published(FOLDER)
    tables, forecast = (
        folder.table(FitSettings(**predicted["settings"]), predicted["validation_tokens"]),
        folder.forecast(),
    )
    tables = tables.without(set(tables.runs["run_id"]) - set(predicted["fitted"]["spec_hashes"]))
    forecast = forecast.without(set(forecast.runs["run_id"]) - {run["run_id"] for run in predicted["runs"]})
    return predicted, tables, forecast


def scores_of(tables, factor):
    """Of a mixture whose one source has `factor` times the mixture's loss."""
    rows = tables.evals[["run_id", "step", "n_tokens"]].copy()
    return rows.assign(task="validation", metric="loss:one", value=factor * tables.evals["loss"])


def test_a_source_that_is_the_mixture_has_the_mixtures_surface(study):
    predicted, runs, forecast = study
    found = by_source(runs, scores_of(runs, 1.0), forecast, scores_of(forecast, 1.0))
    stored = {row["group"]: row for row in predicted["means"]}
    assert [row["source"] for row in found] == ["one"] * 4
    for row in found:
        mean = stored[row["group"]]
        assert (row["n_params"], row["n_tokens"], row["n_runs"]) == (mean["n_params"], mean["n_tokens"], 2)
        assert row["predicted"] == pytest.approx(mean["loss"], rel=1e-6)
        last = forecast.evals[forecast.evals["run_id"].isin(mean["run_ids"]) & (forecast.evals["n_tokens"] > 1.2e8)]
        assert row["measured"] == pytest.approx(last["loss"].mean())
        assert row["error"] == pytest.approx(row["measured"] / row["predicted"] - 1)


def test_runs_without_the_sources_loss_are_left_out(study):
    _, runs, forecast = study
    some = scores_of(forecast, 1.0)
    some = some[some["run_id"].str.endswith("s31")]
    found = by_source(runs, scores_of(runs, 1.0), forecast, some)
    assert {row["n_runs"] for row in found} == {1}


def test_the_table_of_evaluations_has_the_losses_of_the_sources():
    values = {"loss": 1.5, "by_source": {"books": {"loss": 1.25, "n_windows": 3}, "docs": {"loss": None}}}
    frame = tidy([Scores(run_id="r", step=1, n_tokens=2, task="validation", values=values)])
    assert frame["metric"].tolist() == ["loss", "loss:books", "loss:docs"]
    assert frame["value"].tolist()[:2] == [1.5, 1.25] and pd.isna(frame["value"].iloc[2])
