"""Sources of known truth: their entropy rates against readers of their text, and as sources of a corpus."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data.corpus import prepare
from data.settings import CorpusSettings, Weighted
from data.sources.reading import check_source, read_documents, source_bytes
from data.truth.corpus_rate import entropy_rate, rate_lines
from data.truth.markov import ENDS, Markov
from data.truth.memory import LETTERS, LINES, VOCABULARY, Copying, Recall
from data.truth.powerlaw import FACT, FACTS, ODDS, STEP_BITS, PowerLaw
from data.truth.rate import EntropyRate
from data.truth.schemes import SCHEMES, true_text
from tests.commands import refused

WORD = re.compile(r"([a-d]+)([A-P]{2})")
RATE = PowerLaw(0).rate
LONGEST = 24  # distinct keys of `excess_loss`


FROZEN = {
    PowerLaw: (20, "64a1c4e0849fd068"),
    Markov: (10, "73adcd69deff28ad"),
    Copying: (10, "d1b8aace6e7c0314"),
    Recall: (10, "b2763c0e65b87653"),
}


@pytest.mark.parametrize("source", FROZEN)
def test_text_is_the_same_everywhere(source: type) -> None:
    n, digest = FROZEN[source]
    text = "".join(source(3).document(i) for i in range(n))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
    assert source(4).document(0) != source(3).document(0)


class Learner:
    """Codes text by counts of what it has seen (Krichevsky and Trofimov's estimator) and by facts it has seen before.
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


def nats_per_token(rate: EntropyRate) -> float:
    """Of the tokenizer `bytes`, where a token is a byte or an end of text."""
    return rate.nats / (rate.n_bytes + 1)


def bits_per_byte(rate: EntropyRate) -> float:
    """All entropy of a document over the bytes of its text, as bits per byte are evaluated: an end of text costs nats
    and has no bytes."""
    return rate.nats / rate.n_bytes / math.log(2)


def excess_loss(source: PowerLaw, n_words: float) -> float:
    """Nats per word that who has read `n_words` words, and remembers every fact, lacks in the mean: FACT ln 16
    sum p (1 - p)^n over all keys, here e^(-pn) for (1 - p)^n. Keys of the same letters in another order are equally
    probable; keys longer than LONGEST letters count as unread."""
    r = source.follow / (1 << STEP_BITS)
    log_q = np.log(np.array(ODDS) / sum(ODDS))
    log_factorial = np.array([math.lgamma(n + 1) for n in range(LONGEST + 1)])
    unread = r**LONGEST
    for length in range(1, LONGEST + 1):
        counts = np.array([c for c in np.ndindex(*(length + 1,) * 3) if sum(c) <= length])
        counts = np.column_stack([counts, length - counts.sum(1)])
        log_ways = log_factorial[length] - log_factorial[counts].sum(1)
        log_p = counts @ log_q + (length - 1) * math.log(r) + math.log(1 - r)
        unread += float(np.exp(log_ways + log_p - n_words * np.exp(log_p)).sum())
    return FACT * math.log(FACTS) * unread


@pytest.mark.parametrize(("seed", "zipf"), [(0, 1.5), pytest.param(7, 2.0, marks=pytest.mark.slow)])
def test_rate_is_that_of_a_reader_who_learned_it_all(seed: int, zipf: float) -> None:
    source, learner = PowerLaw(seed, zipf), Learner()
    read = [(*learner.document(text), len(text)) for text in map(source.document, range(330))]
    nats, words, new, n_bytes = np.array(read, dtype=float)[30:].T  # the first ones pay for the numbers to be learned
    rate = source.rate
    off = nats - nats_per_token(rate) * (n_bytes + 1)  # of mean 0 where the rate is right (a ratio estimate)
    assert abs(off.mean()) < 4 * off.std(ddof=1) / math.sqrt(len(off)) + 0.02  # what counts still cost to learn
    assert off.std(ddof=1) / math.sqrt(len(off)) < 0.003 * rate.nats
    assert rate.n_bytes == pytest.approx(n_bytes.mean(), rel=4 / math.sqrt(len(n_bytes)))
    assert source.bytes_per_word == pytest.approx(n_bytes.sum() / words.sum(), rel=0.01)
    middle = np.cumsum(np.array([row[1] for row in read]))[30:] - words / 2
    expected = sum(
        n * excess_loss(source, at) / (FACT * math.log(FACTS)) for n, at in zip(words[::10], middle[::10], strict=True)
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
    slopes = np.diff(np.log([excess_loss(source, n) for n in words])) / np.diff(np.log(words))
    assert slopes == pytest.approx(np.full(3, -(1 - 1 / zipf)), abs=0.01)
    assert excess_loss(source, 0) == pytest.approx(FACT * math.log(FACTS))


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
    off = np.array(nats) - nats_per_token(source.rate) * (np.array(lengths) + 1)
    assert abs(off.mean()) < 4 * off.std(ddof=1) / math.sqrt(len(off))
    assert off.std(ddof=1) / math.sqrt(len(off)) < 0.01 * source.rate.nats


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
    assert nats_per_token(source.rate) == pytest.approx((5 * math.log(16) + end) / (12 + 1 / LINES))


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


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_longer_text_begins_with_the_shorter_one(name: str) -> None:
    short, long = ([text for _, text in read_documents(f"{name}:3:{n}")] for n in (5_000, 12_000))
    assert source_bytes(f"{name}:3:5000") == sum(map(len, short)) == 5_000 and sum(map(len, long)) == 12_000
    assert short[:-1] == long[: len(short) - 1] and long[len(short) - 1].startswith(short[-1])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("powerlaw:", "powerlaw:<seed>:<n_bytes>[:<zipf>]"),
        ("powerlaw:0:1e6", "in numbers"),
        *((f"powerlaw:0:1000:{zipf}", "zipf") for zipf in ("nan", "1.0", "3.5")),
        *((f"markov:0:1000:{shape}", "letters") for shape in ("0:4", "2:1", "2:27")),
        *((f"copy:0:1000:{n}", "give 1 to") for n in (0, 5000)),
        ("mqar:0:1000:0", "give 1 to"),
        ("powerlaw:0:1000:1.5:2", "with a seed from 0"),
        ("markov:-1:1000", "markov:<seed>:<n_bytes>[:<order>][:<letters>]"),
        ("markov:0:1000:6:4", "letters^order at most 1,024"),
        ("copy:0:0", "n_bytes > 0"),
        ("mqar:0:1000:32", "32 pairs cannot be recalled"),
        ("powerlav:0:1000", "powerlaw:"),
    ],
)
def test_what_is_no_such_source_is_refused_in_a_line(source: str, message: str) -> None:
    with refused(message):
        check_source(source)


