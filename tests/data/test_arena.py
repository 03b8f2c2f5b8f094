"""The arena's sets: made ones whatever the number of processes, and hand-made files in their published layouts."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data import arena
from data.arena import TASKS
from data.labelled import SPLITS, LabelledSet
from data.labelled_sources import MADE, check_set
from data.vocabulary import FOLDER, SETS


def write(source: str, directory: Path) -> LabelledSet:
    return TASKS[source.partition(":")[0]].write(source, directory, lambda *_: None)


def sizes_of(labelled: LabelledSet) -> list[int]:
    return [len(labelled.split(split).labels) for split in SPLITS]


def examples_of(labelled: LabelledSet, split: str) -> list[list[bytes | int]]:
    """The documents of each example, and its class."""
    tokens, offsets, labels = labelled.split(split)
    each = labelled.facts.documents_per_example
    texts = [tokens[a:b].tobytes() for a, b in pairwise(offsets)]
    return [[*texts[i * each : (i + 1) * each], int(label)] for i, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("source", "n"),
    [("listops:3:48", [48, 1, 1]), ("pathfinder:3:8", [8, 1, 1]), ("path-x:3:8", [8, 1, 1])],
)
def test_a_made_set_does_not_depend_on_the_processes(tmp_path, monkeypatch, source, n):
    sets = []
    monkeypatch.setattr(arena, "UNIT", 30 if source.startswith("listops") else 6)
    for processes in (1,) if source.startswith("path-x") else (1, 2):  # whose images pathfinder's code makes
        monkeypatch.setattr(arena, "n_threads", lambda n=processes: n)
        sets.append(write(source, tmp_path / str(processes)))
    assert sets[0].fingerprint == sets[-1].fingerprint
    assert sizes_of(sets[0]) == n
    assert len({bytes(text) for text, _ in examples_of(sets[0], "train")}) == n[0]  # each unit's own
    if source.startswith("path-x"):  # as published
        tokens = sets[0].split("train").tokens
        assert tokens.shape == (8 * 128 * 128,) and 0.06 < (tokens > 0).mean() < 0.08
    assert sets[0].manifest["origin"] == {"source": source} and sets[0].facts == TASKS[source.split(":")[0]].facts


def test_progress_counts_examples(tmp_path):
    calls: list[tuple[int, int | None, str]] = []
    TASKS["listops"].write("listops:0:480", tmp_path / "set", lambda *progress: calls.append(progress))
    assert calls == [(500, 500, "500 examples made")]


def test_the_published_numbers_of_examples_are_the_default():
    sizes = {name: TASKS[name].find("7").counts for name in ("listops", "pathfinder", "path-x")}
    assert sizes == {
        "listops": (96_000, 2_000, 2_000),
        "pathfinder": (160_000, 20_000, 20_000),
        "path-x": (160_000, 20_000, 20_000),
    }


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "0:", "0:47", "0:1:2", "0:٣", str(1 << 63)])
def test_what_is_no_seed_is_refused_in_one_line(tmp_path, text):
    with pytest.raises(InputError, match=r"^corpus\.source: '.*seed|SEED"):
        write(f"listops:{text}", tmp_path / "set")
    assert not list(tmp_path.iterdir())


def write_reviews(folder: Path) -> Path:
    for split, n in (("train", 12), ("test", 3)):
        for kind in ("pos", "neg"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(n):
                (folder / split / kind / f"{i}_7.txt").write_text(f"{kind} {split} {i} 好")
    return folder


def test_imdb_is_read_from_its_folder(tmp_path):
    folder = write_reviews(tmp_path / "acl Imdb")
    (folder / "test" / "pos" / "1_7.txt").write_bytes(b"a\0b" + b"x" * 5000)
    (folder / "train" / "unsup").mkdir()
    labelled = write(f"imdb:{folder}", tmp_path / "set")
    assert sizes_of(labelled) == [20, 4, 6]
    held_out = [[f"{kind} train {i} 好".encode(), label] for i in (0, 10) for label, kind in enumerate(("neg", "pos"))]
    assert examples_of(labelled, "validation") == held_out
    assert examples_of(labelled, "test")[3] == [b"ab" + b"x" * 4094, 1]
    assert examples_of(labelled, "train")[0] == ["neg train 1 好".encode(), 0]


def write_pairs(folder: Path) -> None:
    for name in ("train", "eval", "test"):
        lines = f'1.0\tA-1\tB-2\tone "{name}"\ttwo\n0.0\tA-1\tC\t\t{"y" * 4001}\n'
        (folder / f"new_aan_pairs.{name}.tsv").write_text(lines)


def test_aan_is_read_from_its_files(tmp_path):
    write_pairs(tmp_path)
    labelled = write(f"aan:{tmp_path}", tmp_path / "set")
    assert examples_of(labelled, "validation") == [[b'one "eval"', b"two", 1], [b" ", b"y" * 4000, 0]]


def records(n: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).integers(0, 256, (n, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(n) % 10
    return rows


def write_images(folder: Path) -> None:
    for i, name in enumerate(arena.CIFAR10.names):
        records(20, i).tofile(folder / name)


def test_cifar10_is_read_from_its_binary_files(tmp_path):
    write_images(tmp_path)
    labelled = write(f"cifar10:{tmp_path}", tmp_path / "set")
    assert sizes_of(labelled) == [90, 10, 20]
    red, green, blue = records(20, 5)[7, 1:].reshape(3, 32, 32).astype(float)
    tokens, _, labels = labelled.split("test")
    grey = tokens.reshape(-1, 32, 32)[7]
    assert labels[7] == 7 and np.abs(grey - (0.2989 * red + 0.587 * green + 0.114 * blue)).max() <= 0.6


def test_what_is_not_there_is_named_with_its_layout_and_size_before_it_is_read(tmp_path):
    for source, missing, size in (
        ("imdb", "train/neg is not there", "84 MB"),
        ("aan", r"new_aan_pairs\.train\.tsv is not there", "147,086"),
        ("cifar10", r"data_batch_1\.bin is not there", "30,730,000 bytes"),
    ):
        for folder in (tmp_path / "absent", ""):
            with pytest.raises(InputError, match=rf"^corpus\.source: [^\n]*{missing}; [^\n]*{size}[^\n]*$"):
                check_set(f"{source}:{folder}")


def test_damaged_files_are_named(tmp_path):
    for name in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("1.0\ta\tb\tone\ttwo\n2\ta\tb\tone\ttwo\n")
    with pytest.raises(InputError, match=r"train\.tsv: line 2 is none of"):
        write(f"aan:{tmp_path}", tmp_path / "set")
    (tmp_path / "new_aan_pairs.train.tsv").write_text("")
    with pytest.raises(InputError, match=r"train\.tsv is empty"):
        write(f"aan:{tmp_path}", tmp_path / "set")
    for name in arena.CIFAR10.names:
        (tmp_path / name).write_bytes(b"x" * 3074)
    with pytest.raises(InputError, match=r"data_batch_1\.bin: cannot be read"):
        write(f"cifar10:{tmp_path}", tmp_path / "set")
    for first_class, words in ((10, "has class 10, not 0 to 9"), (None, "is empty")):
        write_images(tmp_path)
        rows = records(20 if first_class else 0, 0)
        rows[:1, 0] = first_class or 0
        rows.tofile(tmp_path / "data_batch_2.bin")
        with pytest.raises(InputError, match=rf"^corpus\.source: [^\n]*data_batch_2\.bin {words}; name [^\n]*$"):
            write(f"cifar10:{tmp_path}", tmp_path / "set")
    folder = write_reviews(tmp_path / "reviews")
    (folder / "train" / "pos" / "notes.txt").write_text("no review")
    with pytest.raises(InputError, match=r"^corpus\.source: [^\n]*pos/notes\.txt is no NUMBER_RATING\.txt"):
        write(f"imdb:{folder}", tmp_path / "set")


def test_the_names_that_a_study_file_knows_are_those_of_the_tasks():
    assert (FOLDER, *MADE) == SETS
