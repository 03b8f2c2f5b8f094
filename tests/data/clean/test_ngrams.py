"""Words and n-grams against slow ways to cut them."""

import numpy as np

from data.clean import ngrams
from data.clean.ngrams import word_hashes, words_of


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
