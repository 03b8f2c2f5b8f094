"""Merged losses of a known offset: calibrated on branches, taken off, and their error counted."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.fits.merged import calibrate
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.fits.study_approaches import approaches_of_study
from analysis.fits.study_points import FAR, StudyRuns, study_points
from analysis.report.merged import merged_figure, merged_notes, merged_rows
from analysis.report.rows import checkpoint_rows
from analysis.runs import load_tables
from arch.errors import InputError

from .synthetic import BATCH, SIZES, write_evals
from .test_phases import decayed, ends_of, write_trunk

OFFSET, SCATTER = 0.02, 0.001
MERGED = FitSettings(loss="validation", points="merged", n_replicates=200)
BRANCHED = ("14k", "55k", "393k")


def write_merged(directory, size, shares, rng, branches=2):
    """A trunk with branches, and merged losses at these shares of its tokens and where a branch ends."""
    ends = ends_of(size, branches) if branches > 1 else ends_of(size, 2)[1:]
    write_trunk(directory, "llama", size, ends, 0, rng)
    last = round(0.8 * ends[-1] / BATCH)
    steps = sorted({end // BATCH for end in ends if end // BATCH <= last} | {round(share * last) for share in shares})
    n, run = SIZES[size], f"llama-{size}-c256-s0"
    losses = [float(decayed(n, step * BATCH)) * math.exp(OFFSET + SCATTER * rng.standard_normal()) for step in steps]
    write_evals(directory, run, steps, losses, "merged-evals")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("studies") / "merged", np.random.default_rng(3)
    for size in SIZES:
        write_merged(directory, size, (0.01, 0.2, 0.4, 0.7, 1.0), rng, 5 if size in BRANCHED else 1)
    return load_tables(directory)


def test_rows_are_of_the_phase_merged_and_enter_no_fit_unasked(tables):
    assert set(tables.evals["phase"]) == {"undecayed", "merged", "decayed"}
    found = fit_study(tables, FitSettings(loss="validation"))
    assert found["settings"]["points"] == "decayed" and found["points"]["left_out"]["merged"] > 30
    assert "rows of merged weights" in found["points"]["text"]
    rows = [row["run"] for row in checkpoint_rows(tables)]
    assert "llama-55k-c256-s0, merged weights" in rows and "llama-55k-c256-s0" in rows


def test_the_offset_is_measured_on_branches_at_equal_tokens(tables):
    told = fit_study(tables, FitSettings(loss="validation"))["merged"]["llama"]
    assert told["n_pairs"] == 12 and told["sizes"] == sorted(BRANCHED) and told["df"] == 9
    low, high = told["interval"]
    assert low < told["mean"] < high and abs(told["mean"] - OFFSET) < 0.001 and abs(told["scatter"] - SCATTER) < 0.0006
    evals = tables.evals.set_index(["run_id", "n_tokens", "phase"])["loss"]
    for pair in told["pairs"]:
        trunk, tokens = pair["trunk"], pair["n_tokens"]
        branch = evals[f"{trunk}-d{tokens}", tokens, "decayed"]
        assert pair["offset"] == math.log(evals[trunk, tokens, "merged"] / branch)


def test_the_plane_is_that_of_least_squares_and_the_mean_that_of_students_t():
    rng = np.random.default_rng(0)
    pairs = [
        {"size": str(n), "trunk": str(n), "n_params": n, "n_tokens": d, "offset": 0.01 + 0.004 * math.log(d / 1e6)}
        for n in (10**4, 10**5)
        for d in (10**5, 10**6, 10**7)
    ]
    for pair in pairs:
        pair["offset"] += 1e-4 * rng.standard_normal()
    found = calibrate(pairs)
    assert (
        found.p_trend < 0.01
        and abs(found.offset(np.array([3e4]), np.array([2e6]))[0] - 0.01 - 0.004 * math.log(2)) < 2e-4
    )
    assert abs(found.beta[2] - 0.004) < 1e-4 and found.df == 3
    three = [pairs[i] for i in (0, 2, 3)]
    mean = calibrate(three)
    told, offsets = mean.to_dict(0.95), [pair["offset"] for pair in three]
    assert told["interval"] == pytest.approx(
        stats.t.interval(0.95, 2, np.mean(offsets), stats.sem(offsets)), rel=1e-9
    )  # fmt: skip
    assert told["slopes"] is None and told["p_trend"] is None
    assert calibrate(pairs[:2]) is None and calibrate(pairs[:3]) is None, "three pairs, at two sizes"
    assert mean.reaches(5e3, 5e4) and not mean.reaches(4e3, 1e6) and not mean.reaches(1e4, 2.1e7)


def test_tokens_in_proportion_to_the_size_tell_no_slopes():
    """Six pairs at 20 tokens a parameter, but for whole batches, would make a plane of rounding."""
    rng = np.random.default_rng(0)
    pairs = []
    for n in np.geomspace(1e6, 1e7, 6):
        d = 32_768 * math.ceil(20 * n / 32_768)
        offset = 0.005 + 0.002 * rng.standard_normal()
        pairs.append({"size": str(n), "trunk": str(n), "n_params": n, "n_tokens": d, "offset": offset})
    found = calibrate(pairs)
    assert len(found.beta) == 1 and math.isnan(found.p_trend)
    at = np.array([2.5e6]), np.array([2.5e7])
    assert abs(found.offset(*at)[0] - 0.005) < 0.002 and np.linalg.norm(found.error(*at)) < 0.002


def test_a_fit_takes_decayed_losses_and_corrected_merged_ones(tables):
    reading = study_points(StudyRuns("s", tables, MERGED))
    points = reading.groups["llama"]
    merged = np.array(["merged at" in run for run in points.run])
    assert merged.sum() > 20 and (~merged).sum() == 18 and set(points.trunk[merged]) <= set(points.trunk)
    at = set(zip(points.trunk, points.n_tokens, strict=True))
    assert len(at) == len(points), "no training counts twice"
    assert reading.dropped[FAR] > 0 and reading.n_read == len(points) + sum(reading.dropped.values())
    off = np.log(points.loss / decayed(points.n_params, points.n_tokens))
    assert abs(off[merged].mean()) < 0.001
    assert points.shift.shape == (len(points), 3) and not points.shift[~merged].any() and points.shift_df == 9
    drawn = points.common(20_000, 0)[:, merged]
    expected = points.shift[merged] @ points.shift[merged].T * 9 / 7  # the variance of Student's t
    assert np.abs(np.cov(drawn.T) - expected).max() < 0.05 * expected.max()
    assert not points.take(~merged).common(10, 0).any()


def test_the_fits_of_every_approach(tables):
    fits = fit_study(tables, MERGED)
    assert (
        "rows of merged weights, less their offset" in fits["points"]["text"]
        and "merged weights" in fits["conventions"]["L"]
    )
    found = approaches_of_study(StudyRuns("s", tables, MERGED), fits)
    laws = {one["approach"]: one for one in found["laws"]}
    assert set(laws) == {"isoflop", "parametric"} and not found["not_fitted"]
    for one in laws.values():
        low, high = one["intervals"]["a"]
        assert low < 0.5 < high and abs(one["params"]["a"] - 0.5) < 0.02
    assert all("merged" not in row["run_id"] for rows in found["waste"].values() for row in rows)


def test_too_few_pairs_are_one_line(tmp_path):
    rng = np.random.default_rng(0)
    for size in ("14k", "55k"):
        write_merged(tmp_path / "s", size, (0.5, 1.0), rng, 2)
    tables = load_tables(tmp_path / "s")
    told = fit_study(tables, FitSettings(loss="validation"))["merged"]["llama"]
    assert told["n_pairs"] == 2 and told["reason"] == "needs 3 pairs at 2 sizes"
    with pytest.raises(InputError, match="llama has 2 pairs of a decayed loss and its trunk's merged loss") as error:
        fit_study(tables, MERGED)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="points merged needs loss validation"):
        FitSettings(points="merged")


def test_the_report_shows_the_pairs(tables):
    fits = fit_study(tables, FitSettings(loss="validation"))
    (row,) = merged_rows(fits)
    assert row["architecture"] == "LLaMA" and row["pairs"] == "12"
    mean = fits["merged"]["llama"]["mean"]
    assert row["merged above decayed"].startswith(f"{mean:+.2%} [+")
    figure = merged_figure(fits)
    shown = {trace.name: len(trace.x) for trace in figure.data}
    assert shown == {"14k": 4, "55k": 4, "393k": 4} and "No fit uses" in merged_notes(fits)[1]
    assert all(1.5 < value < 2.5 for trace in figure.data for value in trace.y)
    assert merged_rows(fits | {"merged": {}}) == [] and merged_figure(fits | {"merged": {}}) is None
