"""The groups that axes make, and nuisance axes, which make none."""

from dataclasses import replace

import pytest

from analysis.fits.fit import L_OPT
from analysis.fits.prepare import HIGHER, prepare
from analysis.fits.seeds import OTHER_RECIPE
from analysis.fits.settings import FitSettings
from analysis.run_table import pool
from analysis.runs import load_tables
from arch.errors import InputError
from data.files import read_json, write_json
from flops.laws import load_laws
from tests.analysis.fits.built import envelopes_of
from tests.analysis.fits.synthetic import BATCH, named_anew, write_run

LENGTH = 100 * BATCH
SETTINGS = {"smoothing_tokens": 10 * BATCH, "n_replicates": 20}


def write(folder, arch, size, seed=0, shift=0.0, n_tokens=LENGTH, state="done", **point):
    """A run at a point of the axes, with the name of that point."""
    run_id = write_run(folder, arch, size, n_tokens, seed=seed, shift=shift, state=state)
    named = f"{run_id}-" + "-".join(f"{field.partition('.')[2]}{value}" for field, value in point.items())
    (folder / "runs" / run_id).rename(folder / "runs" / named)
    named_anew(folder / "runs" / named)
    path = folder / "runs" / named / "run.json"
    record = read_json(path)
    record["spec"]["point"] = point
    for field, value in point.items():
        section = record["spec"].setdefault(field.partition(".")[0], {})
        section[field.partition(".")[2]] = value
    record["model"] = {"context_length": point.get("model.context_length", 256)}
    write_json(path, record)
    return named


def at(lr, **more):
    return {"training.lr": lr, **more}


def test_of_a_nuisance_axis_the_value_of_the_lowest_mean_over_seeds_stays_at_each_size_and_length(tmp_path):
    """One seed alone would choose lr=1 at 14k; another length has a best value of its own."""
    shifts = {("14k", 1, 0): 0.0, ("14k", 1, 1): 0.05, ("14k", 2, 0): 0.009, ("14k", 2, 1): 0.011}
    shifts |= {("25k", 1, 0): 0.0, ("25k", 2, 0): 0.02}
    runs = {key: write(tmp_path, "tnl", key[0], key[2], shift, **at(key[1])) for key, shift in shifts.items()}
    half = {lr: write(tmp_path, "tnl", "55k", 0, 0.1 * lr, LENGTH // 2, **at(lr)) for lr in (1, 2)}
    full = {lr: write(tmp_path, "tnl", "55k", 1, -0.1 * lr, **at(lr)) for lr in (1, 2)}
    write(tmp_path, "tnl", "25k", 0, -1.0, state="failed", **at(8))
    settings = FitSettings(**SETTINGS, nuisance={"lr": "best"})
    read = prepare(replace(load_tables(tmp_path), settings=settings))
    kept = {runs["14k", 2, 0], runs["14k", 2, 1], runs["25k", 1, 0], half[1], full[2]}
    assert list(read.groups) == ["tnl"] and set(read.groups["tnl"].run) == kept
    assert read.dropped[HIGHER] == 5 and read.dropped["not done"] == 1
    fits = envelopes_of(load_tables(tmp_path), settings)
    reasons = {run.run_id: run.reason for run in fits.group("tnl").left_out}
    assert reasons[runs["14k", 1, 0]] == reasons[runs["25k", 2, 0]] == OTHER_RECIPE and half[1] in reasons


def test_the_other_axes_make_groups_that_are_compared_at_equal_points(tmp_path):
    for arch, shift in (("tnl", 0.0), ("llama", 0.05)):
        for size, n_tokens in (("14k", 100), ("25k", 150), ("55k", 240), ("98k", 400)):
            for context, more in ((256, 0.0), (512, 0.02)):
                for lr in (1, 2):
                    point = {"model.context_length": context, "training.lr": lr}
                    write(tmp_path, arch, size, shift=shift + more + 0.01 * lr, n_tokens=n_tokens * BATCH, **point)
    settings = FitSettings(**SETTINGS, nuisance={"lr": "best"}, range={"tnl": [1e8, 1e12]})
    fits = envelopes_of(load_tables(tmp_path), settings)
    groups = [f"{arch}, context_length={c}" for arch in ("llama", "tnl") for c in (256, 512)]
    assert sorted(group.name for group in fits.groups) == groups
    assert {(group.arch, group.point) for group in fits.groups} == {
        (arch, f"context_length={c}") for arch in ("llama", "tnl") for c in (256, 512)
    }
    assert all(group.n_runs == 4 for group in fits.groups)
    assert fits.group("tnl, context_length=256").range_stated
    assert [(lowest.at, list(lowest.archs)) for lowest in fits.verdicts] == [
        (f"context_length={c}", [f"tnl, context_length={c}", f"llama, context_length={c}"]) for c in (256, 512)
    ]
    left = [run for group in fits.groups for run in group.left_out]
    assert len(left) == 16 and all(run.run_id.endswith("-lr2") for run in left)
    # each group has the law of a study of its own
    alone = tmp_path / "alone"
    for size, n_tokens in (("14k", 100), ("25k", 150), ("55k", 240), ("98k", 400)):
        write_run(alone, "tnl", size, n_tokens * BATCH, shift=0.03)
    plain = envelopes_of(load_tables(alone), FitSettings(**SETTINGS, range={"tnl": [1e8, 1e12]}))
    mine, other = (fit.law(L_OPT).exponent.value for fit in (plain.envelope("tnl"), fits.envelope(groups[3])))
    assert mine == pytest.approx(other)
    # two studies whose contexts differ for no reason are not pooled, these points are
    study = replace(load_tables(tmp_path), name="s", settings=settings)
    assert pool([study]) is study
    (tmp_path / "results").mkdir()
    write_json((tmp_path / "results" / "fits.json"), fits.to_dict())
    laws = load_laws(str(tmp_path))
    assert sorted(laws.archs) == groups


def test_pools_agree_in_how_a_nuisance_is_resolved(tmp_path):
    studies = []
    for name, nuisance in (("one", {"lr": "best"}), ("two", {})):
        write(tmp_path / name, "tnl", "14k", **at(1))
        studies.append(
            replace(load_tables(tmp_path / name), name=name, settings=FitSettings(**SETTINGS, nuisance=nuisance))
        )
    with pytest.raises(InputError, match=r"differ in grid\.nuisance"):
        pool(studies)
