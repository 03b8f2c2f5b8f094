"""Which runs of a study are seeds of each other, and what stands for a size."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.fits.approaches import seed_noise_of
from analysis.fits.prepare import prepare
from analysis.fits.replicates import alike
from analysis.fits.settings import FitSettings
from analysis.fits.study import WholeCurves
from analysis.report.laws import law_notes
from analysis.report.methods import interval_text
from analysis.run_table import pool
from analysis.runs import load_tables
from data.files import read_json, write_json

from .built import envelopes_of
from .synthetic import SIZES, named_anew, write_run

SETTINGS = FitSettings(smoothing_tokens=20_480, flops="6nd", n_replicates=40)
S = 0.003


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


def test_groups_of_one_recipe_and_length():
    assert alike(["", "", ""], [100, 99, 50], [1, 1, 1]) == [[2], [0, 1]]
    assert alike(["a", "b", "a"], [100, 100, 100], [2.0, 1.5, 2.0]) == [[0, 2], [1]]  # b ends lower
    assert alike(["a", "b"], [100, 50], [2.0, 1.5]) == [[1], [0]]  # lower, but shorter
    assert alike([], [], []) == []


def test_runs_of_two_lengths_are_no_seeds(tmp_path):
    """Two short runs and two long ones: each pair is one difference of seeds, and the long ones stand for the size."""
    write(tmp_path / "short", (S, -S), tokens=400_000)
    write(tmp_path / "long", (2 * S, 0.0))
    whole = pooled(tmp_path, "short", "long")
    assert whole.dropped == {}
    read = WholeCurves.of(whole, SETTINGS)
    noise = read.noises().every
    assert noise.df == 2 and noise.s == pytest.approx(np.sqrt(2) * S, rel=1e-6)
    assert [one.runs for one in noise.groups] == [
        tuple(f"{name}/tnl-55k-c256-s{seed}" for seed in (0, 1)) for name in ("short", "long")
    ]
    (curve,) = read.by_convention("tnl")["6nd"]
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
    assert f"{both[1]}: enters no curve of its size: runs of its size train on more tokens" in law_notes(fits)
    assert fits.group("tnl").n_runs == 3
    assert seed_noise_of(list(prepare(whole, points="curves").groups.values())) is None


def test_another_learning_rate_is_another_recipe(tmp_path):
    write(tmp_path / "worse", (0.02,), lr=3e-3)
    write(tmp_path / "better", (S, -S), first=1)
    whole = pooled(tmp_path, "worse", "better")
    read = WholeCurves.of(whole, SETTINGS)
    assert read.noises().every.df == 1
    (size,) = read.sizes["tnl"]
    assert size.runs == ["better/tnl-55k-c256-s1", "better/tnl-55k-c256-s2"]
    assert size.left_out == {"worse/tnl-55k-c256-s0": "runs of its size by another recipe end lower"}
    assert size.unpaired() == ["worse/tnl-55k-c256-s0"]
    for kind in ("curves", "ends"):  # as the envelope, all approaches take the recipe that ends lower
        found = prepare(whole, points=kind)
        points = found.groups["tnl"]
        assert sorted(set(points.run)) == size.runs and len(set(points.recipe)) == 1
        assert found.dropped == {"by another recipe that ends higher at the same N and D": 1}
    assert seed_noise_of([prepare(whole, points="curves").groups["tnl"]]).df == 1


def test_a_run_again_in_its_study_counts_once_for_all_approaches(tmp_path):
    """The same recipe and seed, trained twice, not bit for bit."""
    (first,) = write(tmp_path / "s", (S,))
    (again,) = write(tmp_path / "t", (-S,))
    one, two = load_tables(tmp_path / "s"), load_tables(tmp_path / "t")
    both = {
        name: pd.concat([getattr(one, name), getattr(two, name).assign(run_id=f"{again}-again")], ignore_index=True)
        for name in ("curves", "runs")
    }
    tables = replace(one, **both)
    (size,) = WholeCurves.of(tables, SETTINGS).sizes["tnl"]
    assert size.runs == [first]
    found = prepare(replace(tables, name="s", settings=SETTINGS))
    assert set(found.groups["tnl"].run) == {first}
    assert found.dropped == {"a run of the same recipe has the same seed": 1} and found.n_kept == 1


def test_branches_stay_when_studies_are_pooled(tmp_path):
    """Two branches of one trunk have its recipe and seed; only a run of another study is one of them again."""
    ids = write(tmp_path / "s", (S, 2 * S))
    tables = load_tables(tmp_path / "s")
    branched = replace(tables, runs=tables.runs.assign(trunk="a", seed=0))
    write(tmp_path / "other", (0.0,), size="25k")
    other = replace(load_tables(tmp_path / "other"), name="other", settings=SETTINGS)
    whole = pool([replace(branched, name="s", settings=SETTINGS), other])
    assert whole.dropped == {} and set(whole.runs["run_id"]) == {*(f"s/{one}" for one in ids), "other/tnl-25k-c256-s0"}
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
    read = WholeCurves.of(tables, SETTINGS)
    noise = read.noises().every
    assert noise.df == 1 and noise.s == pytest.approx(2 * S * np.sqrt(2), rel=1e-6)
    assert read.by_convention("tnl")["6nd"][0].n_seeds == 2
    points = prepare(replace(tables, name="s", settings=SETTINGS), points="curves").groups["tnl"]
    assert seed_noise_of([points]).df == 1 and sorted(set(points.trunk)) == ["a", "b"]
    one = replace(tables, runs=tables.runs.assign(trunk="a"))
    assert WholeCurves.of(one, SETTINGS).noises().every is None


def test_a_copy_and_the_same_seed_twice_are_no_seeds(tmp_path):
    (first,) = write(tmp_path / "s", (S,))
    copy = tmp_path / "s" / "runs" / "tnl-55k-c256-s7"
    shutil.copytree(tmp_path / "s" / "runs" / first, copy)
    record = read_json(copy / "run.json")
    record["spec"]["seed"] = 7
    write_json(copy / "run.json", record)
    named_anew(copy)
    tables = load_tables(tmp_path / "s")
    (size,) = WholeCurves.of(tables, SETTINGS).sizes["tnl"]
    assert size.left_out == {copy.name: "the same numbers under another run name"} and len(size.runs) == 1
    curves = tables.curves.copy()
    curves.loc[curves["run_id"] == copy.name, "loss"] *= 1.001
    again = replace(tables, curves=curves, runs=tables.runs.assign(seed=0))
    assert WholeCurves.of(again, SETTINGS).sizes["tnl"][0].left_out == {
        copy.name: "a run of the same recipe has the same seed"
    }


def test_sizes_are_the_studys(tmp_path):
    for name in SIZES:
        write(tmp_path / "s", (0.0,), size=name)
    curves = WholeCurves.of(load_tables(tmp_path / "s"), SETTINGS).by_convention("tnl")["6nd"]
    assert [curve.size for curve in curves] == list(SIZES)
