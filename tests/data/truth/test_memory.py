from __future__ import annotations

import hashlib
import math
from collections import Counter

import numpy as np
import pytest

from arch.errors import InputError
from data.truth.memory import LETTERS, LINES, VOCABULARY, Copying, Recall


def test_copies_cost_their_first_half() -> None:
    source = Copying(1, 5)
    lines = [source.document(i).splitlines() for i in range(400)]
    halves = [line.split("=") for document in lines for line in document]
    assert all(len(half) == 2 and half[0] == half[1] and len(half[0]) == 5 for half in halves)
    letters = np.array(list(Counter("".join(half[0] for half in halves)).values()))
    expected = letters.sum() / LETTERS
    assert len(letters) == LETTERS and ((letters - expected) ** 2 / expected).sum() < 50  # chi-squared, 15 degrees
    n_lines = np.array([len(document) for document in lines])
    assert n_lines.mean() == pytest.approx(LINES, rel=4 / math.sqrt(len(lines)))
    end = -math.log(1 / LINES) / LINES - (1 - 1 / LINES) * math.log(1 - 1 / LINES)
    assert source.rate.nats_per_token == pytest.approx((5 * math.log(16) + end) / (12 + 1 / LINES))


@pytest.mark.parametrize("pairs", [1, 8, 31])
def test_recall_can_be_read_and_costs_what_is_drawn(pairs: int) -> None:
    """Every choice is read off the text; its chances multiply to the same number for every document: the entropy."""
    source = Recall(2, pairs)
    slots = np.zeros(3 * pairs)
    for text in map(source.document, range(600)):
        keys, values = text[0 : 2 * pairs : 2], text[1 : 2 * pairs : 2]
        assert len(text) == 8 * pairs and len(set(keys)) == len(set(values)) == pairs
        rest = [text[i : i + 2] for i in range(2 * pairs, len(text), 2)]
        queries = [slot for slot in rest if slot[0] in keys]
        assert sorted(queries) == sorted(key + value for key, value in zip(keys, values, strict=True))
        assert not set("".join(slot for slot in rest if slot[0] not in keys)) & set(keys)
        slots += [slot[0] in keys for slot in rest]
    expected = 600 * pairs / len(slots)
    assert np.abs(slots - expected).max() < 5 * math.sqrt(expected)  # all slots alike
    chances = [1 / n for n in (*range(31, 31 - pairs, -1), *range(32, 32 - pairs, -1))]
    chances += [1 / n for n in range(3 * pairs, 2 * pairs, -1)] + [1 / (VOCABULARY - pairs)] * (4 * pairs)
    assert source.rate.nats == pytest.approx(-sum(map(math.log, chances)))


def test_text_is_the_same_everywhere_and_refuses_what_it_cannot_be() -> None:
    text = "".join(Copying(3).document(i) + Recall(3).document(i) for i in range(10))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9ce455b789b80110"
    for make, wrong in ((Copying, 0), (Copying, 5000), (Recall, 0), (Recall, 32)):
        with pytest.raises(InputError, match="give 1 to"):
            make(0, wrong)
