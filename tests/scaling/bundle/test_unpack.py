"""Unpacking: what counts afterwards, what merges, and what is refused before anything is written."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from data.files import write_json
from data.left_out import left_out
from scaling.cli import passing
from scaling.rundir.directory import RunDir

from .. import forks
from .conftest import Made
from .small import RUNS, Member, files_of, finished_study, line_of, read_tar, scaling, write_study, write_tar


def unpack(out: Path, *bundles: Path) -> dict:
    result = scaling("bundle", "unpack", *bundles, "--out", out, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return dict(json.loads(result.stdout))


def refused(out: Path, *bundles: Path) -> str:
    """The one line, nothing having been written."""
    before = files_of(out) if out.exists() else None
    line = line_of(scaling("bundle", "unpack", *bundles, "--out", out))
    assert (files_of(out) if out.exists() else None) == before
    assert "\n" not in line
    return line


def packed(made: Made, path: Path, *words: str) -> Path:
    result = scaling("bundle", "pack", made.study, "--out", made.folder / "out", "--to", path, *words)
    assert result.exit_code == 0, (result.output, result.exception)
    return path


def test_runs_count_as_done_and_say_where_their_weights_are(made: Made, tmp_path: Path) -> None:
    report = unpack(tmp_path, made.bundle)
    assert report["new"] == [f"runs/{run}" for run in RUNS] and report["equal"] == report["notes"] == []
    rows = json.loads(scaling("status", made.study, "--out", tmp_path, "--json").stdout)["runs"]
    states = {(row["state"], row["weights"], row["checkpoints"], row["evaluated"]) for row in rows}
    assert states == {("done", "elsewhere", 3, 3)} and "weights are elsewhere" in rows[0]["reason"]
    here = json.loads(scaling("status", made.study, "--out", made.folder / "out", "--json").stdout)["runs"]
    assert {(row["weights"], row["reason"]) for row in here} == {("here", None)}
    assert unpack(tmp_path, made.bundle)["equal"] == [f"runs/{run}" for run in RUNS]
    for record in tmp_path.glob("tiny/runs/*/checkpoints/*"):
        assert left_out(record) == {"model.safetensors", "tokenizer.json"}


def test_several_bundles_merge_and_the_weights_make_it_whole(made: Made, tmp_path: Path) -> None:
    halves = [packed(made, tmp_path / f"{size}.tar.xz", "--only", f"size={size}") for size in ("6k", "14k")]
    unpack(tmp_path / "a", *halves)
    for half in halves:
        unpack(tmp_path / "b", half)
    first, second = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert first == second and len(list((tmp_path / "a/tiny/bundles").iterdir())) == 2
    # beside the real weights: the runs are equal, and nothing is left out
    shutil.copytree(made.home, tmp_path / "c/tiny")
    assert len(unpack(tmp_path / "c", *halves)["equal"]) == 2
    assert not list((tmp_path / "c").rglob("left-out.json"))
    # and the real weights put where the bundle is
    shutil.copytree(made.home, tmp_path / "a/tiny", dirs_exist_ok=True)
    assert len(RunDir(tmp_path / "a/tiny/runs" / RUNS[0]).checkpoints()) == 3


def test_a_run_that_was_only_prepared_makes_way_and_one_that_was_begun_does_not(made: Made, tmp_path: Path) -> None:
    run = tmp_path / "tiny/runs" / RUNS[0]
    run.mkdir(parents=True)
    shutil.copy(made.home / "runs" / RUNS[0] / "run.json", run)
    assert len(unpack(tmp_path, made.bundle)["new"]) == 2
    begun = tmp_path / "begun/tiny/runs" / RUNS[0]
    shutil.copytree(made.home / "runs" / RUNS[0], begun)
    write_json(begun / "status.json", {"state": "running", "step": 7})
    assert "was begun here and is not finished (step 7)" in refused(tmp_path / "begun", made.bundle)


def test_what_differs_is_refused_with_run_and_file(made: Made, tmp_path: Path) -> None:
    unpack(tmp_path, made.bundle)
    metrics = tmp_path / "tiny/runs" / RUNS[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("3e-3", "3e-4", 1).replace("0.003", "0.004", 1))
    assert f"{metrics.parent}: metrics.jsonl is not as the run's training left it" in refused(tmp_path, made.bundle)
    RunDir(metrics.parent).write_status("done", 30, 7680, None, None)
    line = refused(tmp_path, made.bundle)
    assert f"runs/{RUNS[1]} differs from {tmp_path / 'tiny'}: metrics.jsonl (also where --metrics-every left" in line


def test_another_corpus_of_the_name_is_refused(made: Made, tmp_path: Path) -> None:
    study = write_study(tmp_path, made.text, validation_fraction="0.3")
    finished_study(study, tmp_path / "out", "size=6k")
    other = tmp_path / "other.tar.xz"
    assert scaling("bundle", "pack", study, "--out", tmp_path / "out", "--to", other).exit_code == 0
    unpack(tmp_path / "there", made.bundle)
    for line in (refused(tmp_path / "there", other), refused(tmp_path / "fresh", made.bundle, other)):
        assert "it belongs to another study" in line
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("earlier_first", [True, False])
def test_a_study_file_with_fewer_and_more_runs_is_the_same_study(
    made: Made, tmp_path: Path, earlier_first: bool
) -> None:
    study = write_study(tmp_path, made.text, sizes="[6k, 25k]")
    finished_study(study, tmp_path / "out", "size=25k")
    edited = tmp_path / "edited.tar.xz"
    assert scaling("bundle", "pack", study, "--out", tmp_path / "out", "--to", edited).exit_code == 0
    for bundle in (made.bundle, edited) if earlier_first else (edited, made.bundle):
        unpack(tmp_path / "there", bundle)
    states = {
        row["run_id"]: row["state"]
        for row in json.loads(scaling("status", study, "--out", tmp_path / "there", "--json").stdout)["runs"]
    }
    assert states == {"llama-6k-c64-s0": "done", "llama-25k-c64-s0": "done"}


def test_runs_of_other_settings_are_named_and_nothing_else_is_in_the_way(made: Made, tmp_path: Path) -> None:
    study = write_study(tmp_path, made.text, sizes="[6k, 14k, 25k]")
    before = study.read_text()
    study.write_text(before + "overrides: {by_run: {llama/14k: {lr: 1e-3}}}\n")
    finished_study(study, tmp_path / "out")
    edited = tmp_path / "edited.tar.xz"
    assert scaling("bundle", "pack", study, "--out", tmp_path / "out", "--to", edited).exit_code == 0
    unpack(tmp_path / "there", made.bundle)
    for line in (refused(tmp_path / "there", edited), refused(tmp_path / "fresh", made.bundle, edited)):
        assert "1 of its runs have other settings than in" in line and f"(runs/{RUNS[1]}): move the folders" in line
    study.write_text(before + "overrides: {by_run: {llama/14k: {lr: 1e-3}, llama/6k: {lr: 1e-3}}}\n")
    line = line_of(scaling("run", study, "--out", tmp_path / "there"))
    assert f"2 runs have other settings ({', '.join(RUNS)})" in line and "or move these 2 out of" in line
    planned = scaling("plan", study, "--out", tmp_path / "there", "--json")
    assert f"training refuses: {line}" in json.loads(planned.stdout)["warnings"]
    (tmp_path / "there/tiny/runs" / RUNS[1]).rename(tmp_path / "aside")
    assert len(unpack(tmp_path / "there", edited)["new"]) == 2


def test_another_law_of_the_sweep_is_refused_and_the_line_says_what_to_move(made: Made, tmp_path: Path) -> None:
    home, there = tmp_path / "out/tiny", tmp_path / "there/tiny"
    shutil.copytree(made.home, home)
    (home / "rates.json").write_text("{}")
    again = tmp_path / "again.tar.xz"
    assert scaling("bundle", "pack", made.study, "--out", home.parent, "--to", again).exit_code == 0
    unpack(there.parent, made.bundle)
    (there / "rates.json").write_text("{ }")
    line = refused(there.parent, again)
    assert f"rates.json, the law of the study's sweep, differs from {there}: move that away" in line
    (there / "rates.json").unlink()
    assert unpack(there.parent, again)["notes"] == [] and (there / "rates.json").read_text() == "{}"


def _longer(members: list[Member]) -> list[Member]:
    member, content = members[-1]
    member.size += 1
    return [*members[:-1], (member, content + b"x")]


def _link(members: list[Member]) -> list[Member]:
    link = copy.copy(members[-1][0])
    link.type, link.linkname, link.size = tarfile.SYMTYPE, "/etc/passwd", 0
    return [*members[:-1], (link, b"")]


def _renamed(name: str) -> Callable[[list[Member]], list[Member]]:
    """The last member under another name, as the index has it too."""

    def change(members: list[Member]) -> list[Member]:
        member, content = members[-1]
        index = json.loads(members[0][1])
        index["files"][name] = index["files"].pop(member.name)
        member.name = name
        return [_index(index), *members[1:-1], (member, content)]

    return change


def _index(index: dict) -> Member:
    content = json.dumps(index).encode()
    member = tarfile.TarInfo("index.json")
    member.size = len(content)
    return member, content


DAMAGES: dict[str, Callable[[list[Member]], list[Member]]] = {
    "is missing": lambda members: members[:-1],
    "twice": lambda members: [*members, members[-1]],
    "differs from its checksum": lambda members: [*members[:-1], (members[-1][0], b"x" * len(members[-1][1]))],
    "is larger than it should be": _longer,
    "its index does not list": lambda members: [*members, (tarfile.TarInfo("runs/more/run.json"), b"")],
    "is no plain file": _link,
    "'../up.json' leaves the folder": _renamed("../up.json"),
    "'/tmp/up.json' leaves the folder": _renamed("/tmp/up.json"),
    "'runs/llama-6k-c64-s0/state/00000030/00000-of-00001.safetensors', which no bundle has": _renamed(
        f"runs/{RUNS[0]}/state/00000030/00000-of-00001.safetensors"
    ),
    "'study/plugin.py', which no bundle has": _renamed("study/plugin.py"),
    "belongs to no run": _renamed("runs/other/status.json"),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_bundle_is_one_line_and_nothing_is_written(made: Made, tmp_path: Path, message: str) -> None:
    bad = write_tar(tmp_path / "bad.tar.xz", DAMAGES[message](read_tar(made.bundle)))
    line = refused(tmp_path / "out", bad)
    assert (
        line.startswith(f"{bad}: ") and message in line and "truncated" not in line and not (tmp_path / "out").exists()
    )


def test_a_truncated_or_foreign_file_is_one_line(made: Made, tmp_path: Path) -> None:
    whole, bad = made.bundle.read_bytes(), tmp_path / "bad.tar.xz"
    for content in (whole[: len(whole) // 2], whole[:-4], whole + b"more"):
        bad.write_bytes(content)
        assert "is damaged or truncated (" in refused(tmp_path / "out", bad)
    for content in (b"text", b""):
        bad.write_bytes(content)
        assert refused(tmp_path / "out", bad).endswith("is no bundle of `scaling bundle pack`")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    bad.write_bytes(bytes(flipped))
    refused(tmp_path / "out", bad)
    write_tar(bad, read_tar(made.bundle)[1:])
    assert "is no bundle of `scaling bundle pack`" in refused(tmp_path / "out", bad)
    assert "cannot be read" in refused(tmp_path / "out", tmp_path / "none.tar.xz")


def test_an_index_of_another_version_is_refused(made: Made, tmp_path: Path) -> None:
    members = read_tar(made.bundle)
    index = json.loads(members[0][1]) | {"schema": 2}
    bad = write_tar(tmp_path / "bad.tar.xz", [_index(index), *members[1:]])
    assert "is a bundle of version 2, this program reads 1" in refused(tmp_path / "out", bad)


@pytest.mark.parametrize("change", [{"runs": []}, {"files": {"rates.json": {"bytes": -1}}}, {"study_file": 1}])
def test_an_index_of_another_form_is_damaged(made: Made, tmp_path: Path, change: dict) -> None:
    index = json.loads(read_tar(made.bundle)[0][1]) | change
    bad = write_tar(tmp_path / "bad.tar.xz", [_index(index)])
    assert "its index is damaged" in refused(tmp_path / "out", bad)


def test_a_kill_leaves_whole_runs_and_the_same_command_adds_the_others(made: Made, tmp_path: Path) -> None:
    words = ["scaling", "bundle", "unpack", str(made.bundle), "--out", str(tmp_path / "out")]
    killed, _, _ = forks.run(*words, KILL_AT_WRITE="unpacked:2")  # after the corpus and the first run
    assert killed == -signal.SIGKILL
    home = tmp_path / "out/tiny"
    assert [path.name for path in (home / "runs").iterdir()] == [RUNS[0]]
    report = unpack(tmp_path / "out", made.bundle)
    assert (report["new"], report["equal"]) == ([f"runs/{RUNS[1]}"], [f"runs/{RUNS[0]}"])
    unpack(tmp_path / "whole", made.bundle)
    after, whole = files_of(home), files_of(tmp_path / "whole/tiny")
    assert after == whole


def test_progress_is_shown_after_some_seconds(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "PLAIN_EVERY_S", 0.0)
    output = scaling("bundle", "unpack", made.bundle, "--out", tmp_path).stdout
    assert "verified and unpacked: 100% of " in output
    packed = scaling("bundle", "pack", made.study, "--out", tmp_path, "--to", tmp_path / "a.tar.xz").stdout
    assert "bundle: 100% of " in packed


def test_a_study_named_as_a_path_is_refused(made: Made, tmp_path: Path) -> None:
    members = read_tar(made.bundle)
    for name in ("..", "a/b", "/tmp", "", ".git", "a b", "x" * 101):
        index = json.loads(members[0][1]) | {"study": name}
        bad = write_tar(tmp_path / "bad.tar.xz", [_index(index), *members[1:]])
        assert "is no name of a study: it is refused" in refused(tmp_path / "out", bad)
