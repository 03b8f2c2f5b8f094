"""Studies as points: ends and curves, what is left out, pooling; the envelope of a table is that of the study."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from analysis.fits import approaches, tables
from analysis.fits.approaches import Runs, fit_groups
from analysis.fits.fit import QUANTITIES
from analysis.fits.points import CURVES
from analysis.fits.prepare import STOPPED, prepare
from analysis.fits.settings import FitSettings
from analysis.fits.study import runs_of_study
from analysis.run_table import pool
from analysis.runs import load_tables
from arch.errors import InputError
from data.files import read_json, write_json

from .synthetic import SIZES, named_anew, power_world, write_evals, write_run, write_study

SETTINGS = FitSettings(smoothing_tokens=20_480, flops="6nd")
BUDGETS = {size: int(4e11 / 6 / n) for size, n in SIZES.items()}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "one"
    write_study(path, tokens=BUDGETS, seed_noise=0.003)
    return path


def runs_of(path, settings=SETTINGS):
    return replace(load_tables(path), name=path.name, settings=settings)


def envelope_of(study, options):
    """By the curves of a study."""
    curves = prepare(study, points="curves").groups
    return fit_groups(runs_of_study(study, {}, curves), ["envelope"], options)


def change(path, run_id, **values):
    """Of a run's run.json."""
    file = path / "runs" / run_id / "run.json"
    record = read_json(file)
    corpus = values.pop("corpus", None)
    if corpus:
        record["spec"]["corpus"] = corpus
    write_json(file, record | values)


def test_ends_are_the_last_smoothed_loss(study):
    computed = prepare(runs_of(study))
    assert (
        computed.unit == "runs"
        and computed.n_read == computed.n_kept == 16
        and computed.six_nd == pytest.approx((1, 1, 1))
    )
    points = computed.groups["tnl"]
    assert len(points) == points.n_runs == 8 and points.convention == "6nd" and points.group == "tnl"
    smallest = points.run == "tnl-14k-c256-s0"
    assert points.n_params[smallest] == 14_000 and points.n_tokens[smallest] < BUDGETS["14k"]
    assert points.n_tokens[smallest] == pytest.approx(BUDGETS["14k"], rel=0.01)
    assert points.loss[smallest] == pytest.approx(power_world(14e3, points.n_tokens[smallest]), rel=0.02)
    assert points.size[smallest] == "14k"


def test_runs_that_saw_the_same_batches_share_a_cell(study):
    points = prepare(runs_of(study)).groups
    tnl, llama = points["tnl"], points["llama"]
    assert set(tnl.cell) == set(llama.cell)
    assert len(set(tnl.cell)) == 8  # 6 lengths with seed 0, and the same length with seeds 1 and 2


def test_held_out_losses_and_runs_that_are_not_done(tmp_path):
    ids = [write_run(tmp_path / "s", "tnl", size, 400_000) for size in ("14k", "25k")]
    write_run(tmp_path / "s", "tnl", "55k", 400_000, state="running")
    write_evals(tmp_path / "s", ids[0], [50, 195], [3.5, 3.25])
    settings = SETTINGS.model_copy(update={"loss": "validation"})
    computed = prepare(runs_of(tmp_path / "s", settings))
    points = computed.groups["tnl"]
    assert points.loss.tolist() == [3.25] and points.n_tokens.tolist() == [195 * 2048]
    assert computed.dropped == {"without enough points after warm-up": 1, "not done": 1} and computed.n_kept == 1
    with pytest.raises(InputError, match="no run can be fitted \\(2 without enough points"):
        write_run(tmp_path / "t", "tnl", "14k", 4_000)
        write_run(tmp_path / "t", "tnl", "25k", 4_000)
        prepare(runs_of(tmp_path / "t"))


def test_another_convention(study):
    exact = prepare(runs_of(study).under("paper")).groups["tnl"]
    assert exact.convention == "paper" and exact.flops == pytest.approx(7 * exact.n_params * exact.n_tokens)
    with pytest.raises(InputError, match="--convention: '6n'"):
        runs_of(study).under("6n")


