"""Near-duplicates: of documents that are nearly alike only the first by id stays.

Two documents are alike where the Jaccard similarity of their sets of 5-grams (data/clean/ngrams.py) is at least
`similarity`. MinHash (data/clean/minhash.py) finds candidate pairs, and each pair is then compared by the sets
themselves, so that no document is dropped by chance. Documents are taken in the order of their ids; a document is
dropped where it is alike one that stays. So what stays does not depend on the order in which the text is read, and
every dropped document has one like it that stays: of documents that are alike in a chain only, not all are dropped.

The text is read twice: for the signatures, and for the sets of those documents alone that share a band with another.
Memory holds about 600 bytes a document, and the sets of two; the other sets are in a temporary file, 8 bytes an
n-gram.
"""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from arch.amounts import counted
from arch.errors import InputError
from data.clean.minhash import Bands, bands_for
from data.clean.ngrams import ngram_hashes, word_hashes
from data.clean.steps import Cleaned

WORDS = 5  # of an n-gram
DIGEST = 16  # bytes of BLAKE2b of a document's UTF-8 text
MOST_COMPARED = 1_000  # documents that a document is compared with
EXAMPLES = 5
SHOWN = 80  # characters of an example
HEAD = 4 * SHOWN  # bytes of a text's beginning, kept with its set

Texts = Callable[[], Iterable[tuple[str, str]]]  # (doc_id, text), the same at every call
Report = Callable[[str], None]


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def find_near_duplicates(
    texts: Texts, similarity: float, temporary: Path, say: Report = lambda message: None
) -> Cleaned:
    """The documents of `texts` that are nearly alike another; `temporary` is a folder for a file without a name.
    Equal documents count once, by the first of their ids.

    Raises InputError where the second reading differs from the first.
    """
    assert 0 < similarity <= 1
    bands = bands_for(similarity)
    seen = _read_all(texts, bands, say)
    buckets = _buckets(seen, bands.n_bands)
    shared = np.asarray((buckets >= 0).any(axis=1))
    with tempfile.TemporaryFile(dir=temporary) as file:
        sets = _read_sets(texts, seen, shared, file, say) if shared.any() else _Sets(file)
        return _judge(seen, buckets, sets, similarity, say)


class _Seen:
    """What is kept of every document: id, digest, bytes, and the bands (zeros for one without words)."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.n_bytes, self.has_words = array("q"), array("b")
        self._digests, self._bands = bytearray(), bytearray()

    def add(self, doc_id: str, text: str, bands: Bands) -> None:
        ngrams, content = ngram_hashes(word_hashes(text), WORDS, whole=True), text.encode("utf-8")
        self.ids.append(doc_id)
        self.n_bytes.append(len(content))
        self.has_words.append(len(ngrams) > 0)
        self._digests += digest_of(content)
        self._bands += bands.of(ngrams).tobytes() if len(ngrams) else bytes(8 * bands.n_bands)

    def digest(self, i: int) -> bytes:
        return bytes(self._digests[i * DIGEST : (i + 1) * DIGEST])

    def bands(self, n_bands: int) -> np.ndarray:
        return np.frombuffer(self._bands, np.uint64).reshape(-1, n_bands)


class _Sets:
    """Sorted distinct n-gram hashes and first characters of documents, in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._places = file, dict[int, tuple[int, int]]()

    def add(self, i: int, ngrams: np.ndarray, content: bytes) -> None:
        self._places[i] = (self._file.tell(), len(ngrams))
        self._file.write(content[:HEAD].ljust(HEAD, b"\0") + ngrams.tobytes())

    def __contains__(self, i: int) -> bool:
        return i in self._places

    def size(self, i: int) -> int:
        return self._places[i][1]

    def ngrams(self, i: int) -> np.ndarray:
        place, n = self._places[i]
        self._file.seek(place + HEAD)
        return np.frombuffer(self._file.read(8 * n), np.uint64)

    def head(self, i: int) -> str:
        self._file.seek(self._places[i][0])
        text = self._file.read(HEAD).rstrip(b"\0").decode("utf-8", errors="ignore")
        return " ".join(text.split())[:SHOWN]


def _read_all(texts: Texts, bands: Bands, say: Report) -> _Seen:
    seen = _Seen()
    for doc_id, text in texts():
        seen.add(doc_id, text, bands)
        say(f"{counted(len(seen.ids), 'document')} compared by their signatures")
    return seen


