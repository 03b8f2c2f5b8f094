"""Labelled sets: what is written is read again; what does not fit together is refused in one line."""

from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from arch.errors import InputError
from data.corpus import Corpus, LabelledCorpus, open_corpus, prepare
from data.labelled import SPLITS, Facts, LabelledSet, LabelledSplit, Rows, write_set
from data.loader import Loader
from data.settings import CorpusSettings

FACTS = Facts(n_classes=2, vocab_size=11, max_length=4, padding_id=10, documents_per_example=2)
SPLIT = LabelledSplit(np.arange(7, dtype=np.uint8), np.array([0, 3, 4, 6, 7]), np.array([1, 0]))


def written(directory: Path, facts: Facts = FACTS, **changes: np.ndarray) -> LabelledSet:
    return write_set(directory, facts, dict.fromkeys(SPLITS, SPLIT._replace(**changes)), {"source": "test"})


def test_rows_hold_the_documents_their_padding_and_the_class(tmp_path):
    labelled = LabelledSet(written(tmp_path / "a set 数").directory, verify=True)
    expected = [[4, 5, 10, 10, 6, 10, 10, 10, 0], [0, 1, 2, 10, 3, 10, 10, 10, 1]]
    assert labelled.train.rows(np.array([1, 0]), labelled.facts).tolist() == expected
    assert labelled.facts == FACTS
    assert labelled.manifest["splits"]["test"] == {"documents": 4, "bytes": 7, "tokens": 17}


def test_a_set_is_known_by_its_content_wherever_it_lies(tmp_path):
    first, second = written(tmp_path / "a"), written(tmp_path / "b")
    other = written(tmp_path / "c", labels=np.array([1, 1]))
    assert first.fingerprint == second.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        (replace(FACTS, vocab_size=6, padding_id=None), {}),
        (replace(FACTS, padding_id=3), {}),
        (replace(FACTS, padding_id=11), {}),
        (replace(FACTS, max_length=2), {}),
        (replace(FACTS, padding_id=None), {}),
        (replace(FACTS, image=(2, 3, 1)), {}),
        (FACTS, {"labels": np.array([1, 2])}),
        (FACTS, {"labels": np.array([1, 0, 1])}),
        (FACTS, {"offsets": np.array([0, 3, 3, 6, 7])}),
        (FACTS, {"offsets": np.array([0, 3, 4, 6, 8])}),
        (FACTS, {"tokens": np.arange(7)}),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(tmp_path, facts, changes):
    with pytest.raises(InputError):
        written(tmp_path / "set", facts, **changes)
    assert not list(tmp_path.iterdir())


def test_a_damaged_or_missing_set_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="no labelled set is here"):
        LabelledSet(tmp_path)
    labels = written(tmp_path / "set").directory / "test.labels.npy"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"test\.labels\.npy has"):
        LabelledSet(tmp_path / "set")


def test_a_split_is_read_by_whole_rows(tmp_path):
    labelled = written(tmp_path / "set")
    rows = Rows(labelled.train, FACTS)
    assert len(rows) == 2 * 8 + 1
    assert [rows[start : start + 9].tolist() for start in (0, 8)] == labelled.train.rows(np.arange(2), FACTS).tolist()
    for wrong in (slice(1, 10), slice(0, 8), slice(None)):
        with pytest.raises(ValueError, match="by rows of 8 ids"):
            rows[wrong]


def test_a_loader_reads_each_example_once_an_epoch(tmp_path):
    labelled = written(tmp_path / "set")
    loader = Loader(Rows(labelled.train, FACTS), FACTS.row, batch_rows=1, seed=3, epochs=2)
    read = sorted(loader.batch(step)[0].tolist() for step in range(2))
    assert read == sorted(labelled.train.rows(np.arange(2), FACTS).tolist())
    assert loader.steps_available == 4


def test_a_set_is_copied_to_a_study_and_another_is_refused(tmp_path):
    first = written(tmp_path / "first")
    other = written(tmp_path / "other", labels=np.array([1, 1]))
    settings = CorpusSettings(f"labelled:{first.directory}", "ids")
    corpus = prepare(settings, tmp_path / "study" / "corpus")
    assert isinstance(corpus, LabelledCorpus) and corpus.fingerprint == first.fingerprint
    assert prepare(settings, tmp_path / "study" / "corpus").fingerprint == first.fingerprint
    assert open_corpus(tmp_path / "study" / "corpus", verify=True).fingerprint == first.fingerprint
    with pytest.raises(InputError, match="holds another labelled set"):
        prepare(CorpusSettings(f"labelled:{other.directory}", "ids"), tmp_path / "study" / "corpus")
    with pytest.raises(InputError, match="no labelled set is here"):
        prepare(CorpusSettings(f"labelled:{tmp_path}/none", "ids"), tmp_path / "third")


def test_one_process_makes_a_set_and_others_wait_for_it(tmp_path):
    settings, directory = CorpusSettings("listops:0:48", "ids"), tmp_path / "study" / "corpus"
    waits, messages, made = Event(), list[str](), list[Corpus]()

    def second(done: int, total: int | None, message: str) -> None:
        messages.append(message)
        waits.set()

    other = Thread(target=lambda: made.append(prepare(settings, directory, second)))

    def first(done: int, total: int | None, message: str) -> None:  # while the set is not yet written
        other.start()
        assert waits.wait(10)

    made.append(prepare(settings, directory, first))
    other.join(10)
    assert {*messages} == {f"waiting for another process that makes {directory}"}
    assert made[0].fingerprint == made[1].fingerprint and [*directory.parent.iterdir()] == [directory]
