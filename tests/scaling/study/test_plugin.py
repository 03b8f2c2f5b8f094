"""An architecture from outside of the packages: what docs/adding.md says, done with the page's own mixer and option."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from analysis.fits.study_fits import fits_of
from arch.config import ARCHS
from data.files import read_json
from scaling.cli.flops import main as flops_main
from scaling.cli.main import main
from scaling.rundir.directory import RunDir
from scaling.rundir.worklist import EXIT_STOPPED
from scaling.study.cost import expected_work
from scaling.study.spec import load_study
from tests.commands import in_this_process
from tests.gate import gated
from tests.registries import as_registered

from .. import forks
from ..eighth import ROOT, module
from ..small_runs import start, train

STUDY = """
name: average
plugins: [average]
corpus: {source: "synthetic:0:200000"}
grid: {archs: [tnl, average], sizes: [6k, 10k, 14k, 25k, 38k]}
model: {context_length: 128, slowness: 8}  # TNL has no such option and keeps its model
training: {n_tokens: 24_576, batch_tokens: 1024, lr: 3e-3, warmup_tokens: 4096, n_checkpoints: 3}
evaluation: {validation_tokens: 8192}
fit: {smoothing_tokens: 8192}
jobs: {parallel: 1}
"""
SIZES = ("6k", "14k", "38k")


class Page:
    """The page's folder, and its commands there: in this process, or in one of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "out" / "average"
        (folder / "average.py").write_text(module())
        (folder / "average.yaml").write_text(STUDY)

    def process(self, line: str, plugin_path: bool = True) -> subprocess.CompletedProcess[str]:
        """A line of the page: `scaling`, `flops` or `python`, this checkout's."""
        first, *rest = shlex.split(line.replace("python -m ", "").replace("flops ", "scaling.cli.flops "))
        path = os.pathsep.join([str(self.folder)] * plugin_path + [str(ROOT)])
        return subprocess.CompletedProcess(line, *forks.run(first, *rest, folder=self.folder, PYTHONPATH=path))

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """The same of `scaling` and `flops` in this process, which imports the plugin anew for each line."""
        first, *rest = shlex.split(line)
        if first == "python":
            return self.process(line)
        with pytest.MonkeyPatch.context() as patch, as_registered():
            patch.syspath_prepend(self.folder)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(self.folder), str(ROOT)]))
            return in_this_process({"scaling": main, "flops": flops_main}[first], *rest, cwd=self.folder)

    def must(self, line: str) -> str:
        result = self.run(line)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        return result.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return Page(tmp_path_factory.mktemp("average"))


@pytest.fixture(scope="module")
def studied(page):
    """plan, train (one run by two processes under torchrun, the others by one each), eval, fit, report."""
    outputs = {"plan": page.must("scaling plan average.yaml --json")}
    page.must(f"scaling train average.yaml --only arch=average,size={SIZES[0]} --set jobs.processes=2")
    page.must(f"scaling train average.yaml --only arch=average,size={'|'.join(SIZES[1:])}")
    outputs["eval"] = page.must(f"scaling eval study average.yaml --only arch=average,size={'|'.join(SIZES)}")
    outputs["fit"] = page.must("scaling fit study average.yaml --json")
    outputs["report"] = page.must("scaling report average.yaml")
    return outputs


def test_its_costs_by_the_command(page):
    counted = page.process("flops count --arch average --size 410m --plugin average")
    assert counted.returncode == 0 and "410m: parameters" in counted.stdout, counted.stderr


def test_the_plan_counts_it(studied, page):
    rows = json.loads(studied["plan"])["runs"]
    assert {row["arch"] for row in rows} == {"tnl", "average"} and len(rows) == 10
    cost = json.loads(page.must("flops count --arch average --size 38k --context 128 --plugin average --json"))
    row = next(row for row in rows if row["run_id"] == "average-38k-c128-s0")
    assert row["n_params"] == cost["n_params"]
    assert row["flops_exact"] == pytest.approx(cost["flops_per_token_train"]["exact"] * row["n_tokens"])
    assert "flops_paper" not in row
    table = json.loads(page.must("flops table --plugin average --json"))
    assert [r["arch"] for r in table[24:]] == ["average"] * 6 and table[-1]["pflops_per_step_paper"] is None
    assert "average" in page.must("flops table --plugin average")


