"""A study of a labelled set from its file to the table of test accuracies, by the trainer, loader and report of any
study: whole, killed and continued; real digits in a slow test."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.held_out import load_held_out
from analysis.report.accuracy import accuracy_rows
from data.files import read_json
from data.labelled import Facts, LabelledSet, LabelledSplit, write_set
from scaling.cli.main import main
from scaling.rundir.directory import RunDir
from scaling.study.spec import load_study
from tests.commands import in_this_process, refusal_of
from tests.data.image_folder import write_folder
from tests.scaling.small_runs import exact_rows, train

PADDING, FILLER, MARK = 11, 8, 9


def write_neighbours(
    directory: Path, sizes: tuple[int, int, int], length: int, pairs: int, shortest: int | None = None
) -> None:
    """Whether the ids that stand together are alike, as 9 9 and 10 10, or not, as 9 10 and 10 9: `pairs` times, an even
    number, at even places of a row of `shortest` (default: length) to `length` ids, and filler between. Each row has a
    twin of the other class after it, with the same ids as often, so that no bag of words tells them apart. A row and
    the row backwards are of one class, as encoders without positions take them to be. Padding follows shorter rows."""
    random, splits, first = np.random.default_rng(0), {}, np.arange(pairs) % 2
    for name, n in zip(("train", "validation", "test"), sizes, strict=True):
        lengths = np.repeat(random.integers(shortest or length, length + 1, n // 2), 2)
        documents = []
        for of_row in lengths[::2].tolist():
            places = 2 * random.choice(of_row // 2, pairs, replace=False)
            row = np.arange(of_row)
            is_filler = ~np.isin(row // 2 * 2, places)
            row[is_filler] = random.permutation(np.arange(of_row - 2 * pairs) % FILLER)
            row[places] = MARK + first
            for differ in (0, 1):
                row[places + 1] = MARK + (first ^ differ)
                documents.append(row.astype(np.uint8))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        splits[name] = LabelledSplit(np.concatenate(documents), offsets, np.arange(n) % 2)
    write_set(directory, Facts(2, 12, length, PADDING), splits, {"source": "pairs of ids, alike or not"})


def write_study(
    folder: Path,
    source: Path,
    archs: list[str],
    n_steps: int,
    rows: int,
    row: int,
    seeds: Sequence[int] = (0,),
    size: Sequence[int] = (2, 64, 2, 128),
    training: Mapping[str, object] = MappingProxyType({}),
    **more: object,
) -> Path:
    """size: n_layers, d_model, n_heads and d_ffn."""
    shape = dict(zip(("n_layers", "d_model", "n_heads", "d_ffn"), size, strict=True))
    study = {
        "name": "classes",
        "out": str(folder / "out"),
        "corpus": {"source": f"labelled:{source}", "epochs": 1000},
        "grid": {"archs": archs, "sizes": {"d": shape}, "seeds": [*seeds]},
        "training": {
            "n_tokens": n_steps * rows * row,
            "batch_tokens": rows * row,
            "lr": 1e-3,
            "schedule": "cosine",
            "precision": "fp32",
        }
        | {"state_every_tokens": n_steps * rows * row // 3}
        | dict(training),
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
    write_neighbours(folder / "set", (64, 16, 40), 16, 2, shortest=8)
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


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("cosine", "forecast: not predicted, as study classes: no run can be fitted"),
        ("constant", "predict: 0 of 1 run predicted"),
    ],
)
def test_a_forecast_without_a_law_leaves_the_accuracies(study, tmp_path, schedule, message):
    size = {"n_layers": 2, "d_model": 128, "n_heads": 2, "d_ffn": 256}
    more = {"forecast": {"sizes": {"large": size}, "seeds": [9], "n_tokens": 12 * 8 * 16}}
    more |= {"training": {"schedule": schedule, "n_checkpoints": 1}, "fit": {"smoothing_tokens": 512}}
    path = write_study(tmp_path, study.parent / "set", ["hgrn2"], 6, rows=8, row=16, **more)
    result = in_this_process(main, "run", path)
    assert result.returncode == 0, result.stderr
    assert message in result.stdout and set(accuracies(result.stdout)) == {"HGRN2"}


def continues_after_a_kill(folder, copy):
    """The run of HGRN2 of a prepared study ends with the same numbers in a copy where it is killed on the way."""
    (rundir,) = [RunDir(path) for path in (folder / "runs").glob("hgrn2-*")]
    other = RunDir(copy / "runs" / rundir.path.name)
    shutil.copytree(folder, copy)
    assert train(rundir)[0] == 0
    assert train(other, KILL_AT_WRITE="state:2")[0] == -signal.SIGKILL
    assert train(other)[0] == 0
    assert exact_rows(other) == exact_rows(rundir)
    weights = [list(run.path.rglob("model.safetensors"))[-1].read_bytes() for run in (rundir, other)]
    assert weights[0] == weights[1]


def test_a_run_that_was_killed_continues_to_the_same_numbers(study, tmp_path):
    assert in_this_process(main, "train", study, "--prepare", "--out", tmp_path).returncode == 0
    continues_after_a_kill(tmp_path / "classes", tmp_path / "other")


def test_a_run_of_augmented_images_that_was_killed_continues_to_the_same_numbers(tmp_path):
    pytest.importorskip("timm.data", exc_type=(ImportError, RuntimeError))
    write_folder(tmp_path / "images")
    corpus = {"source": f"images:{tmp_path}/images:2:28", "epochs": 1000, "augment": {"erase": 0.5}}
    more = {"objective": {"patch": 14, "positions": "learned"}, "corpus": corpus}
    study = write_study(tmp_path, tmp_path, ["hgrn2"], n_steps=6, rows=7, row=28 * 28 * 3, **more)
    assert in_this_process(main, "train", study, "--prepare").returncode == 0
    continues_after_a_kill(tmp_path / "out/classes", tmp_path / "other")


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


def test_perplexities_of_a_text_stand_beside_published_ones():
    table = pd.DataFrame({"run_id": ["hgrn2-d-c16-s0"], "arch": "hgrn2", "size": "d", "context_length": 16, "seed": 0})
    scores = table[["run_id"]].assign(task="perplexity-test", metric="perplexity", step=6, value=25.25)
    rows = accuracy_rows(table, scores, {"hgrn2": 23.73, "S4": 24.0}, "test", "perplexity-test")
    assert [(row["model"], row["perplexity-test"], row["published"]) for row in rows] == [
        ("HGRN2", "25.25", "23.73"),
        ("S4", "-", "24.00"),
    ]


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
    shape, context = content["grid"]["sizes"]["d"], {"context_length": 8}

    def with_changes(**changes: object) -> Path:
        path = tmp_path / "other.yaml"
        path.write_text(yaml.safe_dump(content | {"out": str(tmp_path / "out")} | changes), encoding="utf-8")
        return path

    for words, changes in (
        ("no labelled set is here", {"corpus": {"source": f"labelled:{tmp_path}/none"}}),
        (
            "other.yaml: objective: is of labelled sets, and corpus.source is text ('synthetic:0:60000'): leave it out",
            {"corpus": {"source": "synthetic:0:60000"}, "objective": {"pooling": "last"}},
        ),
        (
            "other.yaml: corpus.source: 'pathx:0' is no labelled set (did you mean 'path-x'?)",
            {"corpus": {"source": "pathx:0"}, "objective": {}},
        ),
        ("'texts:a' is no labelled set (valid: labelled,", {"corpus": {"source": "texts:a"}, "objective": {}}),
        (
            "'image:imagenet:1000:224' is no labelled set (did you mean 'images'?)",
            {"corpus": {"source": "image:imagenet:1000:224", "augment": {}}},
        ),
        ("ids of its own", {"corpus": content["corpus"] | {"tokenizer": "bytes"}}),
        ("source is text", {"corpus": {"source": "synthetic:0:60000", "tokenizer": "ids"}}),
        ("pooling", {"objective": {"pooling": "max"}}),
        ("other.yaml: corpus.augment: is of folders of images", {"corpus": content["corpus"] | {"augment": {}}}),
        ("corpus.augment: is of", {"corpus": {"source": "synthetic:0:60000", "augment": {}}}),
        ("patches are cut of images", {"objective": {"patch": 2}}),
        ("unknown scan 'axis' (did you mean 'axes'?)", {"objective": {"scan": "axis"}}),
        ("scan: axes are rows and columns of square images", {"objective": {"scan": "axes"}}),
        ("hgrn2/d: model.context_length=8 is not the 16 ids of a row of labelled:", {"model": {"context_length": 8}}),
        ("model.context_length=8 is not", {"grid": content["grid"] | {"axes": {"model.context_length": [16, 8]}}}),
        ("model.context_length=8 is not", {"grid": content["grid"] | {"sizes": {"d": shape | {"hgrn2": context}}}}),
        ("llama/d: model.context_length=8", {"overrides": {"by_arch": {"llama": {"model": context}}}}),
        ("evaluation.published.A: -1 is no percentage, 0 to 100", {"evaluation": {"published": {"A": -1}}}),
        ("evaluation.published.A: 100.5 is no percentage", {"evaluation": {"published": {"A": 100.5}}}),
        ("reset_at_documents", {"training": content["training"] | {"reset_at_documents": True}}),
        ("too small", {"training": content["training"] | {"n_tokens": 10**9}}),
    ):
        assert words in refusal_of("run", with_changes(**changes)), words
        assert words == "too small" or not (tmp_path / "out").exists()  # the set is made before it is counted
    assert "--set model.context_length=8: hgrn2/d: model.context_length=8 is not" in refusal_of(
        "plan", study, "--set", "model.context_length=8"
    )
    with_changes(model={"context_length": 16})
    assert {run.context_length for run in load_study(tmp_path / "other.yaml").runs()} == {16}


def of_images(images: np.ndarray, labels: np.ndarray, shifts: Sequence[tuple[int, int]] = ((0, 0),)) -> LabelledSplit:
    """Images [n, 8, 8] as examples: all of them moved by the first of `shifts`, in pixels, then by the next. What moves
    out is cut; what comes in is 0."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moved = np.concatenate([padded[:, 1 + down : 9 + down, 1 + right : 9 + right] for down, right in shifts])
    offsets = np.arange(len(moved) + 1) * 64
    return LabelledSplit(moved.astype(np.uint8).reshape(-1), offsets, np.tile(labels, len(shifts)).astype(np.int64))


