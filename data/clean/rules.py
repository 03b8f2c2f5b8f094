"""datatrove's rules as this project asks for them. Needs the extra `corpus`.

datatrove cuts words by language, with a package or a model for most of them; here words are those of
data/clean/ngrams.py, for which nothing is loaded. Where scripts set no spaces, a character is a word: Gopher's rules on
the length of words and on English stop words then say nothing and are left out, and n-grams have twice as many
characters as words elsewhere, for a Chinese word has about two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.utils.lid import FastTextLID
from datatrove.utils.word_tokenizers import WordTokenizer

from data.clean.ngrams import is_unspaced, words_of

TOP = ((2, 0.2), (3, 0.18), (4, 0.16))  # Gopher's, of words: n, share of the characters
REPEATED = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))


class Words(WordTokenizer):
    """Cuts text as data/clean/ngrams.py does; a whole text is one sentence."""

    def word_tokenize(self, text: str) -> list[str]:
        return words_of(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


WORDS = Words()


class ByScript(BaseFilter):
    """One of two filters, by whether a document is of a script without spaces."""

    def __init__(self, name: str, spaced: BaseFilter, unspaced: BaseFilter, exclusion_writer: Any) -> None:
        self.name = name  # its statistics are called by it
        super().__init__(exclusion_writer)
        self._spaced, self._unspaced = spaced, unspaced

    def filter(self, doc: Any) -> Any:
        return (self._unspaced if is_unspaced(doc.text) else self._spaced).filter(doc)


class LocalModel(FastTextLID):
    """Languages by a fastText model in a file; nothing is downloaded."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        super().__init__(list(languages))
        self._path, self._model = path, None

    @property
    def model(self) -> Any:
        from fasttext.FastText import _FastText

        self._model = self._model or _FastText(str(self._path))
        return self._model

    def __getstate__(self) -> dict[str, Any]:  # a model cannot be pickled
        return self.__dict__ | {"_model": None}


def quality(exclusion_writer: Any) -> PipelineStep:
    """Gopher's quality rules (Rae et al., 2021, A.1.1)."""
    unspaced = GopherQualityFilter(
        min_avg_word_length=None, max_avg_word_length=None, min_stop_words=None, language=WORDS
    )
    return ByScript("quality", GopherQualityFilter(language=WORDS), unspaced, exclusion_writer)


def repetition(exclusion_writer: Any) -> PipelineStep:
    """Gopher's rules on repeated lines, paragraphs and n-grams (Rae et al., 2021, table A1)."""
    unspaced = GopherRepetitionFilter(
        top_n_grams=tuple((2 * n, share) for n, share in TOP),
        dup_n_grams=tuple((2 * n, share) for n, share in REPEATED),
        language=WORDS,
    )
    return ByScript("repetition", GopherRepetitionFilter(language=WORDS), unspaced, exclusion_writer)


def language(languages: Sequence[str], model: Path, exclusion_writer: Any) -> PipelineStep:
    """Documents that a fastText model gives one of these languages, with a probability above 0.65."""
    step = LanguageFilter(list(languages), exclusion_writer=exclusion_writer)
    step.model, step.name = LocalModel(model, languages), "language"
    return step
