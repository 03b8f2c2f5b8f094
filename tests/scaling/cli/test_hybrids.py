"""The packaged study of hybrids, by its twin for two cores: from one file to its report."""

import csv
from contextlib import nullcontext

import pandas as pd
import pytest

from analysis.fits.study_fits import fits_of
from data.files import read_json
from scaling.cli.main import main
from scaling.rundir.directory import RunDir
from scaling.study.file import PACKAGED
from scaling.study.spec import load_study
from tests.analysis.few_replicates import few_replicates
from tests.commands import in_this_process
from tests.registries import as_registered
from tests.scaling.bundle.small import finished_study

LABELS = {
    "hgrn2": "HGRN2",
    "hgrn2-3to1": "HGRN2 3:1",
    "gated_deltanet-3to1": "Gated DeltaNet 3:1",
    "transformer": "Transformer",
}
SIZES = ("n40k", "n63.2k", "n100k")
SMALLER = {
    "max_bytes: 4_000_000": "max_bytes: 400_000",
    "batch_tokens: 1024": "batch_tokens: 256",
    "warmup_tokens: 8192": "warmup_tokens: 512",
    "n_tokens: 131_072": "n_tokens: 7_680",
    "validation_tokens: 16_384": "validation_tokens: 256",
}
TRAINED = pytest.param("trained", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["written", TRAINED])
def studied(request, tmp_path_factory):
    """The study's folder, what its run printed, and the study's name; or of a smaller one whose runs' rows and losses
    are written, not trained."""
    folder, study = tmp_path_factory.mktemp("hybrids"), "hybrids-tiny"
    with as_registered():
        if request.param == "written":
            text = (PACKAGED / "hybrids-tiny.yaml").read_text(encoding="utf-8")
            for large, small in SMALLER.items():
                assert text.count(large) == 1
                text = text.replace(large, small)
            study = folder / "hybrids-tiny.yaml"
            study.write_text(text, encoding="utf-8")
            finished_study(study, folder)
        with few_replicates() if request.param == "written" else nullcontext():
            done = in_this_process(main, "run", study, "--out", folder, cwd=folder)
            assert done.returncode == 0, done.stdout + done.stderr
            yield folder / "hybrids-tiny", done.stdout, study


def rows_of(folder, name):
    with open(folder / "report" / "tables" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("studied", [TRAINED], indirect=True)
def test_every_run_is_trained_and_evaluated(studied):
    folder, output, _ = studied
    ids = [f"{arch}-{size}-c128-s0" for arch in LABELS for size in SIZES]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == sorted(ids)
    assert "checked hgrn2-3to1, gated_deltanet-3to1: ok" in output
    for run_id in ids:
        rundir = RunDir(folder / "runs" / run_id)
        rows, checkpoints = rundir.checked_rows().rows, rundir.checkpoints()
        losses = [read_json(rundir.evaluation(saved.step))["values"]["loss"] for saved in checkpoints]
        assert rundir.status()["state"] == "done" and len(losses) == 4
        assert losses == sorted(losses, reverse=True) and losses[-1] < rows[0]["loss"] - 2, run_id
    kinds = read_json(folder / "runs" / ids[3] / "run.json")["model"]["kinds"]
    assert kinds.keys() == {"hgrn2", "transformer"} and kinds["transformer"]["position"] == "none"


def test_sizes_are_the_same_for_all(studied):
    runs = pd.read_parquet(studied[0] / "results" / "runs.parquet")
    for size, target in zip(SIZES, (40e3, 63.2e3, 100e3), strict=True):
        of_size = runs[runs["size"] == size]
        assert set(of_size["arch"]) == set(LABELS)
        assert (of_size["n_params_non_embedding"] / target - 1).abs().max() < 0.031


def test_fits_tables_and_pages_name_them_in_the_grids_order(studied):
    folder, output, _ = studied
    fits = fits_of(read_json(folder / "results" / "fits.json"))
    assert [group.name for group in fits.groups] == list(LABELS)
    assert [row["run"] for row in rows_of(folder, "runs")][::3] == [f"{arch}-n40k-c128-s0" for arch in LABELS]
    compared = {row["architecture"]: float(row["loss at this C"]) for row in rows_of(folder, "losses")}
    assert set(compared) == set(LABELS.values()) and list(compared.values()) == sorted(compared.values())
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "HGRN2, HGRN2 3:1, Gated DeltaNet 3:1, Transformer. 12 runs (12 done)." in page
    assert all(f"\n{label} " in output for label in LABELS.values())


def test_the_commands_after_it_know_them(studied, tmp_path):
    folder, _, study = studied
    for words in (["status"], ["fit", "study"], ["plan"]):
        done = in_this_process(main, *words, study, "--out", folder.parent, "--json", cwd=tmp_path)
        assert done.returncode == 0 and all(arch in done.stdout for arch in LABELS), done.stderr
    done = in_this_process(main, "status", study, "--out", folder.parent, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == f"all runs are done; the report: {folder / 'report' / 'index.html'}"


@pytest.mark.parametrize("studied", [TRAINED], indirect=True)
def test_its_publication_is_made_again(studied, tmp_path):
    folder, _, study = studied
    done = in_this_process(main, "publish", study, "published", "--out", folder.parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = in_this_process(main, "publish", "--check", "published", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_studies_for_a_gpu_and_for_two_cores_compare_the_same():
    with as_registered():
        large, tiny = load_study("hybrids"), load_study("hybrids-tiny")
        assert large.grid.archs == tiny.grid.archs == list(LABELS) and large.architectures == tiny.architectures
        for spec in (large, tiny):
            runs = spec.runs("seed=0")
            assert len(runs) == len(LABELS) * len(SIZES) and {run.config.n_layers % 4 for run in runs} == {0}
