"""Near-duplicates planted in real text of two languages; docs/research/near-duplicates.md has the figures of a larger
trial."""

import json
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data.clean.near import digest_of, find_near_duplicates
from data.clean.ngrams import words_of

LIMIT = 0.8


def pieces(path: Path, n: int, draw: np.random.Generator) -> list[str]:
    texts: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            length = int(draw.integers(500, 6000))
            texts += [text[i : i + length] for i in range(0, min(len(text), 20 * length), length) if len(text) > 200]
    return [texts[i] for i in draw.permutation(len(texts))[:n]]


def edited(parts: list[str], share: float, draw: np.random.Generator) -> list[str]:
    """Words replaced, deleted or followed by others at this share of the places."""
    out: list[str] = []
    for part in parts:
        other = parts[draw.integers(len(parts))]
        out += [[], [other], [part, other]][draw.integers(3)] if draw.random() < share else [part]
    return out


def grams(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} - {()}


@pytest.mark.slow
def test_what_sets_call_alike_is_dropped_and_nothing_else(shared: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    texts = [(text, " ") for text in pieces(shared / "data/corpus/en_books.jsonl.xz", 1000, draw)]
    texts += [(text, "") for text in pieces(shared / "data/corpus/zh_docs_poems.jsonl.xz", 1000, draw)]
    documents = [(f"a{i:05d}", text) for i, (text, _) in enumerate(texts)]
    for i, (text, space) in enumerate(texts[::2]):
        share = float(draw.choice([0.002, 0.01, 0.02, 0.03, 0.06]))
        documents.append((f"b{i:05d}", space.join(edited(text.split(" ") if space else list(text), share, draw))))
    documents = list({text: (doc_id, text) for doc_id, text in reversed(documents)}.values())  # equal ones count once
    documents = [documents[i] for i in draw.permutation(len(documents))]

    holders: dict[tuple[str, ...], list[str]] = {}
    sets = {doc_id: grams(text) for doc_id, text in dict(sorted(documents)).items()}
    expected, n_pairs = set[str](), 0
    for doc_id, ngrams in sets.items():
        shared_with = Counter(other for gram in ngrams for other in holders.get(gram, ()))
        alike = {o for o, n in shared_with.items() if n >= LIMIT * (len(ngrams) + len(sets[o]) - n)}
        n_pairs += len(alike)
        if alike - expected:
            expected.add(doc_id)
        for gram in ngrams:
            holders.setdefault(gram, []).append(doc_id)
    digests = find_near_duplicates(lambda: documents, LIMIT, tmp_path).dropped
    names = {digest_of(text.encode()): doc_id for doc_id, text in documents}
    dropped = {names[digest] for digest in digests}
    print(f"{len(documents)} documents, {n_pairs} pairs alike: missed {expected - dropped}, wrong {dropped - expected}")
    assert n_pairs > 300 and len(expected - dropped) <= 0.005 * len(expected)
    assert not dropped - expected
