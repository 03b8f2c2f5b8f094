"""Which runs are seeds of each other, and what stands for a size: of points, and of studies."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.fits.envelope import fit_envelope
from analysis.fits.points import Points
from analysis.fits.prepare import prepare
from analysis.fits.seeds import not_in_curves, seed_groups, seed_noise_of, size_curves
from analysis.fits.settings import FitSettings
from analysis.fits.study import WholeCurves
from analysis.report.methods import interval_text
from analysis.report.runs import unused_lines
from analysis.run_table import pool
from analysis.runs import load_tables
from data.files import read_json, write_json

from .built import envelopes_of
from .synthetic import SIZES, named_anew, write_run

SETTINGS = FitSettings(smoothing_tokens=20_480, flops="6nd", n_replicates=40)
S = 0.003


D = np.geomspace(1e8, 1e10, 40)
LADDER = np.geomspace(1e6, 3e7, 6)


def drawn(trunks, branches=1, trunk_noise=0.01, branch_noise=0.0, seed=0, ends=(1.0,)):
    """Curves of LADDER on a known surface; the j-th trunk of a size ends after `ends[j]` of the tokens."""
    rng, parts = np.random.default_rng(seed), []
    for n in LADDER:
        for j in range(trunks):
            shared, d = trunk_noise * rng.standard_normal(), D * ends[j % len(ends)]
            for k in range(branches):
                shift = shared + branch_noise * rng.standard_normal()
                loss = (1 + (n / 1e7) ** -0.3 + (d / 1e9) ** -0.3) * np.exp(shift)
                parts.append((np.full(len(d), n), d, loss, f"{n:.0f}-{j}-{k}", f"{n:.0f}-{j}"))
    n, d, loss = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run, trunk = (np.repeat(np.array([part[i] for part in parts], dtype=object), len(D)) for i in (3, 4))
    return Points(n, d, 6 * n * d, loss, run, trunk)


def test_branches_of_one_trunk_are_averaged_and_no_seeds():
    """The variance between trunks is the trunks' and a third of the branches'."""
    branched = drawn(1, 3, 0.01, 0.001)
    assert seed_noise_of([branched]) is None
    assert [curve.n_seeds for curve in size_curves(branched)] == [1] * 6
    assert fit_envelope(branched).a.interval is None
    noises = [seed_noise_of([drawn(3, 3, 0.01, 0.001, seed)]) for seed in range(20)]
    assert all(noise.df == 12 for noise in noises)
    assert np.mean([noise.s**2 for noise in noises]) == pytest.approx(0.01**2 + 0.001**2 / 3, rel=0.15)
    assert [curve.n_seeds for curve in size_curves(drawn(3, 3))] == [3] * 6


def test_the_longest_runs_and_branches_stand_for_a_size():
    points = drawn(2, 2)
    early = np.array([run.endswith("-1") for run in points.run]) & (points.n_tokens > 3e9)
    for left, seeds, gone in ((points.take(~early), 2, 12), (drawn(2, ends=(1.0, 0.5)), 1, 6)):
        curves = size_curves(left)
        assert all(np.exp(curve.log_c[-1]) == pytest.approx(6 * curve.n_params * 1e10) for curve in curves)
        assert [curve.n_seeds for curve in curves] == [seeds] * 6
        assert not_in_curves(left) == [f"{gone} runs that end before the longest of their size"]
        assert fit_envelope(left).left_out == tuple(not_in_curves(left))


def test_points_of_runs_of_other_lengths_are_no_seeds():
    for ends, df in (((1.0, 0.5), None), ((1.0, 0.99), 6), ((1.0, 0.97), None), ((1.0, 0.3, 0.99, 0.3), 12)):
        noise = seed_noise_of([drawn(len(ends), ends=ends)])
        assert (noise and noise.df) == df


def test_points_of_a_copy_are_no_seed():
    points = drawn(1)
    both = np.concatenate([points.run, np.array([f"{run} again" for run in points.run], dtype=object)])
    copied = replace(points.take(np.tile(np.arange(len(points)), 2)), run=both, trunk=both, cell=both)
    assert seed_noise_of([copied]) is None
    assert not_in_curves(copied) == ["6 runs with the same numbers under another run name"]
    for curve, plain in zip(size_curves(copied), size_curves(points), strict=True):
        assert curve.n_seeds == 1 and curve.log_loss.tolist() == plain.log_loss.tolist()


def test_compute_of_a_curve_is_that_of_its_size():
    """Not that of a law of cost over N, in which shapes of nearly one size are one: theirs differ by half."""
    points = drawn(1)
    shape = points.n_params == LADDER[2]
    near = replace(points.take(shape), n_params=points.n_params[shape] * 1.01, flops=2.0 * points.flops[shape])
    names = ("n_params", "n_tokens", "flops", "loss")
    both = Points(
        *(np.concatenate([getattr(points, name), getattr(near, name)]) for name in names),
        np.concatenate([points.run, np.array([f"{run}, deeper" for run in near.run], dtype=object)]),
    )
    ends = {round(curve.n_params): float(np.exp(curve.log_c[-1])) for curve in size_curves(both)}
    assert ends[round(LADDER[2])] == pytest.approx(6 * LADDER[2] * 1e10)
    assert ends[round(LADDER[2] * 1.01)] == pytest.approx(12 * LADDER[2] * 1e10)


def write(path, shifts, size="55k", tokens=600_000, lr=1e-3, first=0):
    """Runs of one size, one a shift of log loss, with seeds from `first` on."""
    ids = []
    for seed, shift in enumerate(shifts, first):
        ids.append(write_run(path, "tnl", size, tokens, seed=seed, shift=shift))
        file = path / "runs" / ids[-1] / "run.json"
        record = read_json(file)
        record["spec"]["training"]["lr"] = lr
        write_json(file, record)
    return ids


def pooled(tmp_path, *names):
    return pool([replace(load_tables(tmp_path / name), name=name, settings=SETTINGS) for name in names])


def whole_curves(table):
    return WholeCurves.of(replace(table, settings=SETTINGS))


def test_groups_of_one_recipe_and_length():
    assert seed_groups(["", "", ""], [100, 99, 50], [1, 1, 1]) == [[2], [0, 1]]
    assert seed_groups(["a", "b", "a"], [100, 100, 100], [2.0, 1.5, 2.0]) == [[0, 2], [1]]  # b ends lower
    assert seed_groups(["a", "b"], [100, 50], [2.0, 1.5]) == [[1], [0]]  # lower, but shorter
    assert seed_groups([], [], []) == []


def test_runs_of_two_lengths_are_no_seeds(tmp_path):
    """Two short runs and two long ones: each pair is one difference of seeds, and the long ones stand for the size."""
    write(tmp_path / "short", (S, -S), tokens=400_000)
    write(tmp_path / "long", (2 * S, 0.0))
    whole = pooled(tmp_path, "short", "long")
    assert whole.dropped == {}
    read = whole_curves(whole)
    noise = read.noises().every
    assert noise.df == 2 and noise.s == pytest.approx(np.sqrt(2) * S, rel=1e-6)
    assert [group.runs for group in noise.groups] == [
        tuple(f"{name}/tnl-55k-c256-s{seed}" for seed in (0, 1)) for name in ("short", "long")
    ]
    (curve,) = read.curves("tnl", "6nd")
    assert curve.n_seeds == 2 and np.exp(curve.log_c[-1]) > 6 * 55_000 * 580_000
    of_points = seed_noise_of(list(prepare(whole, points="curves").groups.values()))
    assert of_points.df == 2 and of_points.s == pytest.approx(noise.s, rel=1e-3)


def test_one_run_of_each_length_tells_no_noise_and_says_so(tmp_path):
    write(tmp_path / "short", (S,), tokens=400_000)
    write(tmp_path / "long", (-S,), first=1)
    for name in ("one", "two"):  # sizes of one run are no matter
        write(tmp_path / "long", (0.0,), size={"one": "14k", "two": "25k"}[name])
    whole = pooled(tmp_path, "short", "long")
    fits = envelopes_of(whole, SETTINGS)
    assert fits.seed_noise is None
    both = ["long/tnl-55k-c256-s1", "short/tnl-55k-c256-s0"]
    (alone,) = fits.not_paired
    assert (alone.arch, alone.size, sorted(alone.runs)) == ("tnl", "55k", both)
    assert "No seeds of other runs of their size, and no part of that: " in interval_text(fits)
    assert f"1 run left out of the fits, runs of its size train on more tokens: {both[1]}" in unused_lines(fits)
    assert fits.group("tnl").n_runs == 3
    assert seed_noise_of(list(prepare(whole, points="curves").groups.values())) is None


def test_another_learning_rate_is_another_recipe(tmp_path):
    write(tmp_path / "worse", (0.02,), lr=3e-3)
    write(tmp_path / "better", (S, -S), first=1)
    whole = pooled(tmp_path, "worse", "better")
    read = whole_curves(whole)
    assert read.noises().every.df == 1
    (size,) = read.sizes["tnl"]
    assert size.runs == ["better/tnl-55k-c256-s1", "better/tnl-55k-c256-s2"]
    assert size.left_out == {"worse/tnl-55k-c256-s0": "runs of its size by another recipe end lower"}
    assert size.unpaired() == ["worse/tnl-55k-c256-s0"]
    for kind in ("curves", "ends"):  # as the envelope, all approaches take the recipe that ends lower
        result = prepare(whole, points=kind)
        points = result.groups["tnl"]
        assert sorted(set(points.run)) == size.runs and len(set(points.recipe)) == 1
        assert result.dropped == {"by another recipe that ends higher at the same N and D": 1}
    assert seed_noise_of([prepare(whole, points="curves").groups["tnl"]]).df == 1


def test_a_run_again_in_its_study_counts_once_for_all_approaches(tmp_path):
    """The same recipe and seed, trained twice, not bit for bit."""
    (first,) = write(tmp_path / "s", (S,))
    (again,) = write(tmp_path / "t", (-S,))
    study, twin = load_tables(tmp_path / "s"), load_tables(tmp_path / "t")
    both = {
        name: pd.concat([getattr(study, name), getattr(twin, name).assign(run_id=f"{again}-again")], ignore_index=True)
        for name in ("curves", "runs")
    }
    tables = replace(study, **both)
    (size,) = whole_curves(tables).sizes["tnl"]
    assert size.runs == [first]
    result = prepare(replace(tables, name="s", settings=SETTINGS))
    assert set(result.groups["tnl"].run) == {first}
    assert result.dropped == {"a run of the same recipe has the same seed": 1} and result.n_kept == 1


def test_branches_stay_when_studies_are_pooled(tmp_path):
    """Two branches of one trunk have its recipe and seed; only a run of another study is one of them again."""
    ids = write(tmp_path / "s", (S, 2 * S))
    tables = load_tables(tmp_path / "s")
    branched = replace(tables, runs=tables.runs.assign(trunk="a", seed=0))
    write(tmp_path / "other", (0.0,), size="25k")
    other = replace(load_tables(tmp_path / "other"), name="other", settings=SETTINGS)
    whole = pool([replace(branched, name="s", settings=SETTINGS), other])
    assert whole.dropped == {}
    assert set(whole.runs["run_id"]) == {*(f"s/{run_id}" for run_id in ids), "other/tnl-25k-c256-s0"}
    assert set(prepare(whole).groups["tnl"].trunk) == {"s/a", "other/tnl-25k-c256-s0"}
    again = pool([replace(branched, name="s", settings=SETTINGS), replace(branched, name="t", settings=SETTINGS)])
    assert again.dropped == {"with recipe and seed of a run of another study": 2} and len(again.runs) == 2


def test_storage_is_no_recipe(tmp_path):
    """How often a run saves and logs moves no loss."""
    ids = write(tmp_path / "s", (S, -S))
    file = tmp_path / "s" / "runs" / ids[1] / "run.json"
    record = read_json(file)
    record["spec"]["training"] |= {"keep_states": 5, "checkpoint_dtype": "fp32", "max_steps": None}
    write_json(file, record)
    assert load_tables(tmp_path / "s").runs["recipe"].nunique() == 1


def test_branches_of_a_trunk_are_no_seeds(tmp_path):
    """Of two trunks with two branches each, the mean of a trunk's branches is one seed."""
    ids = write(tmp_path / "s", (S, 3 * S, -S, -3 * S))
    tables = load_tables(tmp_path / "s")
    of = dict(zip(ids, ("a", "a", "b", "b"), strict=True))
    tables = replace(tables, runs=tables.runs.assign(trunk=tables.runs["run_id"].map(of)))
    read = whole_curves(tables)
    noise = read.noises().every
    assert noise.df == 1 and noise.s == pytest.approx(2 * S * np.sqrt(2), rel=1e-6)
    assert read.curves("tnl", "6nd")[0].n_seeds == 2
    points = prepare(replace(tables, name="s", settings=SETTINGS), points="curves").groups["tnl"]
    assert seed_noise_of([points]).df == 1 and sorted(set(points.trunk)) == ["a", "b"]
    assert whole_curves(replace(tables, runs=tables.runs.assign(trunk="a"))).noises().every is None


def test_a_copy_and_the_same_seed_twice_are_no_seeds(tmp_path):
    (first,) = write(tmp_path / "s", (S,))
    copy = tmp_path / "s" / "runs" / "tnl-55k-c256-s7"
    shutil.copytree(tmp_path / "s" / "runs" / first, copy)
    record = read_json(copy / "run.json")
    record["spec"]["seed"] = 7
    write_json(copy / "run.json", record)
    named_anew(copy)
    tables = load_tables(tmp_path / "s")
    (size,) = whole_curves(tables).sizes["tnl"]
    assert size.left_out == {copy.name: "the same numbers under another run name"} and len(size.runs) == 1
    curves = tables.curves.copy()
    curves.loc[curves["run_id"] == copy.name, "loss"] *= 1.001
    again = replace(tables, curves=curves, runs=tables.runs.assign(seed=0))
    assert whole_curves(again).sizes["tnl"][0].left_out == {copy.name: "a run of the same recipe has the same seed"}


def test_sizes_are_the_studys(tmp_path):
    for name in SIZES:
        write(tmp_path / "s", (0.0,), size=name)
    curves = whole_curves(load_tables(tmp_path / "s")).curves("tnl", "6nd")
    assert [curve.size for curve in curves] == list(SIZES)
