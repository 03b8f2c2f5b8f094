"""Labelled sets: what is written is read again; what does not fit together is refused in one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.labelled import SPLITS, Facts, LabelledSet, LabelledSplit, write_set

FACTS = Facts(n_classes=2, vocab_size=11, max_length=4, padding_id=10, documents_per_example=2)
SPLIT = LabelledSplit(np.arange(7, dtype=np.uint8), np.array([0, 3, 4, 6, 7]), np.array([1, 0]))


def written(directory: Path, facts: Facts = FACTS, **changes: np.ndarray) -> LabelledSet:
    return write_set(directory, facts, dict.fromkeys(SPLITS, SPLIT._replace(**changes)), {"generator": "test"})


def test_rows_hold_the_documents_their_padding_and_the_class(tmp_path):
    labelled = LabelledSet(written(tmp_path / "a set 数").directory, verify=True)
    expected = [[4, 5, 10, 10, 6, 10, 10, 10, 0], [0, 1, 2, 10, 3, 10, 10, 10, 1]]
    assert labelled.train.rows(np.array([1, 0]), labelled.facts).tolist() == expected
    assert labelled.facts == FACTS and labelled.n_examples("test") == 2


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