def test_pooled_studies_are_one_study(tmp_path, study):
    """Two halves of a study, split by size."""
    for name, sizes in (("small", ("14k", "25k", "55k")), ("large", ("98k", "221k", "393k"))):
        for number, size in enumerate(sizes):
            run_id = write_run(tmp_path / name, "tnl", size, BUDGETS[size])
            change(tmp_path / name, run_id, spec_hash=f"{name}{number}")
    whole = pool([runs_of(tmp_path / "small"), runs_of(tmp_path / "large")])
    assert whole.dropped == {} and whole.name == "small + large"
    points = prepare(whole).groups["tnl"]
    assert len(points) == 6 and points.run[0] == "small/tnl-14k-c256-s0"
    result = envelope_of(whole, approaches.Options(n_replicates=40)).results[0]
    alone = tmp_path / "all"
    for size in SIZES:
        write_run(alone, "tnl", size, BUDGETS[size])
    expected = envelope_of(runs_of(alone), approaches.Options(n_replicates=40)).results[0]
    for name, estimate in expected.parameters.items():
        assert result.parameters[name].value == pytest.approx(estimate.value, rel=1e-12), name


def test_a_run_of_two_studies_counts_once(tmp_path):
    for name, longer in (("one", 400_000), ("two", 500_000)):
        for size, n_tokens in (("14k", 400_000), ("25k", longer)):
            write_run(tmp_path / name, "tnl", size, n_tokens)
    whole = pool([runs_of(tmp_path / "one"), runs_of(tmp_path / "two")])
    assert whole.dropped == {"with recipe and seed of a run of another study": 1}
    computed = prepare(whole)
    assert computed.n_read == 4 and computed.n_kept == 3 == len(computed.groups["tnl"])


def test_a_copied_run_under_another_seed_counts_once(tmp_path):
    for size in ("14k", "25k"):
        write_run(tmp_path / "s", "tnl", size, 400_000)
    copy = tmp_path / "s" / "runs" / "tnl-14k-c256-s1"
    shutil.copytree(tmp_path / "s" / "runs" / "tnl-14k-c256-s0", copy)
    record = read_json(copy / "run.json")
    record["spec"]["seed"] = 1
    write_json(copy / "run.json", record)
    named_anew(copy)
    for points in ("ends", "curves"):
        computed = prepare(runs_of(tmp_path / "s"), points=points)
        assert computed.groups["tnl"].n_runs == 2 and computed.dropped == {
            "the same numbers under another run name": 1,
        }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"corpus_fingerprint": "e" * 64}, "do not share one corpus \\(ffffffffffff in one and eeeeeeeeeeee in two\\)"),
        ({"model": {"context_length": 512}}, "do not share one context length \\(256 in one and 512 in two\\)"),
        ({"corpus": {"tokenizer": "cl100k_base"}}, "do not share one tokenizer \\(bytes in one and cl100k_base in two"),
    ],
)
def test_studies_that_differ_are_not_pooled(tmp_path, values, message):
    for name in ("one", "two"):
        run_id = write_run(tmp_path / name, "tnl", "14k", 400_000)
        change(tmp_path / name, run_id, model={"context_length": 256}, corpus={"tokenizer": "bytes"})
    change(tmp_path / "two", "tnl-14k-c256-s0", **values)
    with pytest.raises(InputError, match=message):
        pool([runs_of(tmp_path / "one"), runs_of(tmp_path / "two")])


def test_settings_that_differ_are_not_pooled(study):
    other = runs_of(study).under(None, smoothing_tokens=40_960, flops="exact")
    with pytest.raises(
        InputError, match=r"differ in fit.smoothing_tokens \(20480 and 40960\), fit.flops \(6nd and exact"
    ):
        pool([runs_of(study), replace(other, name="other", settings=other.settings)])
    with pytest.raises(InputError, match="two studies are called one: give each once, or rename one"):
        pool([runs_of(study), runs_of(study)])


