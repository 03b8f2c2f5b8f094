"""The approaches on a study's directory whose surfaces are known: what is fitted, compared and priced."""

import json
from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.approaches import APPROACHES, Options, fit_groups, options_of
from analysis.fits.compared import POINTS_A_RUN, compare_study, views_of
from analysis.fits.pairwise import WORSE
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study, runs_of_study
from analysis.fits.study_fits import fits_of
from analysis.report.laws import check_rows
from analysis.runs import load_tables

from .synthetic import SIZES, power_world, write_run

BETTER = 0.93  # of both terms: needs 1 - 0.93^(1 / 0.15) less compute, 38%


def better_world(n_params, n_tokens):
    return 0.7 + BETTER * power_world(n_params, n_tokens)


def world(n_params, n_tokens):
    return 0.7 + power_world(n_params, n_tokens)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("studies") / "two"
    rng = np.random.default_rng(0)
    for size, n_params in SIZES.items():
        shared = 0.004 * rng.standard_normal()  # the batches that both read
        for arch, own in (("llama", world), ("tnl", better_world)):
            shift = shared + 0.0008 * rng.standard_normal()
            write_run(directory, arch, size, int(3e12 / 6 / n_params), own, shift=shift)
    tables = load_tables(directory)
    runs = tables.runs.assign(hardware="a GPU", tokens_per_s=1e9 / tables.runs["n_params_non_embedding"])
    return replace(tables, runs=runs, name="two", settings=FitSettings(smoothing_tokens=10_000))


@pytest.fixture(scope="module")
def fits(study):
    return fit_study(study)


def test_views_count_compute_and_size_in_several_ways(study):
    views = views_of(study)
    assert list(views) == [
        "C exact, N without embeddings",
        "C exact, N with embeddings",
        "C measured seconds, N without embeddings",
        "C 6nd, N without embeddings",
    ]
    assert all(len(group) <= POINTS_A_RUN * len(SIZES) for groups in views.values() for group in groups)
    plain, more, seconds, _ = (groups[0] for groups in views.values())
    np.testing.assert_allclose(more.n_params - plain.n_params, 6000)
    np.testing.assert_allclose(seconds.flops, seconds.n_tokens * seconds.n_params / 1e9)


def test_ends_alone_are_what_every_approach_and_comparison_reads(study):
    ends, curves = (prepare(study, points=points).groups for points in ("ends", "curves"))
    for groups in views_of(study, "ends").values():
        assert all(len(group) == group.n_runs == len(SIZES) for group in groups)
    options = options_of(study.settings)
    computed = fit_groups(runs_of_study(study, ends, curves, ends_alone=True), APPROACHES, options)
    assert not [result for result in computed.results if result.n_points > result.n_runs]
    outcome = {failure.approach: failure.reason for failure in computed.failed if failure.group == "llama"}
    assert "--points ends leaves one row a run" in outcome["envelope"]
    whole = fit_groups(runs_of_study(study, ends, curves), APPROACHES, options)
    assert {"envelope", "isoflop"} <= {result.approach for result in whole.results}


def test_the_surface_of_each_architecture(fits):
    fit = fits.fit("llama", "parametric")
    assert fit.n_runs == len(SIZES) and fit.verdict.reasons
    for name, truth in (("a", 0.5), ("alpha", 0.3), ("beta", 0.3), ("E", 0.7)):
        low, high = fit.parameters[name].interval
        assert low <= truth <= high


def test_the_better_architecture_needs_less_compute_under_every_view(fits):
    (compared,) = fits.comparisons
    for name, view in compared.views.items():
        comparison = view.at("llama", "tnl")
        assert view.archs[0] == "tnl" and comparison.ratio.low <= BETTER ** (-1 / 0.15) <= comparison.ratio.high, name
    pair = compared.pair("llama", "tnl", fits.verdicts[0].against("llama", "tnl"))
    assert pair.compute["C exact, N without embeddings"].verdict == WORSE and pair.verdict == WORSE


def test_a_way_of_counting_that_runs_do_not_tell_has_its_reason(study, monkeypatch):
    monkeypatch.setattr("analysis.fits.compared.N_REPLICATES", 20)
    (compared,) = compare_study(with_runs(study, study.runs.assign(hardware=None)), Options())
    reasons = {name: view.reason for name, view in compared.views.items() if view.reason}
    assert list(reasons) == ["C measured seconds, N without embeddings"] and compared.main is not None
    assert "hardware or speed is not recorded" in next(iter(reasons.values()))


def test_it_is_read_back_as_it_was_written(fits):
    stored = json.loads(json.dumps(fits.to_dict(), allow_nan=False))
    assert fits_of(stored).to_dict() == fits.to_dict() and fits_of(stored).laws == fits.laws
    for wrong in ({"fits": [{"approach": "envelope"}]}, {"settings": None}, {"groups": 3}, {"more": 1}):
        with pytest.raises(ValueError, match="validation error"):
            fits_of(stored | wrong)


def with_runs(study, runs):
    return replace(study, runs=runs, name="some")


def test_one_architecture_or_no_run_gives_a_reason(study):
    runs = study.runs
    alone = fit_study(with_runs(study, runs[runs["arch"] == "tnl"]))
    assert alone.comparisons[0].reason == "a comparison needs two architectures"
    assert {law.group for law in alone.laws} == {"tnl"}
    none = fit_study(with_runs(study, runs.assign(state="running")))
    assert "no run can be fitted" in none.comparisons[0].reason and none.laws == []
    few = fit_study(with_runs(study, runs[runs["size"].isin(["14k", "25k"])]))
    reasons = {(law.group, law.approach): law.reason for law in few.not_fitted}
    assert "needs 3 or more different N" in reasons["llama", "parametric"]
    assert all("needs" in view.reason for view in few.comparisons[0].views.values())


def test_the_report_has_every_check(fits):
    rows = check_rows(fits)
    assert {row["approach"] for row in rows} >= {"envelope", "parametric"}
    assert all({"inside", "fits", "rehearsed", "stable"} <= set(row) for row in rows)