def test_manifest_has_the_entropy_rate(tmp_path: Path) -> None:
    corpus = prepare(CorpusSettings("powerlaw:0:60000", validation_fraction=0.5), tmp_path / "corpus")
    assert corpus.manifest["entropy_rate"] == {
        "nats_per_token": pytest.approx(nats_per_token(RATE)),
        "bits_per_byte": pytest.approx(bits_per_byte(RATE)),
    }
    assert corpus.manifest["shared"]["tokens"] == 0 and not corpus.warnings


def test_rate_of_mixtures_and_other_tokenizers() -> None:
    weighted = CorpusSettings((Weighted("powerlaw:0:1000", 3), Weighted("copy:0:1000", 1)))
    other = true_text("copy:0:1000").truth.rate
    result = entropy_rate(weighted)
    assert result is not None
    assert result["nats_per_token"] == pytest.approx((3 * nats_per_token(RATE) + nats_per_token(other)) / 4)
    n_bytes = (3 * RATE.n_bytes / (RATE.n_bytes + 1) + other.n_bytes / (other.n_bytes + 1)) / 4
    assert result["bits_per_byte"] == pytest.approx(result["nats_per_token"] / n_bytes / math.log(2))
    pieces = CorpusSettings("powerlaw:0:1000", tokenizer="bpe:512")
    assert entropy_rate(pieces) is None
    shown = entropy_rate(pieces, [{"splits": {"train": {"bytes": 3000, "tokens": 1000}}}])
    assert shown is not None and shown["bits_per_byte"] == pytest.approx(bits_per_byte(RATE))
    assert shown["nats_per_token"] == pytest.approx(3 * math.log(2) * bits_per_byte(RATE))
    assert entropy_rate(CorpusSettings("synthetic:0:1000")) is None and rate_lines(None, "bytes") == []
    assert entropy_rate(CorpusSettings(("powerlaw:0:1000", "powerlaw:1:1000"))) is None
    rate = entropy_rate(CorpusSettings("powerlaw:0:1000"))
    assert "1.0103 nats/byte" in rate_lines(rate, "bytes")[0] and "nats/token" in rate_lines(rate, "bpe:512")[0]