def _buckets(seen: _Seen, n_bands: int) -> np.ndarray:
    """int64 [documents, n_bands]: documents with a band in common have the same number there; -1: no other has it."""
    bands, usable = seen.bands(n_bands), np.flatnonzero(np.frombuffer(seen.has_words, np.int8))
    out, first = np.full(bands.shape, -1, np.int64), 0
    for i in range(n_bands):
        _, number, count = np.unique(bands[usable, i], return_inverse=True, return_counts=True)
        out[usable, i] = np.where(count[number] > 1, first + number, -1)
        first += len(count)
    return out


def _read_sets(texts: Texts, seen: _Seen, wanted: np.ndarray, file: IO[bytes], say: Report) -> _Sets:
    """The sets of the documents `wanted` (bool [documents]); of equal ones, of that with the first id."""
    sets, first, i = _Sets(file), dict[bytes, int](), -1
    for i in np.flatnonzero(wanted).tolist():
        known = first.setdefault(seen.digest(i), i)
        if seen.ids[i] < seen.ids[known]:
            first[seen.digest(i)] = i
    for i, (doc_id, text) in enumerate(texts()):
        if i >= len(seen.ids) or doc_id != seen.ids[i]:
            raise InputError(f"corpus.source: it changed while it was read (at {doc_id}); run the command again")
        if wanted[i] and first[seen.digest(i)] == i:
            content = text.encode("utf-8")
            if digest_of(content) != seen.digest(i):
                raise InputError(f"corpus.source: {doc_id} changed while it was read; run the command again")
            sets.add(i, np.unique(ngram_hashes(word_hashes(text), WORDS, whole=True)), content)
            say(f"{i + 1:,} of {len(seen.ids):,} documents read again for near-duplicates")
    if i + 1 != len(seen.ids):
        raise InputError(
            f"corpus.source: it changed while it was read (only {i + 1:,} documents again); run the command again"
        )
    return sets


def _judge(seen: _Seen, buckets: np.ndarray, sets: _Sets, similarity: float, say: Report) -> Cleaned:
    stay = dict[int, list[int]]()  # the documents that stay, by bucket
    dropped = list[tuple[int, int, float]]()  # document, the one it is like, their similarity
    compared = cut_short = 0
    order = sorted((i for i in range(len(seen.ids)) if i in sets), key=lambda i: (seen.ids[i], seen.digest(i)))
    for n, i in enumerate(order, start=1):
        mine, places = sets.ngrams(i), [place for place in buckets[i].tolist() if place >= 0]
        rivals = dict.fromkeys(rival for place in places for rival in stay.get(place, ()))
        near = [rival for rival in rivals if _could(sets.size(i), sets.size(rival), similarity)]
        alike = None
        for rival in sorted(near, key=lambda rival: (seen.ids[rival], seen.digest(rival)))[:MOST_COMPARED]:
            compared += 1
            if (similar := jaccard(mine, sets.ngrams(rival))) >= similarity:
                alike = (i, rival, similar)
                break
        if alike:
            dropped.append(alike)
            continue
        cut_short += len(near) > MOST_COMPARED
        for place in places:
            stay.setdefault(place, []).append(i)
        say(f"{n:,} of {len(order):,} documents compared, {len(dropped):,} are near-duplicates")
    entry = {
        "step": "near_duplicates",
        "similarity": similarity,
        "documents": len({seen.digest(i) for i in range(len(seen.ids))}),
        "dropped": len(dropped),
        "bytes": sum(seen.n_bytes[i] for i, _, _ in dropped),
        "compared": compared,
        "cut_short": cut_short,
        "examples": [
            {"document": seen.ids[i], "like": seen.ids[rival], "similarity": round(similar, 4), "text": sets.head(i)}
            for i, rival, similar in dropped[:EXAMPLES]
        ],
    }
    return Cleaned({seen.digest(i) for i, _, _ in dropped}, [entry])


def _could(first: int, second: int, similarity: float) -> bool:
    """Whether sets of these sizes can be so similar."""
    return min(first, second) >= similarity * max(first, second)


def jaccard(smaller: np.ndarray, larger: np.ndarray) -> float:
    """Shared elements over all elements of two sorted arrays without repeats."""
    if len(smaller) > len(larger):
        smaller, larger = larger, smaller
    where = np.minimum(np.searchsorted(larger, smaller), len(larger) - 1)
    shared = int((larger[where] == smaller).sum())
    return shared / (len(smaller) + len(larger) - shared)
