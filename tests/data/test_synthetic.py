"""Synthetic text and associative recall (MQAR): frozen, and what a reader finds in them."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.synthetic import NOT_SCORED, Draws, mqar_batch, synthetic_documents

TASK = {"rows": 64, "length": 64, "n_pairs": 4, "vocab_size": 256}


def check(inputs: np.ndarray, targets: np.ndarray, n_pairs: int, vocab_size: int) -> None:
    """Read every row as a person would: the pairs, then whatever is scored, and what must not be there."""
    assert inputs.dtype == targets.dtype == np.int64 and inputs.shape == targets.shape
    half = vocab_size // 2
    for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert all(0 <= token < vocab_size for token in row)
        pairs = {row[2 * i]: row[2 * i + 1] for i in range(n_pairs)}
        assert len(pairs) == len(set(pairs.values())) == n_pairs
        assert all(0 < key < half <= value for key, value in pairs.items())
        scored = [t for t, value in enumerate(target) if value != NOT_SCORED]
        assert sorted(row[t] for t in scored) == sorted(pairs), "each key is asked for once"
        assert all(target[t] == pairs[row[t]] for t in scored)
        assert all(t >= 2 * n_pairs and t % 2 == 0 for t in scored)
        repeated = [t for t, token in enumerate(row) if token in pairs and t >= 2 * n_pairs]
        assert repeated == scored, "filler repeats no key"


@settings(max_examples=60)
@given(st.data())
def test_every_target_follows_from_the_row(data: st.DataObject) -> None:
    n_pairs = data.draw(st.integers(1, 12))
    task = {
        "rows": data.draw(st.integers(1, 9)),
        "length": data.draw(st.integers(4 * n_pairs, 4 * n_pairs + 40)),
        "n_pairs": n_pairs,
        "vocab_size": data.draw(st.integers(2 * n_pairs + 2, 600)),
    }
    percent = data.draw(st.integers(1, 100))
    seed, step = data.draw(st.integers()), data.draw(st.integers(0, 10**12))
    inputs, targets = mqar_batch(seed, step, **task, power_percent=percent)
    assert inputs.shape == (task["rows"], task["length"])
    check(inputs, targets, n_pairs, task["vocab_size"])


def test_batches_are_frozen() -> None:
    digest = hashlib.sha256()
    for step in range(3):
        for array in mqar_batch(7, step, **TASK):
            digest.update(array.astype("<i8").tobytes())
    assert digest.hexdigest() == "74d6b85b49d9f289d41890b9557474521c638e63c95b396179f99dd5bd5846a2"
    inputs, targets = mqar_batch(0, 0, rows=1, length=12, n_pairs=2, vocab_size=12)
    none = NOT_SCORED
    assert inputs.tolist() == [[1, 11, 3, 10, 1, 9, 3, 10, 0, 2, 11, 7]]
    assert targets.tolist() == [[none, none, none, none, 11, none, 10, none, none, none, none, none]]


def test_a_part_is_those_rows_of_the_batch() -> None:
    whole = mqar_batch(1, 5, **TASK)
    for part in (slice(0, 16), slice(48, None), slice(3, 60, 7)):
        for array, expected in zip(mqar_batch(1, 5, **TASK, part=part), whole, strict=True):
            assert np.array_equal(array, expected[part])
    longer = mqar_batch(1, 5, **(TASK | {"rows": 100}))
    assert np.array_equal(longer[0][:64], whole[0])


def test_gaps_follow_the_power_law() -> None:
    """The first pair's slot, whose odds no earlier pair has changed: i^(a-1), normalised."""
    for percent in (1, 50, 100):
        slots = np.concatenate(
            [
                np.argmax(targets == inputs[:, 1:2], axis=1)
                for inputs, targets in (
                    mqar_batch(3, step, 500, 64, 4, 256, power_percent=percent) for step in range(20)
                )
            ]
        )
        slots = (slots - 8) // 2
        odds = np.arange(1, 29) ** (percent / 100 - 1)
        expected = 10_000 * odds / odds.sum()
        counts = np.bincount(slots, minlength=28)
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert chi_squared < 60, f"{percent}%: {chi_squared:.0f} of 27 degrees of freedom"  # p = 0.0003


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 15}, "length=15 is too short for 4 pairs: give at least 16"),
        ({"vocab_size": 9}, "vocab_size=9 is too small for 4 pairs: give at least 10"),
        ({"n_pairs": 0}, "n_pairs=0: give at least one pair"),
        ({"rows": 0}, "rows=0 and step=0"),
        ({"power_percent": 0}, "power_percent=0: give 1"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=f"associative recall: {message}"):
        mqar_batch(0, 0, **(TASK | change))
    mqar_batch(0, 0, 1, 16, 4, 10)  # the smallest that fits


def test_text_is_frozen() -> None:
    text = "".join(synthetic_documents(7, 20_000))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "527e2aa89e35a3bbb7860bd6f71ec2b42efa94d71fa907ed80113dab9bc05053"
    )


def test_length_prefix_and_seed() -> None:
    short, long = list(synthetic_documents(1, 5_000)), list(synthetic_documents(1, 50_000))
    assert sum(map(len, long)) == 50_000 and all(text.isascii() for text in long)
    assert "".join(long).startswith("".join(short))
    assert len(set(long)) == len(long)
    assert "".join(synthetic_documents(2, 5_000)) != "".join(short)


def test_draws_are_frozen_and_even() -> None:
    draws = Draws(7, 1)
    assert draws.below(10, 8).tolist() != draws.below(10, 8).tolist()
    assert Draws(7, 1).below(1 << 32, 3).tolist() != Draws(7, 2).below(1 << 32, 3).tolist()
    counts = np.bincount(Draws(3).below(10, 1000, 10).ravel(), minlength=10)
    assert counts.sum() == 10_000 and abs(counts - 1000).max() < 100
    assert (Draws(3).below(np.arange(1, 5), 9, 4) < np.arange(1, 5)).all()
