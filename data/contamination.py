"""Evaluation sets that the training text holds: n-grams of words that both have.

An evaluation document overlaps where any 13 words of it in a row (Brown et al., 2020, appendix C) stand in a training
document in the same order; words are those of data/clean/ngrams.py, a character each in Chinese. A document of fewer
words has no such n-gram, is not judged, and is counted. Memory holds the hashes of the sets' n-grams and one training
document; the training text is decoded from its tokens and read once for all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from data.clean.ngrams import ngram_hashes, word_hashes, words_of
from data.corpus import Corpus
from data.tokenizer import Tokenizer

WORDS = 13  # of an n-gram
EXAMPLES = 5
TOKENS_AT_ONCE = 1 << 16  # decoded at a time
SPARSE = 8  # places of the table for each n-gram: of so many n-grams of the training text one is looked up in vain

Documents = Callable[[], Iterable[tuple[str, list[str]]]]  # (name, texts, none of whose words follow another's)


def overlaps(
    corpus: Corpus, sets: dict[str, Documents], progress: Callable[[int, int], None] | None = None
) -> dict[str, dict[str, Any]]:
    """For each set, how much of it the training split has:

    documents, short (of fewer words than an n-gram: not judged), overlapping (with an n-gram that the training text
    holds), mostly (at least half of theirs), ngrams, ngrams_found, and examples: document, words (one such n-gram),
    share (of the document's n-grams), training_document (its number in the training split, from 0).
    `progress` is called with the training tokens read so far, and all.
    """
    listed = {name: _listed(documents) for name, documents in sets.items()}
    known = np.unique(np.concatenate([np.empty(0, np.uint64), *(listing.hashes for listing in listed.values())]))
    where = _search(corpus, known, progress)
    return {name: listing.judged(known, where, sets[name]) for name, listing in listed.items()}


class _Listed:
    """n-grams of a set: hashes uint64 [n], and the number of the document of each, int64 [n]."""

    def __init__(self, n_documents: int, hashes: np.ndarray, document: np.ndarray) -> None:
        self.n_documents, self.hashes, self._document = n_documents, hashes, document

    def judged(self, known: np.ndarray, where: np.ndarray, documents: Documents) -> dict[str, Any]:
        """known: uint64, sorted; where: int64, the training document that has each, -1: none has."""
        first = where[np.searchsorted(known, self.hashes)] if len(known) else np.empty(0, np.int64)
        n = np.bincount(self._document, minlength=self.n_documents)
        n_shared = np.bincount(self._document[first >= 0], minlength=self.n_documents)
        share = n_shared / np.maximum(n, 1)
        worst = np.argsort(-share, kind="stable")[:EXAMPLES]
        return {
            "documents": self.n_documents,
            "short": int((n == 0).sum()),
            "overlapping": int((n_shared > 0).sum()),
            "mostly": int((share >= 0.5).sum()),
            "ngrams": len(self.hashes),
            "ngrams_found": int((first >= 0).sum()),
            "examples": _examples(documents, {int(i): float(share[i]) for i in worst if n_shared[i]}, known, where),
        }


def _listed(documents: Documents) -> _Listed:
    hashes, counts = [np.empty(0, np.uint64)], list[int]()
    for _, texts in documents():
        ngrams = np.unique(np.concatenate([np.empty(0, np.uint64), *map(_ngrams, texts)]))
        hashes.append(ngrams)
        counts.append(len(ngrams))
    return _Listed(len(counts), np.concatenate(hashes), np.repeat(np.arange(len(counts)), counts))


def _ngrams(text: str) -> np.ndarray:
    return ngram_hashes(word_hashes(text), WORDS)


def _search(corpus: Corpus, known: np.ndarray, progress: Callable[[int, int], None] | None) -> np.ndarray:
    """int64 [len(known)]: the first training document that has each of these (sorted) n-grams, -1: none has."""
    where = np.full(len(known), -1, np.int64)
    if not len(known):
        return where
    shift = np.uint64(64 - max(18, (SPARSE * len(known) - 1).bit_length()))
    table = np.zeros(1 << (64 - int(shift)), dtype=bool)
    table[known >> shift] = True
    decode, tokens = decoder(corpus.tokenizer), corpus.train
    starts = corpus.document_starts("train")
    for i, (start, stop) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        parts = range(start, stop - 1, TOKENS_AT_ONCE)
        content = b"".join(decode(np.asarray(tokens[a : min(a + TOKENS_AT_ONCE, stop - 1)])) for a in parts)
        here = _ngrams(content.decode("utf-8", errors="replace"))
        here = here[table[here >> shift]]
        place = np.minimum(np.searchsorted(known, here), len(known) - 1)
        place = place[known[place] == here]
        place = place[where[place] < 0]
        where[place] = i
        if progress is not None:
            progress(stop, len(tokens))
    return where


def decoder(tokenizer: Tokenizer) -> Callable[[np.ndarray], bytes]:
    """The bytes of ids, an array at a time: what `decode_bytes` gives, by a table of all ids' bytes."""
    lengths = tokenizer.n_bytes
    content = np.frombuffer(tokenizer.decode_bytes(range(tokenizer.vocab_size)), np.uint8)
    begins = np.cumsum(lengths) - lengths

    def decode(ids: np.ndarray) -> bytes:
        n = lengths[ids]
        ends = np.cumsum(n)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins[ids] - (ends - n), n)
        return content[places].tobytes()

    return decode


def _examples(
    documents: Documents, shares: dict[int, float], known: np.ndarray, where: np.ndarray
) -> list[dict[str, Any]]:
    """One n-gram of each of these documents (number: share of its n-grams that were found), the largest share first."""
    examples: dict[int, dict[str, Any]] = {}
    for i, (name, texts) in enumerate(documents()):
        for text in texts if i in shares else ():
            hashes = _ngrams(text)
            place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            there = np.flatnonzero((known[place] == hashes) & (where[place] >= 0))
            if len(there) and i not in examples:
                first = int(there[0])
                words = words_of(text)[first : first + WORDS]
                joined = " ".join(words) if any(len(word) > 1 for word in words) else "".join(words)
                training = int(where[place[first]])
                examples[i] = {"document": name, "words": joined, "share": shares[i], "training_document": training}
    return sorted(examples.values(), key=lambda example: -example["share"])
