"""Nuisance axes against worlds whose best value is known, and the groups that the others make."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.fit import L_OPT
from analysis.fits.grouping import grouped
from analysis.fits.prepare import prepare
from analysis.fits.settings import FitSettings
from analysis.report.nuisance import nuisance_notes, nuisance_rows
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


def test_best_is_the_lowest_mean_over_the_seeds_that_all_values_have(tmp_path):
    """One seed alone would choose lr=1; the value with an extra, unmatched lucky seed must not gain from it."""
    losses = {(1, 0): 0.000, (1, 1): 0.050, (2, 0): 0.009, (2, 1): 0.011, (4, 0): 0.030, (4, 1): 0.030, (4, 2): -0.2}
    runs = {key: write(tmp_path, "tnl", "14k", key[1], shift, **at(key[0])) for key, shift in losses.items()}
    failed = write(tmp_path, "tnl", "14k", 0, state="failed", **at(8))
    tables = grouped(load_tables(tmp_path), FitSettings(**SETTINGS, nuisance={"lr": "best"}))
    (cell,) = tables.nuisance
    assert (cell.group, cell.size, cell.chosen, cell.n_seeds) == ("tnl", "14k", "lr=2", 2)
    losses = {tried.value: tried.loss for tried in cell.values}
    assert losses["lr=1"] / losses["lr=2"] == pytest.approx(np.exp(0.015)) and losses["lr=8"] is None
    assert cell.margin == pytest.approx(0.015)
    left = tables.runs.set_index("run_id")["left_out"]
    assert set(left.index[left == ""]) == {runs[2, 0], runs[2, 1], failed}
    assert left[runs[1, 0]] == "lr=2 ends lower than lr=1"
    fits = envelopes_of(load_tables(tmp_path), FitSettings(**SETTINGS, nuisance={"lr": "best"}))
    assert [group.name for group in fits.groups] == ["tnl"] and fits.group("tnl").sizes[0].n_seeds == 2
    assert fits.nuisance == (cell,) and len(fits.left_out) == 5
    lines = nuisance_notes(fits)
    assert "without lr=8 (1 failed): TNL 14k" in lines
    assert any(line.startswith("5 runs left out of the fits, as another value") for line in lines)
    assert nuisance_rows(fits)[0]["taken"] == "lr=2"


def test_an_optimum_at_the_edge_and_a_tie_are_told(tmp_path):
    for lr, shift in ((1, 0.0), (2, 0.01)):
        write(tmp_path, "tnl", "14k", shift=shift, **at(lr))
        write(tmp_path, "tnl", "25k", shift=0.0, **at(lr))
    fits = envelopes_of(load_tables(tmp_path), FitSettings(**SETTINGS, nuisance={"lr": "best"}))
    assert [cell.chosen for cell in fits.nuisance] == ["lr=1", "lr=1"]
    lines = nuisance_notes(fits)
    assert "warning: lr=1 is the smallest tried, and its optimum may lie beyond: TNL 14k, 25k" in lines
    assert "two values end equally low, and the first was taken: TNL 25k" in lines


def test_a_value_that_noise_may_have_chosen_is_doubted(tmp_path):
    """s = 0.0071 from two seeds at each of two sizes, so a difference of means has the standard error 0.0071."""
    for size in ("14k", "25k"):
        for lr, shift in ((1, 0.001), (2, 0.0), (4, 0.5)):
            for seed in (0, 1):
                write(tmp_path, "tnl", size, seed, shift + 0.01 * seed, **at(lr))
    for lr, shift in ((1, 0.1), (2, 0.0), (4, 0.5)):
        write(tmp_path, "tnl", "55k", 0, shift, **at(lr))
    settings = FitSettings(**SETTINGS, nuisance={"lr": "best"})
    fits = envelopes_of(load_tables(tmp_path), settings)
    assert fits.seed_noise.s == pytest.approx(0.01 / 2**0.5)
    lines = nuisance_notes(fits)
    assert "lr=2 is not distinguishable from lr=1 by the noise between seeds: TNL 14k, 25k" in lines
    assert not any("lr=4" in line for line in lines if "not distinguishable" in line)
    quiet = nuisance_notes(replace(fits, seed_noise=None))
    assert any(line.startswith("no seeds measure the noise, so nobody knows") for line in quiet)


def test_values_that_cannot_be_judged(tmp_path):
    """One value failed, has not begun, or is of no run."""
    for size in ("14k", "25k", "55k", "98k"):
        for decay, shift in ((1, 0.0), (2, 0.05), (4, 0.4)):
            if decay != 4 or size in ("14k", "25k"):
                state = "failed" if (size, decay) == ("25k", 4) else "done"
                write(tmp_path, "tnl", size, 0, shift, state=state, **{"training.weight_decay": decay})
    ids = [*load_tables(tmp_path).runs["run_id"], "tnl-55k-c256-s0-weight_decay4"]
    fits = envelopes_of(load_tables(tmp_path, ids), FitSettings(**SETTINGS, nuisance={"weight_decay": "best"}))
    assert {
        "without weight_decay=4 (1 failed): TNL 25k",
        "without weight_decay=4 (not begun): TNL 55k, 98k",
    } < set(nuisance_notes(fits))


def test_an_architecture_that_loses_all_runs_is_told(tmp_path):
    """All values of the first have one run, which failed; the longest branch of the second takes a value that it has
    not."""
    for size in ("14k", "25k"):
        for decay in (1, 2):
            n_tokens = LENGTH if (size, decay) == ("14k", 1) else 5 * BATCH  # too short
            state = "failed" if (size, decay) == ("14k", 1) else "done"
            write(tmp_path, "tnl", size, n_tokens=n_tokens, state=state, **{"training.weight_decay": decay})
    settings = FitSettings(**SETTINGS, nuisance={"weight_decay": "best"})
    fits = envelopes_of(load_tables(tmp_path), settings)
    assert not fits.group("tnl").fitted and "warning: no value can be judged" in nuisance_notes(fits)[0]
    assert [(cell.size, cell.chosen) for cell in fits.nuisance] == [("14k", None)]
    with pytest.raises(InputError, match="1 at a value of a nuisance axis that is not the best, or cannot be judged"):
        prepare(replace(load_tables(tmp_path), name="s", settings=settings))


def test_branches_of_one_trunk_take_one_value(tmp_path):
    """That of the longest, although the other ends lower at the shorter one."""
    trunks, made = {}, {}
    for lr, ends in ((1, (0.0, 0.03)), (2, (0.02, 0.0))):
        for n, shift in zip((50, 100), ends, strict=True):
            trunk = write(tmp_path, "tnl", "14k", shift=shift, n_tokens=n * BATCH, **at(lr))
            made[lr, n] = f"{trunk}-d{n}"
            trunks[made[lr, n]] = trunk
            named_anew((tmp_path / "runs" / trunk).rename(tmp_path / "runs" / made[lr, n]))
    read = load_tables(tmp_path)
    read = replace(read, runs=read.runs.assign(trunk=read.runs["run_id"].map(trunks)))
    tables = grouped(read, FitSettings(**SETTINGS, nuisance={"lr": "best"}))
    cells = {cell.length: cell for cell in tables.nuisance}
    assert {cells[name].chosen for name in ("d50", "d100")} == {"lr=2"}
    assert cells["d50"].margin == pytest.approx(-0.02)
    left = tables.runs.set_index("run_id")["left_out"]
    assert left[made[1, 50]] == "lr=2 ends lower than lr=1 at the longest branch" and left[made[2, 50]] == ""


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
    assert {cell.chosen for cell in fits.nuisance} == {"lr=1"}
    # each group has the law of a study of its own
    alone = tmp_path / "alone"
    for size, n_tokens in (("14k", 100), ("25k", 150), ("55k", 240), ("98k", 400)):
        write_run(alone, "tnl", size, n_tokens * BATCH, shift=0.03)
    plain = envelopes_of(load_tables(alone), FitSettings(**SETTINGS, range={"tnl": [1e8, 1e12]}))
    mine, other = (one.law(L_OPT).exponent.value for one in (plain.envelope("tnl"), fits.envelope(groups[3])))
    assert mine == pytest.approx(other)
    # two studies whose contexts differ for no reason are not pooled, these points are
    study = replace(load_tables(tmp_path), name="s", settings=settings)
    assert pool([study]) is study
    (tmp_path / "results").mkdir()
    write_json((tmp_path / "results" / "fits.json"), fits.to_dict())
    laws = load_laws(str(tmp_path))
    assert sorted(laws.archs) == groups


def test_lengths_are_the_d_of_the_laws_and_no_group(tmp_path):
    for n_tokens, shift in ((50, 0.0), (100, 0.0)):
        for lr in (1, 2):
            point = {"training.n_tokens": n_tokens * BATCH, "training.lr": lr}
            best = lr == (1 if n_tokens == 50 else 2)
            write(tmp_path, "tnl", "14k", shift=shift if best else 0.1, n_tokens=n_tokens * BATCH, **point)
    tables = grouped(load_tables(tmp_path), FitSettings(**SETTINGS, nuisance={"lr": "best"}))
    assert set(tables.runs["group"]) == {"tnl"}
    assert {(cell.length, cell.chosen) for cell in tables.nuisance} == {
        (f"n_tokens={50 * BATCH}", "lr=1"),
        (f"n_tokens={100 * BATCH}", "lr=2"),
    }


def test_pools_agree_in_how_a_nuisance_is_resolved(tmp_path):
    studies = []
    for name, nuisance in (("one", {"lr": "best"}), ("two", {})):
        write(tmp_path / name, "tnl", "14k", **at(1))
        studies.append(
            replace(load_tables(tmp_path / name), name=name, settings=FitSettings(**SETTINGS, nuisance=nuisance))
        )
    with pytest.raises(InputError, match=r"differ in grid\.nuisance"):
        pool(studies)
