"""One rule for how a batch splits: what the trainer accepts is what study files, plans and estimates call even."""

import pytest

from scaling.study.batch import split_batch
from scaling.study.training import Training

CONTEXT = 64


def split(rows: int, processes: int, micro_rows: int | None = None):
    training = Training(
        batch_tokens=rows * CONTEXT, micro_batch_tokens=None if micro_rows is None else micro_rows * CONTEXT
    )
    return split_batch(training, CONTEXT, processes)


@pytest.mark.parametrize(
    ("asked", "process_rows", "micro_rows", "passes", "is_even"),
    [
        ((8, 1), 8, 8, 1, True),
        ((8, 2), 4, 4, 1, True),
        ((8, 2, 2), 4, 2, 2, True),
        ((8, 4, 4), 2, 2, 1, True),  # a process has fewer sequences than a micro-batch may hold
        ((12, 2, 4), 6, 4, 2, False),  # the second pass is half empty
        ((8, 3), 3, 3, 1, False),
        ((2, 3), 1, 1, 1, False),  # a process without work
    ],
)
def test_split(asked, process_rows, micro_rows, passes, is_even):
    result = split(*asked)
    numbers = (result.process_rows, result.micro_rows, result.passes, result.is_even)
    assert numbers == (process_rows, micro_rows, passes, is_even)


def test_less_than_one_sequence_is_not_even():
    assert not split_batch(Training(batch_tokens=256, micro_batch_tokens=32), CONTEXT, 1).is_even


def test_even_means_whole_micro_batches_for_every_process():
    for rows in range(1, 25):
        for processes in range(1, 9):
            for micro in (None, 1, 2, 3, 4, 6):
                result = split(rows, processes, micro)
                whole = rows % processes == 0 and (rows // processes) % result.micro_rows == 0
                assert result.is_even == whole
                assert result.passes * result.micro_rows >= result.process_rows
