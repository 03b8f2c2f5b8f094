"""Rehearsals of a forecast's step inside the grid: what they find in known worlds, and stored predictions stay."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.design.worlds import World
from analysis.fits.points import Points
from analysis.forecast.rehearsal import FEW, INSIDE, as_rehearsed, half_width, rehearse, wider
from analysis.forecast.rehearsals import with_rehearsals
from analysis.forecast.stage import told
from analysis.report.rehearsals import rehearsal_lines, rehearsal_rows
from analysis.source.choose import source_of
from scaling.study.spec import load_study

SIZES, LAST, APART, ROWS = np.geomspace(360e3, 23e6, 8), 70e6, 1.22, 20
STEP = 2.4, 1.7
NOISE = 0.002
PUBLISHED = Path(__file__).resolve().parents[3] / "analysis/studies/h200-2026"


def points(loss, sizes=SIZES, noise=NOISE):
    """Two seeds of every size, whose losses differ by a share of their own."""
    rng, parts = np.random.default_rng(3), []
    for n in sizes:
        for seed in range(2):
            tokens = LAST / APART ** np.arange(ROWS)[::-1]
            off = np.exp(noise * rng.normal())
            parts.append((np.full(ROWS, n), tokens, loss(n, tokens) * off, [f"{n:.3g}-s{seed}"] * ROWS))
    n, d, losses = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run = np.array([name for part in parts for name in part[3]], dtype=object)
    return Points(n, d, 6 * n * d, losses, run=run, recipe=np.full(len(n), "one", dtype=object))


def fitted(n, d):
    return World("fitted", 0.9, 0.35, 0.4, 0.2, 0.2, 0.0).loss(n, d)


def test_in_a_world_of_the_fitted_form_the_errors_are_those_of_noise():
    found = rehearse(points(fitted), *STEP, 0.3)
    assert found["n"] == 16 and found["sizes"] == 4 and found["refused"] == 0 and found["reason"] is None
    assert found["rms"] < 3 * NOISE
    assert rehearse(points(fitted, noise=0.0), *STEP, 0.3)["rms"] < 1e-4
    narrow = as_rehearsed(1.3, rehearse(points(fitted, noise=0.0), *STEP, 0.3), 0.9)
    assert wider([1.29, 1.31], narrow) == ([1.29, 1.31], "fit")


@pytest.mark.parametrize(
    "other",
    [
        World("interaction", 0.5, 0.35, 0.4, 0.4, 0.4, 0.6).loss,
        lambda n, d: fitted(n, d) * np.exp(-0.015 * np.logaddexp(0, 4 * np.log(n * d / 1e14)) / 4),
    ],
    ids=["N and D interact", "curves bend"],
)
def test_in_a_world_of_another_form_the_errors_find_it(other):
    found = rehearse(points(other, noise=0.0), *STEP, 0.3)
    assert found["rms"] > 0.004
    ends, by = wider([1.299, 1.301], as_rehearsed(1.3, found, 0.9))
    assert by == "rehearsal" and ends[0] < 1.299


def test_every_rehearsal_is_a_step_beyond_in_both_axes():
    found = rehearse(points(fitted), *STEP, 0.3)
    for row in found["rows"]:
        assert np.sum(row["cut_n"] * 1.01 > SIZES) >= 4, "three sizes are smaller than that at the cut"
        assert row["n_params"] / row["cut_n"] == pytest.approx(SIZES[1] / SIZES[0])
        assert STEP[1] / 1.02 <= row["n_tokens"] / row["cut_d"] <= STEP[1] * APART
    assert {round(row["n_tokens"] / LAST, 2) for row in found["rows"]} == {1.0, 0.82, 0.67, 0.55}
    (of_n,) = {row["cut_d"] for row in rehearse(points(fitted), 2.4, 0.5, 0.3)["rows"]}
    assert of_n == LAST, "no cut of tokens where the forecast has fewer"
    (of_d,) = {row["cut_n"] for row in rehearse(points(fitted), 1.0, 1.7, 0.3)["rows"]}
    assert of_d == pytest.approx(SIZES[-1])


def test_what_cannot_be_rehearsed_says_why():
    few = rehearse(points(fitted, SIZES[:4]), *STEP, 0.3)
    assert (few["n"], few["rms"], few["reason"]) == (0, None, FEW)
    assert rehearse(points(fitted), 0.8, 1.0, 0.3)["reason"] == INSIDE
    assert as_rehearsed(1.3, few, 0.9) is None and wider([1.2, 1.4], None) == ([1.2, 1.4], "fit")
    assert wider(None, (1.2, 1.4)) == (None, None)


def test_the_rehearsed_interval_counts_target_sizes():
    low, high = as_rehearsed(2.0, {"rms": 0.01, "sizes": 4}, 0.9)
    assert math.log(high / 2.0) == pytest.approx(0.0213185, rel=1e-4) and low * high == pytest.approx(4.0)
    assert half_width(as_rehearsed(2.0, {"rms": 0.01, "sizes": 1}, 0.9)) == pytest.approx(0.0631375, rel=1e-4)


def test_stored_predictions_are_rehearsed_afterwards_and_do_not_move():
    study = load_study(PUBLISHED, published=True)
    source = source_of(study, study.runs())
    before, *_ = told(study, source)
    found = with_rehearsals(study, source, before)
    new = {"rehearsals", "afterwards", "not_rehearsed"}
    assert {key: value for key, value in found.items() if key not in new} == before
    assert found["afterwards"] and [one["n"] for one in found["rehearsals"]] == [16, 12, 12, 12]
    assert json.dumps(found)
    llama = found["rehearsals"][0]
    assert llama["too_narrow"] and llama["of_fit"] == pytest.approx(0.0093, abs=1e-4) and -0.02 < llama["mean"] < -0.01
    line = rehearsal_lines(found)[0]
    assert line.startswith(
        "LLaMA: rehearsed afterwards 16 times inside the grid at 1.8 x N and 1.8 x D (the forecast's "
    )
    assert "than the fit's interval of \N{PLUS-MINUS SIGN}0.93%, which is too narrow for this step. " in line
    assert [row["times"] for row in rehearsal_rows(found)] == ["16", "12", "12", "12"]


def test_a_later_round_is_rehearsed_inside_what_was_trained_before():
    study = load_study(PUBLISHED, published=True)
    source = source_of(study, study.runs())
    *_, last = told(study, source)
    line = rehearsal_lines(with_rehearsals(study, source, last))[0]
    assert last["round"] == 2 and "rehearsed 20 times inside what was trained before at 1.8 x N and 1.0 x D: " in line


def test_a_prediction_whose_runs_are_gone_is_not_rehearsed(tmp_path):
    study = load_study(PUBLISHED, published=True)
    source = source_of(study, study.runs())
    other, *_ = told(study, source)
    other["fitted"] = {"spec_hashes": other["fitted"]["spec_hashes"] | {"llama-n360k-c2048-s0": "changed"}}
    found = with_rehearsals(study, source, other)
    assert found["rehearsals"] == [] and rehearsal_rows(found) == []
    assert rehearsal_lines(found) == ["Nothing is rehearsed: 1 of the 61 runs that it was made from is not here."]
