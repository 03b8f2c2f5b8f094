"""A study of a labelled set from its file to the table of test accuracies, by the trainer, loader and report of any
study: whole, killed and continued; real digits in a slow test."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.held_out import load_held_out
from analysis.report.accuracy import accuracy_rows
from data.files import read_json
from data.labelled import Facts, LabelledSplit, write_set
from scaling.cli.main import main
from scaling.rundir.directory import RunDir
from scaling.study.spec import load_study
from tests.commands import in_this_process, refusal_of
from tests.data.image_folder import write_folder
from tests.scaling.small_runs import exact_rows, start

PADDING, FILLER = 11, 8


def write_order(directory: Path, sizes: tuple[int, int, int], length: int, pairs: int = 1) -> None:
    """Whether ids 9 and 10 follow each other in this order or the other, in `pairs` places of a row: rows of both
    classes have the same ids, so that no bag of words tells them apart. Of rows shorter than `length` the rest is
    padding."""
    random, splits = np.random.default_rng(0), {}
    for name, n in zip(("train", "validation", "test"), sizes, strict=True):
        lengths = random.integers(length // 2, length + 1, n)
        labels = np.arange(n) % 2
        documents = []
        for of_row, label in zip(lengths.tolist(), labels.tolist(), strict=True):
            row = random.integers(0, FILLER, of_row)
            for place in 2 * random.choice(of_row // 2, pairs, replace=False):
                row[place : place + 2] = (9, 10) if label else (10, 9)
            documents.append(row.astype(np.uint8))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        splits[name] = LabelledSplit(np.concatenate(documents), offsets, labels)
    write_set(directory, Facts(2, 12, length, PADDING), splits, {"source": "the order of two ids"})


def write_study(
    folder: Path, source: Path, archs: list[str], n_steps: int, rows: int, row: int, **more: object
) -> Path:
    study = {
        "name": "classes",
        "out": str(folder / "out"),
        "corpus": {"source": f"labelled:{source}", "epochs": 1000},
        "grid": {"archs": archs, "sizes": {"d": {"n_layers": 2, "d_model": 64, "n_heads": 2, "d_ffn": 128}}},
        "training": {
            "n_tokens": n_steps * rows * row,
            "batch_tokens": rows * row,
            "lr": 1e-3,
            "schedule": "cosine",
            "precision": "fp32",
        }
        | {"state_every_tokens": n_steps * rows * row // 3},
        "evaluation": {"tasks": ["classify"], "published": {"hgrn2": 60.52, "S4 (Gu et al.)": 59.6}},
    }
    path = folder / "classes.yaml"
    path.write_text(yaml.safe_dump(study | more), encoding="utf-8")
    return path


def accuracies(output: str) -> dict[str, float]:
    """{first word of the model's name: test accuracy} of the table that `scaling run` prints."""
    rows = output[output.index("test accuracy, %") :].splitlines()[2:]
    cells = [row.split() for row in rows[: rows.index("")]]
    return {row[0]: float(row[3]) for row in cells if row[2] != "-" and row[0] != "S4"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a study 数")
    write_order(folder / "set", (64, 16, 40), 16)
    return write_study(folder, folder / "set", ["hgrn2", "llama"], n_steps=6, rows=8, row=16)


def test_a_study_of_classes_runs_from_file_to_table(study):
    first = in_this_process(main, "run", study)
    assert first.returncode == 0, first.stderr
    assert set(accuracies(first.stdout)) == {"HGRN2", "LLaMA"}
    assert "60.52" in first.stdout and "S4 (Gu et al.)" in first.stdout and "nats/example" in first.stdout
    report = (study.parent / "out/classes/report/index.html").read_text(encoding="utf-8")
    assert "Test accuracy" in report and "60.52" in report
    (run, *_) = (study.parent / "out/classes/runs").iterdir()
    (result, *_) = (read_json(path) for path in run.glob("evals/00000006/validation.json"))
    assert load_held_out(run.parents[1], run.name).loss == pytest.approx(result["values"]["loss"])  # nats an example
    for words in (("generate", run, "x"), ("inspect", run), ("export", run, study.parent / "exported")):
        assert "is a classifier, which reads rows of ids" in refusal_of(*words)
    assert in_this_process(main, "publish", study, study.parent / "published").returncode == 0
    results = (study.parent / "published/RESULTS.md").read_text(encoding="utf-8")
    assert "test accuracy, %" in results and "60.52" in results and "cannot be read" not in results
    heads, _, *rows = in_this_process(main, "eval", "table", study).stdout.splitlines()[:4]
    assert heads.split() == ["run", "step", "classify"]
    assert [float(row.split()[2]) for row in rows] == list(accuracies(first.stdout).values())
    again = in_this_process(main, "run", study)
    assert "nothing is left to train" in again.stdout and accuracies(again.stdout) == accuracies(first.stdout)


def test_a_run_that_was_killed_continues_to_the_same_numbers(study, tmp_path):
    assert in_this_process(main, "train", study, "--prepare", "--out", tmp_path).returncode == 0
    (rundir,) = [RunDir(path) for path in (tmp_path / "classes/runs").glob("hgrn2-*")]
    other = RunDir(tmp_path / "other/runs" / rundir.path.name)
    shutil.copytree(tmp_path / "classes", tmp_path / "other")
    assert start(rundir).wait() == 0
    killed = start(other, KILL_AT_WRITE="state:2")
    assert killed.wait() == -signal.SIGKILL
    assert start(other).wait() == 0
    assert exact_rows(other) == exact_rows(rundir)
    weights = [list(run.path.rglob("model.safetensors"))[-1].read_bytes() for run in (rundir, other)]
    assert weights[0] == weights[1]


def test_a_run_of_augmented_images_that_was_killed_continues_to_the_same_numbers(tmp_path):
    pytest.importorskip("timm.data", exc_type=(ImportError, RuntimeError))
    write_folder(tmp_path / "images")
    corpus = {"source": f"images:{tmp_path}/images:2:28", "epochs": 1000, "augment": {"erase": 0.5}}
    more = {"objective": {"patch": 14, "positions": "learned"}, "corpus": corpus}
    study = write_study(tmp_path, tmp_path, ["hgrn2"], n_steps=6, rows=7, row=28 * 28 * 3, **more)
    assert in_this_process(main, "train", study, "--prepare").returncode == 0
    (rundir,) = [RunDir(path) for path in (tmp_path / "out/classes/runs").iterdir()]
    other = RunDir(tmp_path / "other/runs" / rundir.path.name)
    shutil.copytree(tmp_path / "out/classes", tmp_path / "other")
    assert start(rundir).wait() == 0
    assert start(other, KILL_AT_WRITE="state:2").wait() == -signal.SIGKILL
    assert start(other).wait() == 0
    assert exact_rows(other) == exact_rows(rundir)
    weights = [list(run.path.rglob("model.safetensors"))[-1].read_bytes() for run in (rundir, other)]
    assert weights[0] == weights[1]


def test_runs_that_differ_by_their_seed_are_a_row_whatever_their_size_is_called():
    runs = [("s1", 1), ("s1", 10), ("s10", 1), ("s10", 10)]
    ids = [f"hgrn2-{size}-c16-s{seed}-gatesbounded" for size, seed in runs]
    table = pd.DataFrame({"run_id": ids, "arch": "hgrn2", "context_length": 16})
    table[["size", "seed"]] = runs
    scores = pd.DataFrame(
        {"run_id": ids, "task": "classify", "metric": "acc", "step": 6, "value": [0.5, 0.7, 0.8, 0.8]}
    )
    rows = accuracy_rows(table, scores, {}, "validation")
    kinds = [(row["runs"], row["seeds"], row["validation accuracy, %"]) for row in rows]
    assert kinds == [("hgrn2-s1-c16-gatesbounded", "2", "60.00"), ("hgrn2-s10-c16-gatesbounded", "2", "80.00")]


@pytest.mark.parametrize("name", ["manifest.json", "test.tokens.npy"])
def test_a_damaged_copy_of_a_set_is_made_again(study, tmp_path, name):
    assert in_this_process(main, "data", study, "--out", tmp_path).returncode == 0
    file = tmp_path / "classes/corpus" / name
    whole = file.read_bytes()
    file.write_bytes(whole[:60])
    assert in_this_process(main, "data", study, "--out", tmp_path).returncode == 0
    assert file.read_bytes() == whole


def test_encoders_follow_from_the_set_and_the_objective(study, tmp_path):
    (run, _) = load_study(study).runs()
    facts = {"n_classes": 2, "padding_id": PADDING, "documents": 1, "image": None}
    assert run.model["encoder"] == facts | {"patch": None, "pooling": "mean", "positions": "none"}
    assert (run.model["vocab_size"], run.context_length) == (12, 16)
    content = yaml.safe_load(study.read_text(encoding="utf-8")) | {"objective": {"pooling": "last"}}
    (tmp_path / "last.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (last, _) = load_study(tmp_path / "last.yaml").runs()
    assert last.model["encoder"]["pooling"] == "last" and last.spec_hash != run.spec_hash


def test_what_does_not_go_together_is_one_line(study, tmp_path):
    content = yaml.safe_load(study.read_text(encoding="utf-8"))

    def with_changes(**changes: object) -> Path:
        path = tmp_path / "other.yaml"
        path.write_text(yaml.safe_dump(content | {"out": str(tmp_path / "out")} | changes), encoding="utf-8")
        return path

    for words, changes in (
        ("no labelled set is here", {"corpus": {"source": f"labelled:{tmp_path}/none"}}),
        ("corpus.source is text", {"corpus": {"source": "synthetic:0:60000"}, "objective": {"pooling": "last"}}),
        ("ids of its own", {"corpus": content["corpus"] | {"tokenizer": "bytes"}}),
        ("source is text", {"corpus": {"source": "synthetic:0:60000", "tokenizer": "ids"}}),
        ("pooling", {"objective": {"pooling": "max"}}),
        ("is of folders of images", {"corpus": content["corpus"] | {"augment": {}}}),
        ("corpus.augment: is of", {"corpus": {"source": "synthetic:0:60000", "augment": {}}}),
        ("patches are cut of images", {"objective": {"patch": 2}}),
        ("reset_at_documents", {"training": content["training"] | {"reset_at_documents": True}}),
        ("too small", {"training": content["training"] | {"n_tokens": 10**9}}),
    ):
        assert words in refusal_of("run", with_changes(**changes)), words


@pytest.mark.slow
def test_digits_are_learned(tmp_path):
    """scikit-learn's 1,797 images of 8 x 8 pixels, in patches of 4 x 4."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits, order = datasets.load_digits(), np.random.default_rng(0).permutation(1797)
    splits = {
        name: LabelledSplit(
            digits.data[chosen].astype(np.uint8).reshape(-1),
            np.arange(len(chosen) + 1) * 64,
            digits.target[chosen].astype(np.int64),
        )
        for name, chosen in (("train", order[:1437]), ("validation", order[1437:1617]), ("test", order[1617:]))
    }
    write_set(tmp_path / "set", Facts(10, 17, 64, image=(8, 8, 1)), splits, {"source": "scikit-learn's digits"})
    more = {"objective": {"positions": "learned", "patch": 4}}
    study = write_study(tmp_path, tmp_path / "set", ["hgrn2"], n_steps=1500, rows=32, row=64, **more)
    result = in_this_process(main, "run", study)
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)["HGRN2"] >= 97