def test_its_option_is_one_like_the_others(studied, page):
    """Flat in the file and by --set, part of the run's name and hash, and no part of another architecture's run."""
    rows = {row["run_id"]: row for row in json.loads(studied["plan"])["runs"]}
    planned = json.loads(page.must("scaling plan average.yaml --set model.slowness=4 --json"))["runs"]
    assert [row["run_id"] for row in planned if row["arch"] == "tnl"] == [
        run_id for run_id in rows if run_id.startswith("tnl")
    ]
    changed = [row for row in planned if row["arch"] == "average"]
    assert all(row["run_id"].endswith("-slowness4") for row in changed) and len(changed) == 5
    assert not {row["spec_hash"] for row in changed} & {row["spec_hash"] for row in rows.values()}
    assert RunDir(page.home / "runs" / f"average-{SIZES[0]}-c128-s0").record()["spec"]["model"]["slowness"] == 8
    result = page.run("scaling plan average.yaml --set model.slownes=4")
    assert result.returncode == 2 and "did you mean 'slowness'?" in result.stderr


def test_it_stands_on_a_ladder(page):
    """With the parameters of the others, and their depth, width and heads."""
    ladder = "grid.sizes={from: 1M, to: 100M, count: 2}"
    rows = json.loads(
        page.must(f"scaling plan average.yaml --set '{ladder}' --set training.n_tokens=1_000_000 --json")
    )["runs"]
    sizes = {"n1m": 1e6, "n100m": 1e8}
    assert {row["arch"] for row in rows} == {"tnl", "average"} and {row["size"] for row in rows} == set(sizes)
    assert all(abs(row["n_params_non_embedding"] / sizes[row["size"]] - 1) <= 0.01 for row in rows)


def test_it_trains(studied, page):
    for size in SIZES:
        rundir = RunDir(page.home / "runs" / f"average-{size}-c128-s0")
        record, rows = rundir.record(), rundir.checked_rows().rows
        assert rundir.status()["state"] == "done" and rows[-1]["loss"] < rows[0]["loss"] - 1.0
        assert record["spec"]["plugins"] == ["average"] and record["spec_hash"] == rundir_hash(studied, rundir)
        checkpoints = rundir.checkpoints()
        assert len(checkpoints) == 3
        for checkpoint in checkpoints:
            assert read_json(rundir.evaluation(checkpoint.step))["values"]["loss"] < rows[0]["loss"]


def rundir_hash(studied, rundir):
    return next(row["spec_hash"] for row in json.loads(studied["plan"])["runs"] if row["run_id"] == rundir.path.name)


def test_its_law_and_the_report(studied, page):
    fit = fits_of(json.loads(studied["fit"])).envelope("average")
    assert fit is not None and fit.law("L_opt").exponent.value < -0.02, fit
    assert "average" in (page.home / "report" / "index.html").read_text()


def test_runs_of_other_architectures_keep_their_hashes(studied, page):
    """Without the plugin, and without its architecture, the study's other runs are the same."""
    text = (page.folder / "average.yaml").read_text()
    plain = text.replace("plugins: [average]", "").replace("[tnl, average]", "[tnl]")
    (page.folder / "plain.yaml").write_text(plain.replace(", slowness: 8", ""))
    plain = {run.run_id: run.spec_hash for run in load_study(page.folder / "plain.yaml").runs()}
    rows = {row["run_id"]: row["spec_hash"] for row in json.loads(studied["plan"])["runs"]}
    assert (
        plain == {run_id: spec_hash for run_id, spec_hash in rows.items() if run_id.startswith("tnl")}
        and len(plain) == 5
    )


