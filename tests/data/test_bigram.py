import itertools
import math

import numpy as np
import pytest

import data.bigram
from data.bigram import bigram_loss, stretches_of
from data.mixture import Part
from data.shards import ShardedTokens


def reference(train: list[int], validation: list[int], vocab: int) -> tuple[float, dict]:
    """The formula of the docstring, by dictionaries."""
    pairs: dict[tuple[int, int], int] = {}
    for pair in itertools.pairwise(train):
        pairs[pair] = pairs.get(pair, 0) + 1
    unigrams = {w: train[1:].count(w) for w in set(train[1:])}

    def discount(counts: list[int]) -> float:
        return min(max(counts.count(1) / max(counts.count(1) + 2 * counts.count(2), 1), 0.1), 0.9)

    d1, d2 = discount(list(unigrams.values())), discount(list(pairs.values()))

    def p1(w: int) -> float:
        return (max(unigrams.get(w, 0) - d1, 0) + d1 * len(unigrams) / vocab) / (len(train) - 1)

    def p2(h: int, w: int) -> float:
        total = sum(c for (a, _), c in pairs.items() if a == h)
        if not total:
            return p1(w)
        successors = sum(a == h for a, _ in pairs)
        return (max(pairs.get((h, w), 0) - d2, 0) + d2 * successors * p1(w)) / total

    table = {(h, w): p2(h, w) for h in range(vocab) for w in range(vocab)}
    events = list(itertools.pairwise(validation))
    return -sum(math.log(table[event]) for event in events) / len(events), table


@pytest.mark.parametrize("dense_up_to", [4096, 0])
@pytest.mark.parametrize("block", [1 << 22, 13])
def test_equals_the_formula(monkeypatch: pytest.MonkeyPatch, dense_up_to: int, block: int) -> None:
    monkeypatch.setattr(data.bigram, "DENSE_VOCABULARY", dense_up_to)
    monkeypatch.setattr(data.bigram, "BLOCK", block)
    random = np.random.default_rng(0)
    train = (random.integers(0, 8, 300) * random.integers(0, 2, 300)).tolist()
    validation = random.integers(0, 10, 200).tolist()  # 8 and 9 were never seen
    expected, table = reference(train, validation, 10)
    for h in range(10):
        assert sum(table[h, w] for w in range(10)) == pytest.approx(1, abs=1e-12)
    loss = bigram_loss(np.array(train, np.uint16), np.array(validation, np.uint16), 10)
    assert loss == pytest.approx(expected, rel=1e-12)


def test_shards_and_the_bound_on_training_tokens() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 4000).astype(np.uint16)
    sharded = ShardedTokens(np.split(tokens, [10, 1500]))
    assert bigram_loss(sharded, tokens, 50) == bigram_loss(tokens, sharded, 50)
    assert stretches_of(Part("", 1.0, 0, 4000), 4000) == [(0, 4000)]
    first, *_, last = where = stretches_of(Part("", 1.0, 100, 4000), 1000)
    assert (first[0], last[1], len(where)) == (100, 4100, 64) and all(end - start == 15 for start, end in where)
    ordered = np.sort(tokens)  # files of different kinds, one after another
    least, most = (bigram_loss(ordered, ordered, 50, n) for n in (None, 2000))
    assert least < most < 1.5 * least < bigram_loss(ordered[:2000], ordered, 50) / 2


def test_nothing_to_count() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        bigram_loss(np.zeros(1, np.uint16), np.zeros(5, np.uint16), 257)


def test_rows_are_scored_one_by_one():
    """Two rows: no pair across their border."""
    train = np.array([0, 1, 2, 0, 1, 2, 0, 2, 1, 0], dtype=np.uint16)
    rows = np.array([[0, 1, 2], [2, 0, 1]])
    apart = [bigram_loss(train, row, 3) for row in rows]
    assert bigram_loss(train, rows, 3) == pytest.approx(sum(apart) / 2)
    assert bigram_loss(train, rows.ravel(), 3) != pytest.approx(sum(apart) / 2)
