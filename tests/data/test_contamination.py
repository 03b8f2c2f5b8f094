"""What the training text holds of evaluation sets, against sets of n-grams and a search by hand."""

import itertools
import json
import re

import numpy as np
import pytest

from data import contamination
from data.contamination import WORDS, decoder, overlaps
from data.corpus import Corpus, prepare
from data.settings import CorpusSettings
from data.tokenizer import get_tokenizer


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_\u4e00-\u9fff]+|[\u4e00-\u9fff]", text.lower())
    return {tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Documents of random words, some of them Chinese; long ones among them."""
    folder, draw = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("an", "e", "ili", "o", "u")]
    texts = [" ".join(draw.choice(words, draw.integers(20, 3000))) for _ in range(20)]
    texts += ["".join(map(chr, draw.integers(0x4E00, 0x4E00 + 300, 400))) for _ in range(6)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare(CorpusSettings(source=str(folder / "text.jsonl"), validation_fraction=0.1), folder / "corpus")


def training_texts(corpus: Corpus) -> list[str]:
    starts = corpus.document_starts("train").tolist()
    tokens = np.asarray(corpus.train)
    return [bytes(tokens[a : b - 1].tolist()).decode() for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("at_once", [7, 1 << 16])
def test_it_finds_what_a_search_by_hand_finds(corpus, monkeypatch, at_once):
    monkeypatch.setattr(contamination, "TOKENS_AT_ONCE", at_once)
    draw, texts = np.random.default_rng(1), training_texts(corpus)
    english = [text for text in texts if text.isascii()]
    chinese = next(text for text in texts if not text.isascii())
    part = english[3].split(" ")
    first: list[tuple[str, list[str]]] = [
        ("whole", [english[1]]),
        ("punctuated", ["-- " + ",\n".join(part[2:15]).upper() + "!"]),
        ("a word too few", [" ".join(part[2:14])]),
        ("inside", [" ".join(["own"] * 30 + part[4:20] + ["words"] * 30)]),
        ("cut in two", [" ".join(part[2:9]), " ".join(part[9:15])]),
        ("characters", ["前" * 20 + chinese[50:63] + "後" * 20]),
        ("too few characters", ["前" * 20 + chinese[50:62] + "後" * 20]),
        ("across two documents", [" ".join(english[0].split(" ")[-7:] + english[1].split(" ")[:6])]),
        ("none", [" ".join(f"w{i}" for i in range(50))]),
        ("nothing", []),
    ]
    other = [(str(i), [" ".join(draw.permutation(part[:40]))]) for i in range(20)]
    counts = overlaps(corpus, {"one": lambda: first, "other": lambda: other})
    known = set().union(*map(grams, texts))
    for name, documents in (("one", first), ("other", other)):
        ngrams_of = [set().union(*map(grams, texts), set()) for _, texts in documents]
        assert counts[name]["documents"] == len(documents)
        assert counts[name]["short"] == sum(not ngrams for ngrams in ngrams_of)
        assert counts[name]["overlapping"] == sum(bool(ngrams & known) for ngrams in ngrams_of)
        assert counts[name]["mostly"] == sum(2 * len(ngrams & known) >= len(ngrams) > 0 for ngrams in ngrams_of)
        assert counts[name]["ngrams"] == sum(map(len, ngrams_of))
        assert counts[name]["ngrams_found"] == sum(len(ngrams & known) for ngrams in ngrams_of)
    examples = {example["document"]: example for example in counts["one"]["examples"]}
    assert set(examples) == {"whole", "punctuated", "characters", "inside"}
    assert counts["other"]["overlapping"] == 0 and not counts["other"]["examples"]
    assert examples["punctuated"]["words"] == " ".join(part[2:15]) and examples["whole"]["share"] == 1.0
    assert examples["characters"]["words"] == chinese[50:63]
    for one_example in examples.values():
        text = texts[one_example["training_document"]]
        assert one_example["words"] in text


def test_no_set_and_no_ngram_need_no_search(corpus):
    assert overlaps(corpus, {}) == {}
    assert overlaps(corpus, {"short": lambda: [("a", ["two words"])]})["short"]["short"] == 1


def test_the_table_of_bytes_decodes_as_the_tokenizer_does():
    tokenizer = get_tokenizer("bytes")
    ids = np.array([*"déjà vu 字".encode(), tokenizer.eot_id, 65])
    assert decoder(tokenizer)(ids) == tokenizer.decode_bytes(ids.tolist())
    assert decoder(tokenizer)(ids[:0]) == b""
