"""An eighth architecture from outside of the packages: what arch/ADDING.md says, done with the page's own files."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
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

from ..eighth import ROOT, page_commands, page_files
from ..small_runs import start, train

# The page's study on less text, and with fewer tokens: enough for a law of three sizes. One process at a time: each
# takes longer to start than to do its work.
SMALLER = {'{source: "stdlib:", max_bytes: 2_000_000}': '{source: "synthetic:0:200000"}', "61_440": "24_576"}
SMALLER |= {"{parallel: 2}": "{parallel: 1}"}
SIZES = ("6k", "14k", "38k")


class Page:
    """The page's folder, and its commands there: in this process, or in one of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "out" / "gla"
        for name, text in page_files().items():
            for old, new in SMALLER.items() if name == "gla.yaml" else ():
                assert text.count(old) == 1
                text = text.replace(old, new)
            (folder / name).write_text(text)

    def process(self, line: str, plugin_path: bool = True) -> subprocess.CompletedProcess[str]:
        """A line of the page: `scaling`, `flops` or `python`, this checkout's."""
        first, *rest = shlex.split(line)
        command = {"python": [], "scaling": ["-m", "scaling"], "flops": ["-m", "scaling.cli.flops"]}[first]
        path = os.pathsep.join([str(self.folder)] * plugin_path + [str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        words = [sys.executable, *command, *rest]
        return subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)

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
    return Page(tmp_path_factory.mktemp("gla"))


@pytest.fixture(scope="module")
def studied(page):
    """plan, train (one run by two processes under torchrun, the others by one each), eval, fit, report."""
    outputs = {"plan": page.must("scaling plan gla.yaml --json")}
    page.must(f"scaling train gla.yaml --only arch=gla,size={SIZES[0]} --set jobs.processes=2")
    page.must(f"scaling train gla.yaml --only arch=gla,size={'|'.join(SIZES[1:])}")
    outputs["eval"] = page.must(f"scaling eval study gla.yaml --only arch=gla,size={'|'.join(SIZES)}")
    outputs["fit"] = page.must("scaling fit study gla.yaml --json")
    outputs["report"] = page.must("scaling report gla.yaml")
    return outputs


def test_the_page_holds_the_files_it_speaks_of():
    assert set(page_files()) == {"gla.py", "gla_mixer.py", "gla.yaml"}
    assert [line.split()[0] for line in page_commands()] == ["export", "python", "flops", "scaling"]


def test_check_and_flops_as_the_page_calls_them(page):
    _, check, count, _ = page_commands()
    assert "FAILED" not in page.must(check)
    counted = page.process(count)
    assert counted.returncode == 0 and "410m: parameters" in counted.stdout, counted.stderr


def test_the_plan_counts_it(studied, page):
    rows = json.loads(studied["plan"])["runs"]
    assert {row["arch"] for row in rows} == {"tnl", "gla"} and len(rows) == 10
    cost = json.loads(page.must("flops count --arch gla --size 38k --context 128 --plugin gla --json"))
    row = next(row for row in rows if row["run_id"] == "gla-38k-c128-s0")
    assert row["n_params"] == cost["n_params"]
    assert row["flops_exact"] == pytest.approx(cost["flops_per_token_train"]["exact"] * row["n_tokens"])
    assert "flops_paper" not in row
    table = json.loads(page.must("flops table --plugin gla --json"))
    assert [r["arch"] for r in table[24:]] == ["gla"] * 6 and table[-1]["pflops_per_step_paper"] is None
    assert "gla" in page.must("flops table --plugin gla")


def test_its_option_is_one_like_the_others(studied, page):
    """Flat in the file and by --set, part of the run's name and hash, and no part of another architecture's run."""
    rows = {row["run_id"]: row for row in json.loads(studied["plan"])["runs"]}
    planned = json.loads(page.must("scaling plan gla.yaml --set model.gate_temperature=4 --json"))["runs"]
    assert [row["run_id"] for row in planned if row["arch"] == "tnl"] == [
        run_id for run_id in rows if run_id.startswith("tnl")
    ]
    changed = [row for row in planned if row["arch"] == "gla"]
    assert all(row["run_id"].endswith("-gate_temperature4") for row in changed) and len(changed) == 5
    assert not {row["spec_hash"] for row in changed} & {row["spec_hash"] for row in rows.values()}
    assert RunDir(page.home / "runs" / f"gla-{SIZES[0]}-c128-s0").record()["spec"]["model"]["gate_temperature"] == 8
    result = page.run("scaling plan gla.yaml --set model.gate_temprature=4")
    assert result.returncode == 2 and "did you mean 'gate_temperature'?" in result.stderr


def test_it_stands_on_a_ladder(page):
    """With the parameters of the others, and their depth, width and heads."""
    ladder = "grid.sizes={from: 1M, to: 100M, count: 2}"
    rows = json.loads(page.must(f"scaling plan gla.yaml --set '{ladder}' --set training.n_tokens=1_000_000 --json"))[
        "runs"
    ]
    sizes = {"n1m": 1e6, "n100m": 1e8}
    assert {row["arch"] for row in rows} == {"tnl", "gla"} and {row["size"] for row in rows} == set(sizes)
    assert all(abs(row["n_params_non_embedding"] / sizes[row["size"]] - 1) <= 0.01 for row in rows)


def test_it_trains(studied, page):
    for size in SIZES:
        rundir = RunDir(page.home / "runs" / f"gla-{size}-c128-s0")
        record, rows = rundir.record(), rundir.checked_rows().rows
        assert rundir.status()["state"] == "done" and rows[-1]["loss"] < rows[0]["loss"] - 1.0
        assert record["spec"]["plugins"] == ["gla"] and record["spec_hash"] == rundir_hash(studied, rundir)
        checkpoints = rundir.checkpoints()
        assert len(checkpoints) == 3
        for checkpoint in checkpoints:
            assert read_json(rundir.evaluation(checkpoint.step))["values"]["loss"] < rows[0]["loss"]


def rundir_hash(studied, rundir):
    return next(row["spec_hash"] for row in json.loads(studied["plan"])["runs"] if row["run_id"] == rundir.path.name)


def test_its_law_and_the_report(studied, page):
    fit = fits_of(json.loads(studied["fit"])).envelope("gla")
    assert fit is not None and fit.law("L_opt").exponent.value < -0.02, fit
    assert "gla" in (page.home / "report" / "index.html").read_text()


def test_runs_of_other_architectures_keep_their_hashes(studied, page):
    """Without the plugin, and without its architecture, the study's other runs are the same."""
    text = (page.folder / "gla.yaml").read_text()
    plain = text.replace("plugins: [gla]", "").replace("[tnl, gla]", "[tnl]")
    (page.folder / "plain.yaml").write_text(plain.replace(", gate_temperature: 8", ""))
    plain = {run.run_id: run.spec_hash for run in load_study(page.folder / "plain.yaml").runs()}
    rows = {row["run_id"]: row["spec_hash"] for row in json.loads(studied["plan"])["runs"]}
    assert (
        plain == {run_id: spec_hash for run_id, spec_hash in rows.items() if run_id.startswith("tnl")}
        and len(plain) == 5
    )


def test_without_the_plugin_every_command_says_so_in_one_line(studied, page):
    run = page.home / "runs" / "gla-6k-c128-s0"
    missing = "plugin 'gla' is no module that Python finds: install it, or name its folder in PYTHONPATH"
    for line, where in (
        ("scaling plan gla.yaml", "gla.yaml: plugins: "),
        (f"python -m scaling.trainer.process {run} --plugin gla", ""),
        ("flops count --arch gla --size 14k --plugin gla", ""),
        ("python -m scaling.check gla --plugin gla", ""),
    ):
        result = page.process(line, plugin_path=False)
        assert result.returncode == 2 and result.stdout == "", line
        assert where + missing in result.stderr and result.stderr.count("\n") == 1, line
    result = page.run("flops count --arch gla --size 14k")
    assert result.returncode == 2 and "unknown architecture 'gla'" in result.stderr


def test_a_record_a_published_folder_and_a_bundle_import_nothing(studied, page):
    """They refer to the plugin; the user's own study file, or --plugin, names it."""
    run, message = page.home / "runs" / "gla-6k-c128-s0", "refers to the plugin 'gla': import it first (--plugin"
    page.must("scaling publish gla.yaml published")
    page.must("scaling bundle pack gla.yaml --to gla.tar.xz")
    page.must("scaling bundle unpack gla.tar.xz --out elsewhere")
    (copy,) = (page.folder / "elsewhere/gla/bundles").glob("*/gla.yaml")
    for line, where in (
        (f"python -m scaling.trainer.process {run}", f"{run}/run.json: "),
        ("scaling fit runs published --approach parametric --out again", "published/study.yaml: plugins: "),
        (f"scaling plan {copy}", "gla.yaml: plugins: "),
        ("scaling bundle compare gla.tar.xz elsewhere/gla", "run.json: "),
    ):
        result = page.run(line)
        assert result.returncode == 2 and where + message in result.stderr and result.stderr.count("\n") == 1, line
    page.must(f"python -m scaling.trainer.process {run} --plugin gla")
    page.must("scaling report published --plugin gla --out again")
    compared = page.must("scaling bundle compare gla.tar.xz elsewhere/gla --json --plugin gla")
    assert set(json.loads(compared)["not_compared"].values()) == {"copies of the same training"}


def test_a_run_that_goes_on_with_other_code_of_its_plugin_says_so(tmp_path):
    """Once, in the run's log and its record; every command that trains or submits says it of all such runs."""
    page = Page(tmp_path)
    page.must("scaling train gla.yaml --only arch=gla,size=6k --prepare")
    rundir, mixer = RunDir(page.home / "runs" / "gla-6k-c128-s0"), page.folder / "gla_mixer.py"
    first = rundir.record()["versions"]
    assert first["gla_mixer"] == hashlib.sha256(mixer.read_bytes()).hexdigest()[:16] and len(first["gla"]) == 16

    def with_plugin(step=10**9):
        environment = gated(step, page.folder / "never")
        return environment | {"PYTHONPATH": os.pathsep.join([str(page.folder), environment["PYTHONPATH"]])}

    process = start(rundir, "--plugin", "gla", **with_plugin(5))
    while (rundir.last_row() or {"step": 0})["step"] < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == EXIT_STOPPED and rundir.record()["versions"] == first
    mixer.write_text(mixer.read_text() + "# the same, in other words\n")
    code, out, err = train(rundir, "--plugin", "gla", **with_plugin())
    new = hashlib.sha256(mixer.read_bytes()).hexdigest()[:16]
    line = f"warning: the code of its plugin changed: gla_mixer is {new}, was {first['gla_mixer']}; it goes on after "
    assert code == 0 and err.count(line) == 1 and "step 0 of" not in out
    assert rundir.record()["versions"] == first | {"gla_mixer": f"{first['gla_mixer']} then {new}"}
    again = "scaling train gla.yaml --only arch=gla,size=6k"
    assert "is not the code" not in page.run(again).stderr
    mixer.write_text(mixer.read_text() + "# and again\n")
    result = page.run(again)
    assert result.returncode == 0 and result.stderr.count("gla_mixer is not the code that 1 run began with") == 1


def test_every_architecture_of_this_package_has_an_expected_work(tmp_path):
    """The order of training asks for it: an architecture that was never timed must not stop a study."""
    text = f"name: a\ncorpus: {{source: 'synthetic:0:10000'}}\ngrid: {{archs: [{', '.join(ARCHS)}], sizes: [14k]}}\n"
    (tmp_path / "study.yaml").write_text(text + "training: {n_tokens: 2048}")
    assert all(expected_work(run) > 0 for run in load_study(tmp_path / "study.yaml").runs())