def test_ranges_of_pooled_studies_are_put_together(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    for path, arch in ((first, "tnl"), (second, "llama")):
        write_run(path, arch, "14k", 400_000)
    ranges = {"tnl": [1e10, 1e11]}, {"llama": [2e10, 1e11]}
    studies = [runs_of(path).under(None, range=its) for path, its in zip((first, second), ranges, strict=True)]
    assert pool(studies).settings.range == ranges[0] | ranges[1]
    other = studies[1].under(None, range={"tnl": [2e10, 1e11]})
    with pytest.raises(InputError, match=r"one and two differ in fit.range of tnl .1e10 to 1e11 and 2e10 to 1e11 FLOP"):
        pool([studies[0], other])


def test_the_envelope_of_a_table_is_that_of_the_study(study):
    """The study's raw curves as somebody else's table: the same laws, but for the smoothing, which hardly matters to
    curves without noise."""
    own = runs_of(study)
    options = approaches.Options(at=(1e11,), n_replicates=50)
    of_study = envelope_of(own, options)
    read = tables.read_points(own.curves, group="arch", points="curves", convention="6nd", where=["warmup==False"])
    of_table = fit_groups(Runs({}, read.groups), ["envelope"], options)
    assert not of_study.failed and not of_table.failed
    for fit, other in zip(of_study.results, of_table.results, strict=True):
        assert fit.group == other.group and fit.n_runs == other.n_runs == 8
        assert set(fit.parameters) == {"a", "b", "L_exponent", "N_opt", "D_opt", "L_opt"}
        for name in ("a", "b", "L_exponent"):
            mine, its = fit.parameters[name], other.parameters[name]
            assert its.value == pytest.approx(mine.value, abs=2e-3)
            assert its.interval == pytest.approx(mine.interval, abs=5e-3)
        computed, expected = other.optima[0], fit.optima[0]
        assert computed.flops == 1e11
        for name in QUANTITIES:
            assert computed.of(name).value == pytest.approx(expected.of(name).value, rel=5e-3)
        json.dumps(fit.to_dict(), allow_nan=False)


def test_what_the_envelope_cannot_fit_is_told(study):
    own = runs_of(study)
    ends, curves = prepare(own).groups, prepare(own, points="curves").groups
    two = curves["tnl"].take(np.isin(curves["tnl"].size, ["14k"]))
    for points, message in ((ends["tnl"], "needs curves, several rows a run: 8 of 8 runs"), (two, "at least 2 sizes")):
        with pytest.raises(InputError, match=message):
            approaches.fit(points, "envelope")
    fits = fit_groups(Runs(ends, {}), ["envelope"], approaches.Options())
    assert not fits.results and [failure.group for failure in fits.failed] == ["llama", "tnl"]
    with pytest.raises(InputError, match="--approach: 'envelop'"):
        approaches.named("envelop")


def test_the_surface_of_whole_curves_of_a_study(study):
    """L = (N / 1.2e5)^-0.3 + (D / 2e6)^-0.3: exponents within the intervals, of which a few points a run are kept."""
    curves = prepare(runs_of(study), points="curves").groups
    computed, shares = {}, []
    for group, points in curves.items():
        asked = approaches.Options(n_replicates=100)
        result, _ = approaches.fit_with_surface(points, "parametric", None, shares.append, asked)
        computed[group] = result.parameters["alpha"].value
        assert result.parameters["a"].interval[0] < 0.5 < result.parameters["a"].interval[1]
        assert result.parameters["a"].value == pytest.approx(0.5, abs=0.05)
        assert len(points) == SETTINGS.curve_rows * points.n_runs
        ends = {run: points.n_tokens[points.run == run] for run in points.run.tolist()}
        starts = [tokens.min() / tokens.max() for tokens in ends.values()]
        assert 0.1 <= min(starts) < 0.101  # the shortest runs begin later, after their warm-up
        assert result.n_runs == 8 and result.input_hash == points.input_hash
    assert shares[-1] == 1.0 and len(computed) == 2


def test_a_size_that_has_stopped_learning_is_left_out_where_the_study_says_so(tmp_path):
    smallest = min(SIZES, key=lambda size: SIZES[size])
    rng = np.random.default_rng(0)
    for size, n_tokens in BUDGETS.items():
        for seed in (0, 1):
            shift = 0.003 * float(rng.standard_normal()) + 0.06 * (size == smallest)
            write_run(tmp_path / "one", "llama", size, n_tokens, seed=seed, shift=shift)
    kept = prepare(runs_of(tmp_path / "one"), points=CURVES)
    fewer = prepare(runs_of(tmp_path / "one", SETTINGS.model_copy(update={"stopped": "leave_out"})), points=CURVES)
    assert set(kept.groups["llama"].size) - set(fewer.groups["llama"].size) == {smallest}
    assert fewer.dropped[STOPPED] == 2 and fewer.n_kept == kept.n_kept - 2
    assert any(smallest in note and "6." in note for note in fewer.notes)
