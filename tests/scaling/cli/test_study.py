"""A whole small study by the command line: run, run again, a variant, a run that fails, a run that was interrupted."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.files import json_bytes, read_json, unsealed, write_json
from scaling.cli.main import main
from scaling.rundir.directory import RunDir
from scaling.rundir.versions import git_commit
from tests.analysis.few_replicates import few_replicates
from tests.commands import in_this_process, invoke, printed, refusal_of
from tests.gate import gated

STUDY = """
name: tiny
corpus: {source: "synthetic:0:200000"}
grid: {archs: [llama, tnl], sizes: [14k, 25k]}
model: {context_length: 64}
training: {n_tokens: 7680, batch_tokens: 256, warmup_tokens: 512, lr: 3e-3, n_checkpoints: 3, checkpoint_dtype: fp32}
evaluation: {validation_tokens: 2048}
fit: {smoothing_tokens: 512, grid_points: 10}
jobs: {parallel: 1}
"""
RUNS = ["llama-14k-c64-s0", "llama-25k-c64-s0", "tnl-14k-c64-s0", "tnl-25k-c64-s0"]


def quickly(command, folder, *arguments):
    """In this process, which has imported everything already."""
    return in_this_process(main, command, folder / "tiny.yaml", "--out", folder / "out", *arguments)


def content(folder):
    """Every file of the study but logs and the lock, with its time of writing."""
    files = (path for path in (folder / "out").rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if path.name not in (".lock", "eval.log")}


@pytest.fixture(scope="module")
def studied(tiny, tmp_path_factory):
    """(folder, result) of `scaling run` on a fresh study."""
    return Path(shutil.copytree(tiny.folder, tmp_path_factory.mktemp("copy") / "study")), tiny.result


def test_one_command_does_it_all(tiny):
    folder, result = tiny
    assert result.returncode == 0, result.stdout + result.stderr
    home = folder / "out" / "tiny"
    for run_id in RUNS:
        rundir = RunDir(home / "runs" / run_id)
        assert rundir.status()["state"] == "done"
        rows = rundir.checked_rows().rows
        assert [row["step"] for row in rows] == list(range(1, 31))
        assert rows[-1]["n_tokens"] == 7680 and rows[-1]["loss"] < rows[0]["loss"] - 1.0
        checkpoints = rundir.checkpoints()
        assert [checkpoint.step for checkpoint in checkpoints] == rundir.spec().checkpoint_steps
        for checkpoint in checkpoints:
            assert read_json(rundir.evaluation(checkpoint.step))["n_tokens"] == checkpoint.manifest["n_tokens"]
    assert (home / "report" / "index.html").stat().st_size > 10_000
    assert {fit["name"] for fit in read_json(home / "results" / "fits.json")["groups"]} == {"llama", "tnl"}
    # what people see, not on a terminal: plain lines, the table of laws, the path of the report
    assert "\r" not in result.stdout and "\x1b" not in result.stdout
    assert all(f"{run_id}: done, step 30/30, loss " in result.stdout for run_id in RUNS)
    assert "4/4 runs" in result.stdout and "No architecture is best at C = " in result.stdout
    assert result.stdout.splitlines()[-2] == f"report: {home / 'report' / 'index.html'}"
    assert result.stdout.splitlines()[-1].startswith("next: more sizes or seeds, for a law of the optimal size for ")


def test_running_it_again_writes_nothing(studied):
    folder, _ = studied
    before = content(folder)
    result = quickly("run", folder)
    assert result.returncode == 0
    assert content(folder) == before
    assert "train: 0 of 4 runs to do, 4 done" in result.stdout and "No architecture is best at C = " in result.stdout


def test_a_bundle_counts_as_the_study_where_neither_weights_nor_text_are(studied, tmp_path):
    """Fit, report and a second run elsewhere give the same fits.json, bit for bit, and train and evaluate nothing."""
    folder, _ = studied
    study, here, there = folder / "tiny.yaml", folder / "out", tmp_path / "out"

    printed("bundle", "pack", study, "--out", here, "--to", tmp_path / "tiny.tar.xz")
    printed("bundle", "unpack", tmp_path / "tiny.tar.xz", "--out", there)
    assert not [path for path in there.rglob("*") if path.suffix in (".safetensors", ".bin", ".pt")]
    printed("fit", "study", study, "--out", there)
    printed("report", study, "--out", there)
    fits = "tiny/results/fits.json"
    assert (there / fits).read_bytes() == (here / fits).read_bytes()
    output = printed("run", study, "--out", there)
    assert "train: 0 of 4 runs to do, 4 done" in output and "eval: 0 of " in output and "fit: nothing to do" in output
    assert (there / fits).read_bytes() == (here / fits).read_bytes()
    again = printed("bundle", "pack", study, "--out", there, "--to", tmp_path / "again.tar.xz")
    assert "4 runs" in again and (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "tiny.tar.xz").read_bytes()


def test_a_variant_lies_beside_its_original(studied):
    folder, _ = studied
    before = content(folder)
    only = ("--only", "arch=tnl,size=14k", "--json")
    result = quickly("run", folder, *only, "--set", "training.lr=1e-3", "--set", "training.max_steps=4")
    assert result.returncode == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["trained"] == ["tnl-14k-c64-s0-lr0.001-max_steps4"] and made["fits"] is None
    rundir = RunDir(folder / "out/tiny/runs" / made["trained"][0])
    assert rundir.record()["spec"]["sets"] == ["training.lr=1e-3", "training.max_steps=4"]
    assert [row["lr"] for row in rundir.checked_rows().rows][-1] == 1e-3 and len(rundir.checked_rows().rows) == 4
    assert before.items() <= content(folder).items()
    again = quickly("run", folder, *only[:2], "--set", "training.lr=1e-3", "--set", "training.max_steps=4")
    table, how = again.stdout.splitlines()[-2:], again.stdout.splitlines()[-1]
    (row,) = [line.split() for line in table if line.startswith("tnl-14k-c64-s0-lr0.001-max_steps4 ")]
    assert float(row[1]) > 2 and row[2:] == ["-", "-"], "no run of the study has as many tokens"
    assert how.startswith("next: ") and f"`scaling try VARIANT.yaml --against {folder}/tiny.yaml --out " in how
    alike = quickly("run", folder, *only[:2], "--set", "training.lr=1e-3")
    row = alike.stdout.splitlines()[-2].split()
    assert float(row[3]) == pytest.approx(float(row[1]) - float(row[2]), abs=1.1e-4) and float(row[2]) > 2
    again = quickly("status", folder, "--json")
    assert [row["state"] for row in json.loads(again.stdout)["runs"]] == ["done"] * 4


def page(path):
    """The report without the names that figures are drawn under, and without where its study file lies."""
    names = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    lines = re.sub(names, "", path.read_text()).splitlines()
    return [line for line in lines if "tiny.yaml" not in line and "study.yaml" not in line]


@few_replicates()
def test_a_published_study_gives_its_fits_and_report_again_without_its_directory(studied, tmp_path, monkeypatch):
    folder, _ = studied
    study, out, published = folder / "tiny.yaml", folder / "out", tmp_path / "lab" / "tiny"
    assert invoke("report", study, "--out", out, "--force").exit_code == 0  # fits too: a variant came since
    result = invoke("publish", study, published, "--out", out)
    assert result.exit_code == 0 and result.stdout.startswith(f"published: {published}, ")
    before = {path.name: path.read_bytes() for path in published.iterdir()}
    assert {"bigram.json", "corpus.json", "evals.parquet", "costs.csv", "manifest.json"} <= before.keys()
    assert before["fits.json"] == (out / "tiny" / "results" / "fits.json").read_bytes()
    drawn = page(out / "tiny" / "report" / "index.html")
    assert any("what their training cost" in line for line in drawn)
    (published / "README.md").write_text("ours")
    printed("publish", study, published, "--out", out)  # the same bytes, beside what is not its own
    assert {path.name: path.read_bytes() for path in published.iterdir()} == before | {"README.md": b"ours"}

    (out / "tiny").rename(tmp_path / "away")
    try:
        result = invoke("publish", "--check", published)
        assert result.exit_code == 0 and "fits.json: same\n" in result.stdout
        assert "README.md: a text beside the study" in result.stdout
        (published / "old.parquet").write_text("")
        result = invoke("publish", "--check", published)
        assert result.exit_code == 1 and "old.parquet: is not in the manifest: remove it\n" in result.stdout
        (published / "old.parquet").unlink()
        assert invoke("report", published, "--out", tmp_path / "out").exit_code == 0
        again = ("report", published, "--out", tmp_path / "out", "--figures")
        in_paper = invoke(*again, tmp_path / "my paper")
        assert "report: nothing to do\n" in in_paper.stdout and "tables (LaTeX)" in in_paper.stdout
        assert (tmp_path / "my paper" / "one-column" / "laws.svg").exists()
        (tmp_path / "file").touch()
        refused = in_this_process(main, *again, tmp_path / "file" / "paper")
        assert refused.returncode == 2 and "cannot be written (Not a directory): name another folder" in refused.stderr
        with monkeypatch.context() as patch:
            patch.setattr("analysis.figures.paper.find_spec", lambda name: None)
            refused = in_this_process(main, *again, tmp_path / "paper")
        assert refused.returncode == 2 and refused.stderr.startswith("error: --figures needs matplotlib: pip install")
        assert not (tmp_path / "paper").exists()
        made = tmp_path / "out" / "tiny-published"
        assert (made / "results" / "fits.json").read_bytes() == before["fits.json"]
        assert page(made / "report" / "index.html") == drawn
        assert not (out / "tiny").exists() and len(list(published.iterdir())) == len(before) + 1
        fits = json.loads(invoke("fit", "study", published, "--out", tmp_path / "out", "--json").stdout)
        assert fits == unsealed(before["fits.json"])
        smaller = ("--set", "grid.sizes=[14k]", "--json")
        fits = json.loads(invoke("fit", "study", published, "--out", tmp_path / "out", *smaller).stdout)
        assert {run["run_id"] for run in fits["left_out"] if "grid" in run["why"]} == set(RUNS[1::2])
    finally:
        (tmp_path / "away").rename(out / "tiny")

    manifest = unsealed(before["manifest.json"])
    assert manifest["made_with"]["commit"] == (git_commit() or "unknown")
    manifest["made_with"]["commit"] = "another"
    write_json(published / "manifest.json", manifest)
    (published / "costs.csv").unlink()  # it follows from the tables, and nothing reads it
    assert json.loads(invoke("fit", "study", published, "--out", tmp_path / "out", "--json").stdout)["study"] == "tiny"
    result = invoke("publish", "--check", published)
    assert result.exit_code == 1 and "costs.csv: is missing\n" in result.stdout
    assert "commit another (here " in result.stderr
    (published / "costs.csv").write_bytes(before["costs.csv"])
    (published / "manifest.json").write_bytes(before["manifest.json"])

    write_json(published / "fits.json", unsealed(before["fits.json"]) | {"study": "tony"})
    result = invoke("publish", "--check", published)
    assert result.exit_code == 1 and "fits.json: differs: 1 of " in result.stdout
    assert "study is tony, made again tiny" in result.stdout
    (published / "fits.json").write_bytes(before["fits.json"])
    for name, content, why in (
        ("curves.parquet", before["curves.parquet"][:-1], "curves.parquet differs from its checksum"),
        ("runs.parquet", None, "runs.parquet is missing"),
        (
            "manifest.json",
            json_bytes(unsealed(before["manifest.json"]) | {"version": 9}),
            "study of version 9, this",
        ),
        ("manifest.json", before["manifest.json"].replace(b'"version": 1', b'"version": 9'), "changed or damaged"),
        ("manifest.json", b"{", "manifest.json: cannot be read"),
        ("manifest.json", None, "is no published study"),
    ):
        (published / name).unlink()
        if content is not None:
            (published / name).write_bytes(content)
        assert why in refusal_of("publish", "--check", published)
        (published / name).write_bytes(before[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish", "tiny.yaml"), "give a study and the folder to write"),
        (("publish", "tiny.yaml", "--check"), "is a study file: give the folder that it was published in"),
        (("publish", "tiny.yaml", "other"), "other/fits.json: is there already and of no published study"),
        (("publish", "empty", "new"), "empty: is published already: give the study file"),
        (("publish", "tiny.yaml", "/proc/new"), "/proc/new: cannot be made there: name another folder"),
        (("publish", "--check", "empty"), "empty: is no published study (manifest.json is missing)"),
        (("publish", "--check", "tiny.yaml", "no"), "or --check and a published folder alone"),
        (("train", "empty"), "is a published study, tables alone"),
    ],
)
def test_what_cannot_be_published_is_refused(studied, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(STUDY + f"out: {studied[0]}/out\n")
    for name in ("other", "empty"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "tiny.yaml", tmp_path / name / ("study.yaml" if name == "empty" else "fits.json"))
    assert message in refusal_of(*arguments)
    assert not (tmp_path / "new").exists() and len(list((tmp_path / "other").iterdir())) == 1


def test_a_failed_run_does_not_stop_the_study(tmp_path):
    """One learning rate out of this world: that run is marked failed, the other is trained, evaluated and reported,
    though one process trains both."""
    text = STUDY.replace("sizes: [14k, 25k]", "sizes: [14k]")
    (tmp_path / "tiny.yaml").write_text(text + "overrides: {by_run: {tnl/14k: {lr: 1e30, warmup_tokens: 0}}}\n")
    result = quickly("run", tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    # the library that draws pictures may speak on stderr too
    messages = [line for line in result.stderr.splitlines() if line.startswith(("failed: ", "error: "))]
    assert (
        messages[0].startswith("failed: tnl-14k-c64-s0: ")
        and " at step " in messages[0]
        and "last good checkpoint" in messages[0]
    )
    assert messages[-1] == "error: 1 of 2 runs is not done"
    home = tmp_path / "out" / "tiny"
    assert RunDir(home / "runs" / "tnl-14k-c64-s0").status()["state"] == "failed"
    assert RunDir(home / "runs" / "llama-14k-c64-s0").status()["state"] == "done"
    reason = RunDir(home / "runs" / "tnl-14k-c64-s0").status()["reason"]
    assert reason in (home / "report" / "index.html").read_text()
    again = quickly("run", tmp_path)
    assert again.returncode == 1 and "0 of 2 runs to do, 1 done, 1 failed before" in again.stdout
    assert "tnl-14k-c64-s0" in again.stderr and reason in again.stderr


def test_a_second_run_of_the_same_study_is_refused_and_an_interrupted_one_goes_on(tmp_path):
    text = STUDY.replace("n_tokens: 7680", "n_tokens: 25600").replace("14k, 25k", "14k").replace("llama, tnl", "tnl")
    (tmp_path / "tiny.yaml").write_text(text)
    line = [sys.executable, "-m", "scaling", "train", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]
    environment = os.environ | gated(20, tmp_path / "go")
    first = subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    rundir = RunDir(tmp_path / "out/tiny/runs/tnl-14k-c64-s0")
    while (rundir.last_row() or {"step": 0})["step"] < 20:
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = quickly("train", tmp_path)
    assert second.returncode == 2 and f"process {first.pid} is working on this study" in second.stderr
    os.killpg(first.pid, signal.SIGINT)  # Ctrl-C
    first.wait(600)
    assert first.returncode == 130 and b"Traceback" not in first.stderr.read()
    assert json.loads(quickly("status", tmp_path, "--json").stdout)["runs"][0]["state"] == "interrupted"
    words = (tmp_path / "tiny.yaml", tmp_path / "published", "--out", tmp_path / "out")
    assert "no run is done, so there is nothing to publish" in refusal_of("publish", *words)
    reached = rundir.states()[-1].step
    assert reached >= 20
    result = quickly("train", tmp_path)
    assert result.returncode == 0, result.stderr
    assert [row["step"] for row in rundir.checked_rows().rows] == list(range(1, 101))
    assert f"step {reached} of 100" in rundir.log.read_text()


def test_a_full_disk_is_one_line_and_leaves_what_was_whole(tmp_path):
    """On file systems of 100 kB (no room for the corpus) and 900 kB (none for the runs), mounted for this test."""
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("200000", "300000"))
    disk = tmp_path / "out"
    disk.mkdir()
    for size, command, kept in (("100k", "data", False), ("900k", "run", True)):
        script = (
            f"mount -t tmpfs -o size={size} tmpfs {disk} || exit 77; "
            f"{sys.executable} -m scaling {command} {tmp_path}/tiny.yaml --out {disk}; code=$?; "
            f"find {disk} >&1; exit $code"
        )
        line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        result = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
        if result.returncode in (1, 77) and "error: " not in result.stderr:
            pytest.skip(f"no private mounts here: {result.stderr.strip()}")
        assert result.returncode == 2 and "No space left on device" in result.stderr
        assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")
        assert ("corpus/manifest.json" in result.stdout) == kept and ".tmp" not in result.stdout
