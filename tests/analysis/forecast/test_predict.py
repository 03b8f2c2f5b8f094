"""Predictions of runs beyond a study: from its points, and beside what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.design.worlds import World
from analysis.fits.baselines import LAST_SLOPE, NO_CHANGE, OF_MINIMA, baselines
from analysis.fits.cost import cost_of
from analysis.fits.isoflop import fit_isoflop
from analysis.fits.points import Points
from analysis.forecast.outcome import NOT_EVALUATED, OTHERWISE, outcomes_of, read_forecast
from analysis.forecast.predict import NOT_FITTED, forecast_of
from analysis.run_table import RunTable
from analysis.source.base import NOT_TRAINED
from analysis.source.choose import source_of
from scaling.study.spec import load_study
from tests.analysis.fits.test_rehearsal import TRUTH, isoflops
from tests.analysis.forecast.made import predictions, run

PUBLISHED = Path(__file__).resolve().parents[3] / "analysis/studies/2026-second"
SIZES, NOISE = np.geomspace(360e3, 23e6, 8), 0.002


def curves(sizes=SIZES):
    """Two seeds of every size, whose losses differ by a share of their own."""
    rng, world, parts = np.random.default_rng(3), World("fitted", 0.9, 0.35, 0.4, 0.2, 0.2, 0.0), []
    for n in sizes:
        for seed in range(2):
            tokens = np.geomspace(3e6, 70e6, 18)
            loss = world.loss(n, tokens) * np.exp(NOISE * rng.normal())
            parts.append((np.full(18, n), tokens, loss, [f"{n:.3g}-s{seed}"] * 18))
    n, d, loss = (np.concatenate([part[i] for part in parts]) for i in range(3))
    names = np.array([name for part in parts for name in part[3]], dtype=object)
    return Points(n, d, 6 * n * d, loss, run=names, recipe=np.full(len(n), "one", dtype=object)), world


def test_a_larger_run_is_predicted_with_the_interval_that_was_rehearsed():
    points, world = curves()
    n, d = SIZES[-1] * 2.4, 70e6
    prediction = forecast_of(points).predict(n, d, level=0.9)
    low, high = prediction.loss.ends
    assert low < world.loss(n, d) < high < low * 1.03
    assert "rehearsed up to" in prediction.sentence
    assert forecast_of(points, "over-training").covariance.shape[-1] == 4


def test_baselines_are_the_lowest_loss_and_what_isoflop_minima_say():
    points = isoflops()
    law, c = fit_isoflop(points, cost_of(points), n_replicates=100), 5 * points.flops.max()
    assert baselines(points, None, c) == {NO_CHANGE: points.loss.min()}
    losses = baselines(points, law, c)
    assert losses[OF_MINIMA] == pytest.approx(float(TRUTH.l_opt(c)), rel=1e-4)
    last = TRUTH.l_opt(points.flops.max() / np.array([1, 2]))
    assert losses[LAST_SLOPE] == pytest.approx(last[0] * (last[0] / last[1]) ** np.log2(5), rel=1e-4)
    assert losses[LAST_SLOPE] < losses[OF_MINIMA] < losses[NO_CHANGE]


def test_what_identifies_no_surface_says_why():
    assert forecast_of(None) == NOT_FITTED
    assert forecast_of(curves(SIZES[:1])[0]).startswith("a rehearsal needs 8 or more points that identify a surface")


def small(run_id, **more):
    return run(run_id, n_tokens=1000, read_at=1000.0, **{"loss": 2.0, "interval": (1.9, 2.1)} | more)


def tables(predicted, losses, tokens=1000, state="done"):
    """Of runs that were trained after they were predicted so."""
    digests = {row.run_id: predicted.digest(row) for row in predicted.runs}
    runs = pd.DataFrame({"run_id": list(losses), "state": state, "prediction": [digests[name] for name in losses]})
    evals = pd.DataFrame({"run_id": list(losses), "n_tokens": tokens, "loss": list(losses.values())})
    return RunTable(runs, pd.DataFrame({"run_id": []}), evals)


def test_measured_losses_stand_beside_their_predictions():
    predicted = predictions(small("a"), small("b"))
    forecast = outcomes_of(predicted, tables(predicted, {"a": 2.05, "b": 2.2}))
    first, second = forecast.outcomes
    assert first.held and not second.held
    assert forecast.to_dict()["n"] == {"runs": 2, "trained": 2, "with_interval": 2, "held": 1}
    assert first.error == pytest.approx(0.025)


def test_what_is_not_measured_says_why():
    both = predictions(small("a"), small("b"))

    def states(*given, **more):
        return [outcome.state for outcome in outcomes_of(both, tables(both, *given, **more)).outcomes]

    assert [outcome.state for outcome in outcomes_of(both, None).outcomes] == [NOT_TRAINED] * 2
    assert states({"a": 2.05}) == ["done", NOT_TRAINED]
    assert states({"a": 2.05, "b": 2.0}, tokens=500) == [NOT_EVALUATED] * 2
    assert states({"a": 2.0}, state="running") == ["running", NOT_TRAINED]
    none = predictions(small("a", loss=None, interval=None, reason="x"))
    (without,) = outcomes_of(none, tables(none, {"a": 2.05})).outcomes
    assert without.measured == 2.05 and without.error is None and without.held is None


def test_a_prediction_that_was_changed_after_the_training_is_none():
    predicted = predictions(small("a"))
    trained = tables(predicted, {"a": 2.05})
    assert outcomes_of(predicted, trained).outcomes[0].held
    for changed in (predicted.model_copy(update={"made": "2026-11-24"}), predictions(small("a", loss=2.05))):
        (outcome,) = outcomes_of(changed, trained).outcomes
        assert (outcome.state, outcome.measured, outcome.held) == (OTHERWISE, None, None)
    before = replace(trained, runs=trained.runs.drop(columns="prediction"))
    assert outcomes_of(predicted, before).outcomes[0].state == OTHERWISE


def test_the_published_predictions_are_judged_as_they_were_stored():
    study = load_study(PUBLISHED, published=True)
    first, second = read_forecast(study, source_of(study, study.runs()))
    assert first.to_dict()["n"] == {"runs": 8, "trained": 8, "with_interval": 8, "held": 6}
    assert second.to_dict()["n"] == {"runs": 4, "trained": 4, "with_interval": 4, "held": 4}
    assert first.outcomes[0].error == pytest.approx(-0.0052083, abs=1e-6)
