from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest

from arch.errors import InputError
from data.truth.markov import ENDS, Markov


@pytest.mark.parametrize(("order", "letters"), [(1, 3), (2, 2), (2, 3)])
def test_endless_rate_is_what_longer_blocks_add(order: int, letters: int) -> None:
    """H(n + 1) - H(n) over all blocks of n letters, counted one by one from the stationary start."""
    source = Markov(5, order, letters)
    start = np.full(letters**order, 1 / letters**order)
    for _ in range(2000):
        start = start @ source.transitions
    entropies = []
    for n in (order, order + 1, order + 3):
        p = np.array([_probability(source, block, start) for block in itertools.product(range(letters), repeat=n)])
        assert p.sum() == pytest.approx(1)
        entropies.append(-(p[p > 0] * np.log(p[p > 0])).sum())
    assert source.endless == pytest.approx(entropies[1] - entropies[0], abs=1e-9)
    assert source.endless == pytest.approx((entropies[2] - entropies[1]) / 2, abs=1e-9)


def _probability(source: Markov, block: tuple[int, ...], start: np.ndarray) -> float:
    context = 0
    for letter in block[: source.order]:
        context = context * source.letters + letter
    p = float(start[context])
    for letter in block[source.order :]:
        p *= source.odds[context][letter] / sum(source.odds[context])
        context = (context * source.letters + letter) % source.letters**source.order
    return p


@pytest.mark.parametrize(("seed", "order", "letters"), [(0, 2, 4), (1, 1, 2), (2, 3, 5)])
def test_rate_is_the_loss_of_the_best_predictor(seed: int, order: int, letters: int) -> None:
    """It knows the odds and where documents begin: its mean loss on the sample differs by less than four standard
    errors, by document."""
    source = Markov(seed, order, letters)
    nats, lengths = [], []
    for text in map(source.document, range(300)):
        context, total = 0, -math.log(1 / ENDS) - (len(text) - 1) * math.log(1 - 1 / ENDS)
        for letter in (ord(character) - ord("a") for character in text):
            total -= math.log(source.odds[context][letter] / sum(source.odds[context]))
            context = (context * letters + letter) % letters**order
        nats.append(total)
        lengths.append(len(text))
    off = np.array(nats) - source.rate.nats_per_token * (np.array(lengths) + 1)
    assert abs(off.mean()) < 4 * off.std(ddof=1) / math.sqrt(len(off))
    assert off.std(ddof=1) / math.sqrt(len(off)) < 0.01 * source.rate.nats
    assert source.rate.nats / ENDS == pytest.approx(source.endless + 0.0077, rel=0.05)  # H(1/1024) 1024 a letter


def test_text_is_the_same_everywhere_and_refuses_what_it_cannot_be() -> None:
    text = "".join(Markov(3).document(i) for i in range(10))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "73adcd69deff28ad"
    for order, letters in ((0, 4), (2, 1), (2, 27), (6, 4)):
        with pytest.raises(InputError, match="letters"):
            Markov(0, order, letters)