def test_without_the_plugin_every_command_says_so_in_one_line(studied, page):
    run = page.home / "runs" / "average-6k-c128-s0"
    missing = "plugin 'average' is no module that Python finds: install it, or name its folder in PYTHONPATH"
    for line, where in (
        ("scaling plan average.yaml", "average.yaml: plugins: "),
        (f"python -m scaling.trainer.process {run} --plugin average", ""),
        ("flops count --arch average --size 14k --plugin average", ""),
        ("python -m scaling.check average --plugin average", ""),
    ):
        result = page.process(line, plugin_path=False)
        assert result.returncode == 2 and result.stdout == "", line
        assert where + missing in result.stderr and result.stderr.count("\n") == 1, line
    result = page.run("flops count --arch average --size 14k")
    assert result.returncode == 2 and "unknown architecture 'average'" in result.stderr


def test_a_record_a_published_folder_and_a_bundle_import_nothing(studied, page):
    """They refer to the plugin; the user's own study file, or --plugin, names it."""
    run, message = (
        page.home / "runs" / "average-6k-c128-s0",
        "refers to the plugin 'average': import it first (--plugin",
    )
    page.must("scaling publish average.yaml published")
    page.must("scaling bundle pack average.yaml --to average.tar.xz")
    page.must("scaling bundle unpack average.tar.xz --out elsewhere")
    (copy,) = (page.folder / "elsewhere/average/bundles").glob("*/average.yaml")
    for line, where in (
        (f"python -m scaling.trainer.process {run}", f"{run}/run.json: "),
        ("scaling fit runs published --approach parametric --out again", "published/study.yaml: plugins: "),
        (f"scaling plan {copy}", "average.yaml: plugins: "),
    ):
        result = page.run(line)
        assert result.returncode == 2 and where + message in result.stderr and result.stderr.count("\n") == 1, line
    page.must(f"python -m scaling.trainer.process {run} --plugin average")
    page.must("scaling report published --plugin average --out again")


def test_a_run_that_goes_on_with_other_code_of_its_plugin_says_so(tmp_path):
    """Once, in the run's log and its record; every command that trains or submits says it of all such runs."""
    page = Page(tmp_path)
    mixer = (tmp_path / "average.py").rename(tmp_path / "average_mixer.py")
    (tmp_path / "average.py").write_text("import average_mixer\n")
    page.must("scaling train average.yaml --only arch=average,size=6k --prepare")
    rundir = RunDir(page.home / "runs" / "average-6k-c128-s0")
    first = rundir.record()["versions"]
    assert first["average_mixer"] == hashlib.sha256(mixer.read_bytes()).hexdigest()[:16] and len(first["average"]) == 16

    def with_plugin(step=10**9):
        environment = gated(step, page.folder / "never")
        return environment | {"PYTHONPATH": os.pathsep.join([str(page.folder), environment["PYTHONPATH"]])}

    process = start(rundir, "--plugin", "average", **with_plugin(5))
    while (rundir.last_row() or {"step": 0})["step"] < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == EXIT_STOPPED and rundir.record()["versions"] == first
    mixer.write_text(mixer.read_text() + "# the same, in other words\n")
    code, out, err = train(rundir, "--plugin", "average", **with_plugin())
    new = hashlib.sha256(mixer.read_bytes()).hexdigest()[:16]
    was = first["average_mixer"]
    line = f"warning: the code of its plugin changed: average_mixer is {new}, was {was}; it goes on after "
    assert code == 0 and err.count(line) == 1 and "step 0 of" not in out
    assert rundir.record()["versions"] == first | {"average_mixer": f"{was} then {new}"}
    again = "scaling train average.yaml --only arch=average,size=6k"
    assert "is not the code" not in page.run(again).stderr
    mixer.write_text(mixer.read_text() + "# and again\n")
    for line in (again, again.replace("train", "eval study"), again.replace("train", "plan")):
        result = page.run(line)
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("average_mixer is not the code that 1 run began with") == 1, line


def test_every_architecture_of_this_package_has_an_expected_work(tmp_path):
    """The order of training asks for it: an architecture that was never timed must not stop a study."""
    text = f"name: a\ncorpus: {{source: 'synthetic:0:10000'}}\ngrid: {{archs: [{', '.join(ARCHS)}], sizes: [14k]}}\n"
    (tmp_path / "study.yaml").write_text(text + "training: {n_tokens: 2048}")
    assert all(expected_work(run) > 0 for run in load_study(tmp_path / "study.yaml").runs())
