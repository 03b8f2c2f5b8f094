"""Predictions of runs beyond a study: how often their intervals hold, and how they stand beside what was measured."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.design.worlds import World, paths
from analysis.fits.approaches import Options
from analysis.fits.envelope.of_points import seed_noises_of
from analysis.fits.points import Points
from analysis.fits.settings import FitSettings
from analysis.fits.solver import LEAST_SQUARES
from analysis.forecast.outcome import NOT_EVALUATED, OTHERWISE, outcome
from analysis.forecast.predict import NO_SURFACE, interval_of, source_of
from analysis.forecast.predictors import of_new_runs
from analysis.forecast.stored import digest
from analysis.run_table import RunTable
from analysis.source.base import NOT_TRAINED
from tests.analysis.fits.built import study_of

SIZES, TOKENS, WARMUP, ROWS = np.geomspace(360e3, 23e6, 8), 70e6, 3e6, 18
NOISE, MEMORY = 0.004, 2.0  # of log loss between seeds; of a curve's noise, in log tokens
ARCHS, STUDIES, LEVEL, BEYOND = ("llama", "tnl", "hgrn2"), 200, 0.9, 4.0
NO_FITS = study_of()
LARGER = 2.4  # times the size, of BEYOND times the compute


def world(rng):
    """L = E + A N^-alpha + B D^-beta, anywhere."""
    alpha, beta = rng.uniform(0.25, 0.5, 2)
    a, b = rng.uniform(0.1, 0.3, 2)
    return World("fitted", rng.uniform(0.6, 1.0), alpha, beta, a, b, 0.0, int(rng.integers(1 << 30)))


def curves(group, surface, rng):
    """Two seeds of every size."""
    parts = []
    for n in SIZES:
        for seed in range(2):
            tokens = np.geomspace(WARMUP, TOKENS, ROWS)
            loss = surface.loss(n, tokens) * np.exp(NOISE * paths(rng, np.log(tokens), MEMORY))
            parts.append((np.full(ROWS, n), tokens, loss, [f"{group}-{n:.3g}-s{seed}"] * ROWS))
    n, d, loss = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run = np.array([name for part in parts for name in part[3]], dtype=object)
    return Points(n, d, 6 * n * d, loss, run=run, recipe=np.full(len(n), "one", dtype=object), group=group)


def source(points, level=LEVEL, n_replicates=200):
    noises, group = seed_noises_of(list(points.values())), next(iter(points))
    options = Options(objective=LEAST_SQUARES, n_replicates=n_replicates)
    return source_of(group, points, NO_FITS, noises.of(group), noises.of_others(group), options, level)


def held(seed):
    """Of one drawn study: whether the intervals hold two new runs at BEYOND times its compute, and their mean."""
    rng = np.random.default_rng([seed, 11])
    worlds = {name: world(rng) for name in ARCHS}
    found = source({name: curves(name, one, rng) for name, one in worlds.items()})
    n, d = SIZES[-1] * LARGER, TOKENS * BEYOND / LARGER
    value = found.told.loss(n, d, d)
    true = float(worlds[ARCHS[0]].loss(n, d))
    new = [true * float(np.exp(NOISE * paths(rng, np.log([d / 2, d]), MEMORY)[-1])) for _ in range(2)]
    one, two = interval_of(found, value, LEVEL), interval_of(found, value, LEVEL, 2)
    return [*(one[0] <= loss <= one[1] for loss in new), two[0] <= np.mean(new) <= two[1]]


def test_predictive_intervals_hold_new_runs_as_often_as_they_say():
    """Nominal 90%, of 200 studies whose surface and noise are known; 1,000 of them hold 91.6% of the runs."""
    with ProcessPoolExecutor(2) as pool:
        found = np.array(list(pool.map(held, range(STUDIES), chunksize=10)))
    assert 0.85 <= found[:, :2].mean() <= 0.95
    assert 0.85 <= found[:, 2].mean() <= 0.95


def test_the_interval_of_a_run_is_that_of_the_surface_and_of_the_noise():
    value = (2.0, (1.98, 2.02))
    low, high = of_new_runs(value, 0.01, None, 0.9)
    times = 1.6448536
    assert np.log(high / 2.0) == pytest.approx(np.hypot(np.log(1.01), times * 0.01))
    assert np.log(low / 2.0) == pytest.approx(-np.hypot(np.log(0.99), times * 0.01))
    narrower = of_new_runs(value, 0.01, None, 0.9, n_runs=4)
    assert low < narrower[0] < 1.98 and 2.02 < narrower[1] < high
    assert of_new_runs(value, 0.01, 4.0, 0.9)[1] > high, "noise that is hardly known"
    assert of_new_runs((2.0, None), 0.01, 4.0, 0.9) is None and of_new_runs(value, None, None, 0.9) is None


def test_nothing_is_predicted_from_a_surface_that_is_not_identified():
    rng = np.random.default_rng(0)
    whole = curves("llama", world(rng), rng)
    flat = replace(whole, loss=np.full(len(whole), 2.0) * np.exp(NOISE * rng.normal(size=len(whole))))
    assert source({"llama": flat}) in (NO_SURFACE,) or isinstance(source({"llama": flat}), str)
    few = whole.take(whole.n_params < 1e6)
    assert "it has no surface" in source({"llama": few.take(few.n_params < 4e5)})
    assert source_of("tnl", {"llama": whole}, NO_FITS, None, None, Options(), LEVEL) == "none of its runs is fitted"


def predicted(run_id, loss=2.0, **more):
    row = {"run_id": run_id, "spec_hash": "", "arch": "llama", "group": "llama", "size": "38k", "n_params": 38_000}
    row |= {"n_tokens": 1000, "read_at": 1000.0, "c": 1e9, "loss": loss, "interval": [1.9, 2.1], "power_law": 1.6}
    return row | {"drop": 0.5, "reason": None, "expected": [1.95, 2.05]} | more


def stored(*rows):
    mean = rows[0] | {"run_ids": [row["run_id"] for row in rows], "interval": [1.95, 2.05]}
    settings = FitSettings(loss="validation").to_dict()
    made = {"made": "2026-11-23", "inputs_hash": "x", "level": 0.9}
    return made | {"runs": list(rows), "means": [mean], "settings": settings}


def tables(told, losses, tokens=1000, state="done"):
    """Of runs that were trained after they were predicted so."""
    digests = {row["run_id"]: digest(told, row) for row in told["runs"]}
    runs = pd.DataFrame({"run_id": list(losses), "state": state, "prediction": [digests[run] for run in losses]})
    evals = pd.DataFrame({"run_id": list(losses), "n_tokens": tokens, "loss": list(losses.values())})
    return RunTable(runs, pd.DataFrame({"run_id": []}), evals)


def test_measured_losses_stand_beside_their_predictions():
    told = stored(predicted("a"), predicted("b"))
    found = outcome(told, tables(told, {"a": 2.05, "b": 2.2}))
    one, two = found["runs"]
    assert one["held"] and not two["held"] and found["n"] == {"runs": 2, "trained": 2, "with_interval": 2, "held": 1}
    assert one["error"] == pytest.approx(0.025) and one["of_drop"] == pytest.approx(0.1)
    assert one["power_law_error"] == pytest.approx(2.05 / 1.6 - 1)
    assert one["unchanged_error"] == pytest.approx(2.05 / 2.5 - 1) and one["unchanged_held"] is False
    small = outcome(stored(predicted("a", drop=0.05)), tables(stored(predicted("a", drop=0.05)), {"a": 2.05}))
    assert small["runs"][0]["unchanged_error"] == pytest.approx(0) and small["runs"][0]["unchanged_held"]
    (mean,) = found["means"]
    assert mean["measured"] == pytest.approx(2.125) and mean["held"] is False


def test_what_is_not_measured_says_why():
    both = stored(predicted("a"), predicted("b"))
    assert {row["state"] for row in outcome(both, None)["runs"]} == {NOT_TRAINED}
    found = outcome(both, tables(both, {"a": 2.05}))
    assert [row["state"] for row in found["runs"]] == ["done", NOT_TRAINED] and found["means"][0]["measured"] is None
    early = outcome(both, tables(both, {"a": 2.05, "b": 2.0}, tokens=500))
    assert {row["state"] for row in early["runs"]} == {NOT_EVALUATED} and early["n"]["trained"] == 0
    assert outcome(both, tables(both, {"a": 2.0}, state="running"))["runs"][0]["state"] == "running"
    none = stored(predicted("a", loss=None, interval=None, reason="x"))
    without = outcome(none, tables(none, {"a": 2.05}))["runs"][0]
    assert without["measured"] == 2.05 and without["error"] is None and without["held"] is None


def test_a_prediction_that_was_changed_after_the_training_is_none():
    told = stored(predicted("a"))
    trained = tables(told, {"a": 2.05})
    assert outcome(told, trained)["runs"][0]["held"]
    for changed in (told | {"made": "2026-11-24"}, stored(predicted("a", loss=2.05))):
        (row,) = outcome(changed, trained)["runs"]
        assert (row["state"], row["measured"], row["held"]) == (OTHERWISE, None, None)
    before = replace(trained, runs=trained.runs.drop(columns="prediction"))
    assert outcome(told, before)["runs"][0]["state"] == OTHERWISE
