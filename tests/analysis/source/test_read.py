"""One way to read runs, whoever trained them: a study's directory, a file of its results, anybody's table."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.fits.points import CURVES
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.run_table import RunTable
from analysis.source.parquet import result_files
from analysis.source.read import read_runs
from arch.errors import InputError
from tests.analysis.fits.built import envelopes_of
from tests.analysis.fits.synthetic import SIZES, write_run

SETTINGS = FitSettings(smoothing_tokens=20_480, flops="6nd")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> RunTable:
    folder = tmp_path_factory.mktemp("s") / "small"
    for size in list(SIZES)[:3]:
        for seed in (0, 1):
            write_run(folder, "tnl", size, 400_000, seed=seed, shift=0.002 * seed)
    return replace(read_runs(folder), settings=SETTINGS)


def test_a_file_of_results_is_the_study(study, tmp_path):
    (tmp_path / "c.parquet").write_bytes(result_files(study)["curves"])
    read = read_runs(tmp_path / "c.parquet")
    assert (read.name, read.settings, read.origin) == ("small", SETTINGS, None)
    assert envelopes_of(read) == envelopes_of(study)
    for points in ("ends", CURVES):
        assert prepare(read, points=points).to_dict() == prepare(study, points=points).to_dict()


def test_anybodys_table_is_prepared_as_a_study_is(study, tmp_path):
    """With its settings it is smoothed too, and its points are those of the study, C by its own column."""
    rows = study.curves[["run_id", "n_params_non_embedding", "n_tokens", "flops_6nd", "loss", "arch"]]
    rows.to_csv(tmp_path / "t.csv", index=False)
    table = read_runs(tmp_path / "t.csv")
    assert table.origin is not None and table.settings.smoothing_tokens == 0 and table.evals.empty
    raw = prepare(table, points=CURVES)
    assert len(raw.groups[""]) == len(rows) and raw.dropped == {}
    smooth = SETTINGS.model_copy(update={"curve_rows": 0})
    of_table = prepare(replace(table, settings=smooth), CURVES).groups[""]
    whole = prepare(study.under(None, curve_rows=0), points=CURVES).groups["tnl"]
    for run in dict.fromkeys(whole.run.tolist()):
        first, other = (points.take(points.run == run) for points in (of_table, whole))
        kept = first.n_tokens >= other.n_tokens.min()  # the study's begin after their warm-up
        for name in ("n_tokens", "loss"):
            assert np.array_equal(getattr(first, name)[kept], getattr(other, name))
        assert first.flops[kept] == pytest.approx(other.flops, rel=1e-3)
    with pytest.raises(InputError, match="is no study: fit its points"):
        fit_study(table)


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: does not exist"):
        read_runs(tmp_path / "none.csv")
    with pytest.raises(InputError, match="does not exist: give the directory of a study"):
        read_runs(tmp_path / "none")
    frame = pd.DataFrame({"params": [1e6], "tokens": [1e8], "loss": [3.0]})
    assert read_runs(frame, group="params").runs["arch"].tolist() == ["1000000.0"]


def test_a_damaged_fit_is_one_line(tmp_path):
    write_run(tmp_path, "tnl", "14k", 40_960)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "fits.json").write_text('{"settings": {}}')
    with pytest.raises(InputError, match=r"results/fits\.json: cannot be read .*; `scaling fit study` makes it again"):
        read_runs(tmp_path)
