"""What goes into a bundle, and that it is the same file every time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data.files import write_json
from scaling.cli.bundle import members_of_study
from scaling.cli.corpus import data_stage
from scaling.cli.training import prepare_runs
from scaling.study.training import Training

from .conftest import Made
from .small import RUNS, finish, finished_study, line_of, read_tar, request_of, scaling, write_study


def test_it_holds_what_is_finished_and_no_weights_texts_or_states(made: Made) -> None:
    members = read_tar(made.bundle)
    index = json.loads(members[0][1])
    names = [member.name for member, _ in members]
    assert names[0] == "index.json" and set(names[1:]) == set(index["files"])
    assert not [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".log"))]
    run = f"runs/{RUNS[0]}"
    wanted = ["run.json", "metrics.jsonl", "status.json", "checkpoints/00000030/manifest.json"]
    wanted += ["checkpoints/00000030/config.json", "evals/00000030/validation.json"]
    assert {f"{run}/{name}" for name in wanted} <= set(names)
    assert {"corpus/manifest.json", "results/bigram.json", "study/tiny.yaml"} <= set(names)
    for member, content in members[1:]:
        assert index["files"][member.name] == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
    assert list(index["runs"]) == [f"runs/{run}" for run in RUNS]


def test_the_same_study_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    for path in made.home.rglob("*"):
        if path.is_file():
            os.utime(path, (0, 1))
    again = tmp_path / "again.tar.xz"
    assert scaling("bundle", "pack", made.study, "--out", made.folder / "out", "--to", again).exit_code == 0
    assert again.read_bytes() == made.bundle.read_bytes()


def test_what_is_not_finished_is_left_out_and_named(made: Made, tmp_path: Path) -> None:
    study = write_study(tmp_path, made.text, sizes="[6k, 10k, 14k, 25k]", n_tokens="2560")
    finished_study(study, tmp_path, "size=6k")
    rest = request_of(study, tmp_path, "size=10k|14k")
    prepare_runs(rest, data_stage(rest))
    rundir = finish(rest, rest.runs[0], evaluated=False)
    finish(rest, rest.runs[1], state="running")
    of_sweep = request_of(study, tmp_path).study.directory / "sweep" / "runs"
    shutil.copytree(rundir.path, of_sweep / rundir.path.name)
    packed = json.loads(scaling("bundle", "pack", study, "--out", tmp_path, "--dry-run", "--json").stdout)
    assert packed["runs"] == ["runs/llama-6k-c64-s0"] and packed["bytes"] is None
    assert packed["left_out"] == {
        "runs/llama-10k-c64-s0": "not evaluated: 3 missing (00000001 validation, ...), `scaling eval study` first",
        "runs/llama-14k-c64-s0": "not trained: running, step 10 of 10",
        "sweep/runs/llama-10k-c64-s0": "not evaluated: `scaling sweep` first",
        "runs/llama-25k-c64-s0": "not begun here",
    }
    assert list(packed["left_out"])[-1] == "runs/llama-25k-c64-s0"  # where nothing is finished, the first is named
    assert not list(tmp_path.glob("*.tar.xz"))
    shown = scaling("bundle", "pack", study, "--out", tmp_path, "--dry-run").stdout
    assert "left out: 4 runs that are not finished" in shown and "would pack 1 run," in shown
    # a run that failed is a result
    write_json(rundir.status_json, rundir.status() | {"state": "failed"})
    finish(rest, rest.runs[0], state="failed")
    packed = json.loads(scaling("bundle", "pack", study, "--out", tmp_path, "--dry-run", "--json").stdout)
    assert len(packed["runs"]) == 2


def test_only_and_variants(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.home, tmp_path / "tiny")
    sets = ("training.lr=1e-3",)
    variant = finished_study(made.study, tmp_path, "size=6k", sets)
    words = ["bundle", "pack", made.study, "--out", tmp_path, "--dry-run", "--json"]
    name = f"runs/{variant.runs[0].run_id}"
    assert json.loads(scaling(*words, "--only", "size=14k").stdout)["runs"] == [f"runs/{RUNS[1]}"]
    assert json.loads(scaling(*words, "--only", "size=6k", "--set", sets[0]).stdout)["runs"] == [name]
    assert name in json.loads(scaling(*words).stdout)["runs"]  # the study's tables have it


def test_a_wrong_target_is_refused(made: Made, tmp_path: Path) -> None:
    words = ["bundle", "pack", made.study, "--out", made.folder / "out", "--to"]
    assert "a bundle's name ends with .tar.xz" in line_of(scaling(*words, tmp_path / "a.tar"))
    assert "is no folder" in line_of(scaling(*words, tmp_path / "none" / "a.tar.xz"))
    (tmp_path / "a.tar.xz").write_text("mine")
    assert "is there and is no bundle" in line_of(scaling(*words, tmp_path / "a.tar.xz"))
    assert (tmp_path / "a.tar.xz").read_text() == "mine"
    empty = line_of(scaling("bundle", "pack", made.study, "--out", tmp_path))
    assert "no run of this study is finished" in empty


@pytest.mark.parametrize("name", ["a\\b.yaml", "\udcff.yaml", "a\u202eb.yaml", "tiny.txt", ".tiny.yaml"], ids=ascii)
def test_a_study_file_of_a_name_that_unpack_refuses_is_not_packed(made: Made, tmp_path: Path, name: str) -> None:
    study = tmp_path / name
    shutil.copy(made.study, study)
    refused = scaling("bundle", "pack", study, "--out", made.folder / "out", "--to", tmp_path / "x.tar.xz")
    assert line_of(refused) == f"study/{name}: a bundle holds no file of this name; rename it"
    assert not (tmp_path / "x.tar.xz").exists()


def test_what_came_in_a_bundle_can_be_packed_again(made: Made, tmp_path: Path) -> None:
    assert scaling("bundle", "unpack", made.bundle, "--out", tmp_path).exit_code == 0
    packed = []
    for out, name in ((made.folder / "out", "a"), (tmp_path, "b")):
        path = tmp_path / f"{name}.tar.xz"
        assert scaling("bundle", "pack", made.study, "--out", out, "--only", "size=6k", "--to", path).exit_code == 0
        packed.append({m.name: content for m, content in read_tar(path) if m.name != "index.json"})
    assert packed[0] == packed[1]


def test_fewer_rows_of_metrics_make_a_small_bundle_of_a_run_that_is_as_finished(made: Made, tmp_path: Path) -> None:
    small = tmp_path / "small.tar.xz"
    words = ["bundle", "pack", made.study, "--out", made.folder / "out", "--to", small, "--metrics-every", "8"]
    assert scaling(*words).exit_code == 0
    members = {member.name: content for member, content in read_tar(small)}
    name = f"runs/{RUNS[0]}/metrics.jsonl"
    rows = [json.loads(line) for line in members[name].splitlines()]
    whole = {row["step"]: row for row in map(json.loads, (made.home / name).read_text().splitlines())}
    assert [row["step"] for row in rows] == [1, 8, 16, 24, 30] and all(row == whole[row["step"]] for row in rows)
    there = tmp_path / "there"
    assert scaling("bundle", "unpack", small, "--out", there).exit_code == 0
    states = json.loads(scaling("status", made.study, "--out", there, "--json").stdout)["runs"]
    assert {(row["state"], row["evaluated"]) for row in states} == {("done", 3)}
    shutil.copytree(made.home, tmp_path / "other" / "tiny")
    refused = scaling("bundle", "unpack", small, "--out", tmp_path / "other")
    assert "metrics.jsonl" in line_of(refused)


def test_the_laws_beside_the_study_file_go_in(made: Made) -> None:
    for law, packed in (("laws/a.json", True), ("../a.json", False), ("/tmp/a.json", False)):
        changed = made.request.study.model_copy(update={"set_training": Training(lr="law", lr_law=law)})
        members = members_of_study(replace(made.request, study=changed))
        assert members["study/tiny.yaml"] == made.study and (f"study/{law}" in members) == packed