@pytest.mark.slow
def test_digits_are_learned(tmp_path):
    """scikit-learn's 1,797 images of 8 x 8 pixels, the first of the three runs of docs/classification.md: 99.4% there.
    Its setting was chosen on the validation images."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits, order = datasets.load_digits(), np.random.default_rng(2).permutation(1797)
    chosen = {"train": order[:1257], "validation": order[1257:1437], "test": order[1437:]}
    shifts = {"train": ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))}
    splits = {
        name: of_images(digits.images[rows], digits.target[rows], shifts.get(name, ((0, 0),)))
        for name, rows in chosen.items()
    }
    write_set(tmp_path / "set", Facts(10, 17, 64, image=(8, 8, 1)), splits, {"source": "scikit-learn's digits"})
    more = {"size": (2, 128, 4, 256), "objective": {"positions": "learned", "patch": 4}}
    study = write_study(tmp_path, tmp_path / "set", ["hgrn2"], n_steps=3000, rows=32, row=64, **more)
    result = in_this_process(main, "run", study)
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)["HGRN2"] >= 97


def counts(split: LabelledSplit) -> np.ndarray:
    """How often each id is in each document, [documents, ids]."""
    return np.array([np.bincount(part, minlength=PADDING) for part in np.split(split.tokens, split.offsets[1:-1])])


def test_twins_have_the_same_ids_as_often_and_other_classes(tmp_path):
    write_neighbours(tmp_path / "set", (20, 2, 2), 16, 4, shortest=8)
    train = LabelledSet(tmp_path / "set").train
    assert (counts(train)[::2] == counts(train)[1::2]).all() and train.labels.tolist() == [0, 1] * 10


@pytest.mark.slow
def test_what_no_bag_of_words_tells_is_learned_at_4096_ids(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    write_neighbours(tmp_path / "set", (400, 32, 128), 4096, 1024)
    labelled = LabelledSet(tmp_path / "set")
    bag = linear_model.LogisticRegression().fit(counts(labelled.train), labelled.train.labels)
    assert bag.score(counts(labelled.split("test")), labelled.split("test").labels) == 0.5
    more = {"size": (1, 32, 1, 64), "training": {"lr": 5e-3, "n_checkpoints": 1}}
    study = write_study(tmp_path, tmp_path / "set", ["hgrn2"], 100, rows=4, row=4096, **more)
    result = in_this_process(main, "run", study)
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)["HGRN2"] >= 99
