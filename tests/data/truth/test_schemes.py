"""Sources of known truth as sources of a corpus."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.corpus import prepare
from data.settings import CorpusSettings, Weighted
from data.sources.reading import check_source, read_documents, source_bytes
from data.truth.corpus_rate import entropy_rate, rate_lines
from data.truth.powerlaw import PowerLaw
from data.truth.schemes import SCHEMES, true_text
from data.windows import window_starts
from tests.data.truth.best_reader import BestReader

RATE = PowerLaw(0).rate


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
        ("powerlaw:0:1000:nan", "zipf nan: give 1.1"),
        ("powerlaw:0:1000:1.5:2", "with a seed from 0"),
        ("markov:-1:1000", "markov:<seed>:<n_bytes>[:<order>][:<letters>]"),
        ("markov:0:1000:6:4", "letters^order at most 1,024"),
        ("copy:0:0", "n_bytes > 0"),
        ("mqar:0:1000:32", "32 pairs cannot be recalled"),
        ("powerlav:0:1000", "powerlaw:"),
    ],
)
def test_what_is_no_such_source_is_refused_in_a_line(source: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_source(source)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_manifest_tells_the_rate_and_the_best_reader_reaches_it(tmp_path: Path) -> None:
    corpus = prepare(CorpusSettings("powerlaw:0:1200000", validation_fraction=0.5), tmp_path / "corpus")
    rate = corpus.manifest["entropy_rate"]
    assert rate == {
        "nats_per_token": pytest.approx(RATE.nats_per_token),
        "bits_per_byte": pytest.approx(RATE.bits_per_byte),
    }
    assert corpus.manifest["shared"]["tokens"] == 0 and not corpus.warnings
    tokens, length = np.asarray(corpus.validation).astype(int), 256
    reader, starts = BestReader(PowerLaw(0)), window_starts(corpus.parts("validation"), length, 400_000)
    nats = np.array([reader.nats(tokens[start : start + length + 1]) for start in starts]) / length
    error = nats[:, 0].std(ddof=1) / math.sqrt(len(nats))
    assert abs(nats[:, 0].mean() - RATE.nats_per_token) < 4 * error and error < 0.002
    assert 0.004 < nats[:, 1].mean() < 0.0096  # a window's beginning: less than what it hides, 2.44 nats


def test_rate_of_mixtures_and_other_tokenizers() -> None:
    weighted = CorpusSettings((Weighted("powerlaw:0:1000", 3), Weighted("copy:0:1000", 1)))
    other = true_text("copy:0:1000").truth.rate
    result = entropy_rate(weighted)
    assert result is not None
    assert result["nats_per_token"] == pytest.approx((3 * RATE.nats_per_token + other.nats_per_token) / 4)
    n_bytes = (3 * RATE.n_bytes / (RATE.n_bytes + 1) + other.n_bytes / (other.n_bytes + 1)) / 4
    assert result["bits_per_byte"] == pytest.approx(result["nats_per_token"] / n_bytes / math.log(2))
    pieces = CorpusSettings("powerlaw:0:1000", tokenizer="bpe:512")
    assert entropy_rate(pieces) is None
    shown = entropy_rate(pieces, [{"splits": {"train": {"bytes": 3000, "tokens": 1000}}}])
    assert shown is not None and shown["bits_per_byte"] == pytest.approx(RATE.bits_per_byte)
    assert shown["nats_per_token"] == pytest.approx(3 * math.log(2) * RATE.bits_per_byte)
    assert entropy_rate(CorpusSettings("synthetic:0:1000")) is None and rate_lines(None, "bytes") == []
    assert entropy_rate(CorpusSettings(("powerlaw:0:1000", "powerlaw:1:1000"))) is None
    rate = entropy_rate(CorpusSettings("powerlaw:0:1000"))
    assert "1.0103 nats/byte" in rate_lines(rate, "bytes")[0] and "nats/token" in rate_lines(rate, "bpe:512")[0]
