"""Merged losses of a known offset: calibrated on branches, taken off, and their error counted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.fits.fit import Estimate
from analysis.fits.merged import calibrate
from analysis.fits.prepare import FAR, prepare
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.fits.study_fits import MergedOffset, MergedPair
from analysis.report.merged import merged_notes, merged_rows
from analysis.report.rows import checkpoint_rows
from analysis.runs import load_tables
from arch.errors import InputError
from tests.analysis.fits.built import envelopes_of

from .synthetic import BATCH, SIZES, write_evals
from .test_losses import decayed, ends_of, write_trunk

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
    found = envelopes_of(tables, FitSettings(loss="validation"))
    assert found.settings.points == "decayed" and found.points["left_out"]["merged"] > 30
    assert "rows of merged weights" in found.points["text"]
    assert {row["weights"] for row in checkpoint_rows(tables)} == {"", "merged"}


def test_the_offset_is_measured_on_branches_at_equal_tokens(tables):
    merged = envelopes_of(tables, FitSettings(loss="validation")).merged["llama"]
    offset = merged.offset
    assert len(merged.pairs) == 12 and {pair.size for pair in merged.pairs} == set(BRANCHED)
    assert offset.low < offset.value < offset.high
    assert abs(offset.value - OFFSET) < 0.001 and abs(merged.scatter - SCATTER) < 0.0008
    evals = tables.evals.set_index(["run_id", "n_tokens", "phase"])["loss"]
    for pair in merged.pairs:
        branch = evals[f"{pair.trunk}-d{pair.n_tokens}", pair.n_tokens, "decayed"]
        assert pair.offset == math.log(evals[pair.trunk, pair.n_tokens, "merged"] / branch)


def made(trunks, rng, slopes=(0.0, 0.004), noise=1e-4):
    """Pairs {(n_params, tokens): ...} of {trunk: (n_params, tokens)}."""
    pairs = []
    for trunk, (n, tokens) in trunks.items():
        for d in tokens:
            y = 0.01 + slopes[0] * math.log(n / 1e5) + slopes[1] * math.log(d / 1e6) + noise * rng.standard_normal()
            pairs.append(MergedPair(str(n), str(trunk), n, d, math.exp(y), 1.0))
    return pairs


def test_with_as_many_pairs_in_every_trunk_the_offset_is_least_squares():
    """The split plot beside one least squares of all pairs, and the mean beside Student's t of the trunks' means."""
    rng, tokens = np.random.default_rng(0), (10**5, 10**6, 10**7)
    pairs = made({n: (n, tokens) for n in (10**4, 3 * 10**4, 10**5, 10**6)}, rng, (0.002, 0.004))
    found = calibrate(pairs)
    x = np.column_stack([np.ones(12), *np.log([[p.n_params, p.n_tokens] for p in pairs]).T])
    y = np.array([pair.offset for pair in pairs])
    at = np.array([3e4, 7e5]), np.array([2e6, 3e5])
    plain = np.column_stack([np.ones(2), *np.log(at)]) @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert found.offset(*at) == pytest.approx(plain, abs=1e-12)
    assert found.df.tolist() == [2, 2, 7]
    means = y.reshape(4, 3).mean(1)
    slope = stats.linregress(np.log([10**4, 3 * 10**4, 10**5, 10**6]), means)
    assert found.beta[1] == pytest.approx(slope.slope)
    three = calibrate(pairs[:9]).in_the_middle(0.95)
    expected = stats.t.interval(0.95, 2, means[:3].mean(), stats.sem(means[:3]))
    assert three.interval == pytest.approx(expected, rel=1e-9)
    assert not calibrate([pairs[i] for i in (0, 4, 8)]).beta[1:].any(), "one pair a trunk, three trunks"
    assert calibrate(pairs[:2]) is None and calibrate(pairs[:3]) is None, "three pairs, at two sizes"
    mean = calibrate([pairs[i] for i in (0, 2, 3)])
    assert mean.reaches(5e3, 5e4) and not mean.reaches(4e3, 1e6) and not mean.reaches(1e4, 2.1e7)


def test_intervals_hold_where_pairs_of_a_trunk_share_an_error_and_where_they_do_not():
    """In 250 studies of trunks with three pairs or fewer each, at the middle and at the largest size."""
    for n_trunks, counts in ((4, (3,)), (6, (4, 2, 1))):
        for shared in (0.0, 0.9):
            rng, held = np.random.default_rng([n_trunks, int(10 * shared)]), np.zeros(2)
            for _ in range(250):
                pairs = []
                for i, n in enumerate(np.geomspace(14e3, 393e3, n_trunks)):
                    own = math.sqrt(shared) * 0.002 * rng.standard_normal()
                    for share in (0.48, 0.24, 0.12, 0.06)[: counts[i % len(counts)]]:
                        d, noise = share * 5e11 / n, math.sqrt(1 - shared) * 0.002 * rng.standard_normal()
                        pairs.append(MergedPair(str(n), str(n), n, d, math.exp(true_offset(n, d) + own + noise), 1.0))
                found = calibrate(pairs)
                normal = rng.standard_normal((1000, 3))
                drawn = normal * np.column_stack([np.sqrt(df / rng.chisquare(df, 1000)) for df in found.df])
                for place, (n, d) in enumerate((tuple(np.exp(found.center)), (393e3, 0.24 * 5e11 / 393e3))):
                    at = np.array([n]), np.array([d])
                    half = np.quantile(np.abs(drawn @ found.error(*at)[0]), 0.95)
                    held[place] += abs(found.offset(*at)[0] - true_offset(n, d)) <= half
            assert held.min() / 250 > 0.90, (n_trunks, shared, held)


def true_offset(n, d):
    return 0.02 + 0.002 * math.log(n / 7e4) + 0.003 * math.log(d / 1e6)


def test_tokens_in_proportion_to_the_size_tell_no_slopes():
    """Six pairs at 20 tokens a parameter, but for whole batches, would make a plane of rounding."""
    rng = np.random.default_rng(0)
    pairs = []
    for n in np.geomspace(1e6, 1e7, 6):
        d = 32_768 * math.ceil(20 * n / 32_768)
        merged = math.exp(0.005 + 0.002 * rng.standard_normal())
        pairs.append(MergedPair(str(n), str(n), n, d, merged, 1.0))
    found = calibrate(pairs)
    assert not found.beta[1:].any()
    at = np.array([2.5e6]), np.array([2.5e7])
    assert abs(found.offset(*at)[0] - 0.005) < 0.002 and np.linalg.norm(found.error(*at)) < 0.002


def test_a_fit_takes_decayed_losses_and_corrected_merged_ones(tables):
    reading = prepare(replace(tables, name="s", settings=MERGED))
    points = reading.groups["llama"]
    merged = np.array(["merged at" in run for run in points.run])
    assert merged.sum() > 20 and (~merged).sum() == 18 and set(points.trunk[merged]) <= set(points.trunk)
    at = set(zip(points.trunk, points.n_tokens, strict=True))
    assert len(at) == len(points), "no training counts twice"
    assert reading.dropped[FAR] > 0 and reading.n_read == len(points) + sum(reading.dropped.values())
    off = np.log(points.loss / decayed(points.n_params, points.n_tokens))
    assert abs(off[merged].mean()) < 0.001
    assert points.shift.shape == (len(points), 3) and not points.shift[~merged].any() and points.shift_df == (2, 2, 8)
    drawn = points.common(20_000, 0)[:, merged]
    within = points.shift[merged][:, 2:] * math.sqrt(8 / 6)  # the variance of Student's t; that of two df has none
    spread = [np.quantile(drawn, q, axis=0) for q in (0.025, 0.975)]
    middle = np.linalg.norm(points.shift[merged][:, :2], axis=1)
    assert (spread[1] - spread[0] > 2 * 0.9 * 4.3 * middle).all() and (spread[1] - spread[0] > 3 * within[:, 0]).all()
    assert not points.take(~merged).common(10, 0).any()


def test_the_fits_of_every_approach(tables):
    fits = fit_study(replace(tables, name="s", settings=MERGED))
    assert "rows of merged weights, less their offset" in fits.points["text"]
    assert "merged weights" in fits.conventions["L"]
    assert {law.approach for law in fits.laws} == {"isoflop", "parametric"} and not fits.not_fitted
    for one in (law.a for law in fits.laws):
        assert one.low < 0.5 < one.high and abs(one.value - 0.5) < 0.02


def test_too_few_pairs_are_one_line(tmp_path):
    rng = np.random.default_rng(0)
    for size in ("14k", "55k"):
        write_merged(tmp_path / "s", size, (0.5, 1.0), rng, 2)
    tables = load_tables(tmp_path / "s")
    merged = envelopes_of(tables, FitSettings(loss="validation")).merged["llama"]
    assert len(merged.pairs) == 2 and merged.offset.reason == "needs 3 pairs at 2 sizes"
    with pytest.raises(InputError, match="llama has 2 pairs of a decayed loss and its trunk's merged loss") as error:
        envelopes_of(tables, MERGED)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="points merged needs loss validation"):
        FitSettings(points="merged")


def test_the_report_shows_the_pairs(tables):
    fits = envelopes_of(tables, FitSettings(loss="validation"))
    (row,) = merged_rows(fits)
    assert row["architecture"] == "LLaMA" and row["pairs"] == "12 of 3 trunks"
    mean = fits.merged["llama"].offset.value
    assert row["merged above decayed"].startswith(f"{mean:+.2%} [+") and row["merged above decayed"].value == mean
    few = MergedOffset((), Estimate(reason="needs co-trained pairs"))
    (row,) = merged_rows(replace(fits, merged={"my-model": few}))
    assert row["architecture"] == "my-model" and row["merged above decayed"] == "needs co-trained pairs", "a hyphen"
    assert "No fit uses" in merged_notes(fits)[1] and merged_rows(replace(fits, merged={})) == []
