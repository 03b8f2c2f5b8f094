"""The entropy rate and the power law of `powerlaw:` against what a reader who knows nothing of it measures."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter

import numpy as np
import pytest

from arch.errors import InputError
from data.truth.powerlaw import ENDS, FACT, FACTS, ODDS, STEP_BITS, PowerLaw

WORD = re.compile(r"([a-d]+)([A-P]{2})")


class Learner:
    """Codes text by counts of what it has seen (Krichevsky and Trofimov's estimator) and by facts it has met before.
    It knows how words are built, and none of the source's numbers."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {"letter": Counter(), "follows": Counter(), "ends": Counter()}
        self.facts: dict[str, str] = {}

    def nats(self, what: str, seen: str, kinds: int) -> float:
        counts = self.counts[what]
        p = (counts[seen] + 0.5) / (counts.total() + kinds / 2)
        counts[seen] += 1
        return -math.log(p)

    def document(self, text: str) -> tuple[float, int, int]:
        """Nats without facts, words, and words whose key was new."""
        words = WORD.findall(text)
        assert "".join(key + fact for key, fact in words) == text
        nats, new = 0.0, 0
        for i, (key, fact) in enumerate(words):
            for letter in key:
                nats += self.nats("letter", letter, 4)
            nats += sum(self.nats("follows", str(j < len(key) - 1), 2) for j in range(len(key)))
            nats += self.nats("ends", str(i == len(words) - 1), 2)
            new += key not in self.facts
            assert self.facts.setdefault(key, fact) == fact
        return nats, len(words), new


@pytest.mark.parametrize(("seed", "zipf"), [(0, 1.5), (7, 2.0)])
def test_rate_is_that_of_a_reader_who_learned_it_all(seed: int, zipf: float) -> None:
    source, learner = PowerLaw(seed, zipf), Learner()
    read = [(*learner.document(text), len(text)) for text in map(source.document, range(330))]
    nats, words, new, n_bytes = np.array(read, dtype=float)[30:].T  # the first ones pay for the numbers to be learned
    rate = source.rate
    off = nats - rate.nats_per_token * (n_bytes + 1)  # of mean 0 where the rate is right (a ratio estimate)
    assert abs(off.mean()) < 4 * off.std(ddof=1) / math.sqrt(len(off)) + 0.02  # what counts still cost to learn
    assert off.std(ddof=1) / math.sqrt(len(off)) < 0.003 * rate.nats
    assert rate.n_bytes == pytest.approx(n_bytes.mean(), rel=4 / math.sqrt(len(n_bytes)))
    assert rate.bits_per_byte == pytest.approx(rate.nats / math.log(2) / rate.n_bytes)
    assert source.bytes_per_word == pytest.approx(n_bytes.sum() / words.sum(), rel=0.01)
    middle = np.cumsum(np.array([row[1] for row in read]))[30:] - words / 2
    expected = sum(
        n * source.untold(at) / (FACT * math.log(FACTS)) for n, at in zip(words[::10], middle[::10], strict=True)
    )
    n_new = new.sum()
    assert abs(n_new - 10 * expected) < 5 * math.sqrt(n_new) + 0.02 * n_new


@pytest.mark.parametrize("zipf", [1.25, 1.5, 2.0])
def test_excess_falls_as_the_power_law_that_was_asked_for(zipf: float) -> None:
    source = PowerLaw(0, zipf)
    sums = [
        sum((step / (1 << STEP_BITS) * odds / sum(ODDS)) ** (1 / zipf) for odds in ODDS)
        for step in (source.follow, source.follow + 1)
    ]
    assert sums[0] <= 1 < sums[1]
    words = np.geomspace(1e2, 1e5, 4)
    slopes = np.diff(np.log([source.untold(n) for n in words])) / np.diff(np.log(words))
    assert slopes == pytest.approx(np.full(3, -(1 - 1 / zipf)), abs=0.01)
    assert source.untold(0) == pytest.approx(FACT * math.log(FACTS))


def test_rate_in_closed_form_of_one_case() -> None:
    """With r = 1/2 by hand: H(q) + ln 2 a letter, two letters and a fact a word."""

    class Half(PowerLaw):
        follow = 1 << (STEP_BITS - 1)  # type: ignore[assignment]

    q = np.array(ODDS) / 16
    end = -(math.log(1 / ENDS) / ENDS + (1 - 1 / ENDS) * math.log(1 - 1 / ENDS))
    nats = 2 * (math.log(2) - (q * np.log(q)).sum()) + end
    assert Half(0).rate.nats_per_token == pytest.approx(nats / (2 + FACT + 1 / ENDS))


def test_text_is_the_same_everywhere_and_refuses_what_it_cannot_be() -> None:
    text = "".join(PowerLaw(3).document(i) for i in range(20))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "64a1c4e0849fd068"
    assert PowerLaw(4).document(0) != PowerLaw(3).document(0) != PowerLaw(3, 2.0).document(0)
    for zipf in (1.0, 3.5, math.nan):
        with pytest.raises(InputError, match="zipf"):
            PowerLaw(0, zipf)
