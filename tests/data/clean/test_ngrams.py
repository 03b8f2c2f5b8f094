"""Words and n-grams against slow ways to cut them."""

import re
from pathlib import Path

import numpy as np

from data.clean import ngrams
from data.clean.ngrams import ngram_hashes, word_hashes, words_of


def test_words_are_those_of_a_pattern_and_equal_words_have_equal_hashes():
    text = Path(re.__file__).read_text(encoding="utf-8")[:20_000]
    expected = re.findall(r"[^\W_]+", text.lower())
    assert words_of(text) == expected
    hashes = word_hashes(text).tolist()
    known = dict(zip(expected, hashes, strict=True))
    assert [known[word] for word in expected] == hashes and len(set(hashes)) == len(set(expected))


def test_scripts_without_spaces_are_cut_by_character():
    assert words_of("TiDB 支持索引。v5.0") == ["tidb", "支", "持", "索", "引", "v5", "0"]
    assert words_of("ｆｕｌｌ ﬁne Éte E\u0301te हिन्दी") == ["full", "fine", "éte", "éte", "हिन्दी"]
    assert words_of("ไทย々") == ["ไ", "ท", "ย", "々"]
    assert words_of("--- ** \n") == [] and not len(word_hashes("--- ** \n"))
    assert np.array_equal(word_hashes("支持 索引"), word_hashes("支持索引"))


def test_pieces_are_cut_between_words(monkeypatch):
    text = "word " * 50 + "很长的文字" * 30 + " " * 20 + "tail of it"
    whole = word_hashes(text)
    for piece in (1, 7, 64):
        monkeypatch.setattr(ngrams, "PIECE", max(piece, 8))
        assert np.array_equal(word_hashes(text), whole)


def test_ngrams_are_equal_where_their_words_are():
    words = np.array([1, 2, 3, 1, 2, 3, 4], np.uint64)
    hashes = ngram_hashes(words, 3).tolist()
    assert len(hashes) == 5 and hashes[0] == hashes[3] and len(set(hashes)) == 4
    assert len(ngram_hashes(words, 8)) == 0 and len(ngram_hashes(words, 8, whole=True)) == 1
    assert len(ngram_hashes(words[:0], 3, whole=True)) == 0
    assert ngram_hashes(words[::-1].copy(), 7)[0] != ngram_hashes(words, 7)[0]
