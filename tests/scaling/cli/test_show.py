"""The summary of a study's fits for a terminal."""

from analysis.fits.study_fits import UnusedRun
from scaling.cli.options import RunsOptions
from scaling.cli.run import _next_step
from scaling.cli.show import show_summary

from ...analysis.fits.built import group_of, study_of


def test_runs_that_are_done_and_in_no_fit_are_counted_by_their_reason():
    unused = [UnusedRun(f"tnl-{i}", "done", "it has no loss at the end of a decay") for i in range(3)]
    waiting = UnusedRun("tnl-3", "waiting", "it has no loss at the end of a decay")
    fits = study_of(groups=[group_of("tnl", left_out=(*unused, waiting))])
    assert "3 runs are not in the fits: it has no loss at the end of a decay\nmore" in show_summary(fits, ["more"])
    assert "not in the fits" not in show_summary(study_of(groups=[group_of("tnl", left_out=(waiting,))]), ["more"])


def test_where_no_run_is_in_a_fit_the_next_step_is_not_more_sizes():
    study = RunsOptions(study="four-architectures")
    request = study.request()
    assert "more sizes or seeds" in _next_step(study, request, study_of(groups=[group_of("tnl", n_runs=2)]))
    assert "`scaling status four-architectures`" in _next_step(study, request, study_of(groups=[group_of("tnl")]))
