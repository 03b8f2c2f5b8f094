"""Near-duplicates against sets of n-grams compared pair by pair, in another order of reading, and through a corpus."""

import json
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.clean import near
from data.clean.minhash import MISSED, Bands, bands_for
from data.clean.near import digest_of, find_near_duplicates, jaccard
from data.clean.steps import check_steps, similarity_of
from data.corpus import prepare
from data.settings import CorpusSettings


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} - {()}


def by_hand(documents: list[tuple[str, str]], similarity: float) -> set[str]:
    """Ids that are dropped, every document compared with all that stay before it; of equal ones the first alone."""
    stay: list[set[tuple[str, ...]]] = []
    dropped = set()
    first = {text: (doc_id, text) for doc_id, text in sorted(documents, reverse=True)}
    for doc_id, text in sorted(first.values()):
        ngrams = grams(text)
        if ngrams and any(len(ngrams & other) >= similarity * len(ngrams | other) for other in stay):
            dropped.add(doc_id)
        elif ngrams:
            stay.append(ngrams)
    return dropped


def edited(text: str, share: float, draw: np.random.Generator) -> str:
    """The text with this share of its words replaced."""
    words = text.split(" ")
    for i in np.flatnonzero(draw.random(len(words)) < share):
        words[i] = f"edit{draw.integers(1 << 30)}"
    return " ".join(words)


@pytest.fixture(scope="module")
def documents() -> list[tuple[str, str]]:
    """Pieces of library source, some of them several times with edits; by numbers that say nothing of the order."""
    root, draw, texts = Path(sysconfig.get_paths()["stdlib"]), np.random.default_rng(0), list[str]()
    for path in sorted(root.glob("*.py"))[:60]:
        text = path.read_text(encoding="utf-8", errors="ignore").encode("ascii", "ignore").decode()
        texts.append(text[: draw.integers(300, 6000)])
    for text in texts[::3]:
        texts += [edited(text, share, draw) for share in (0.005, 0.02, 0.05, 0.1)]
    texts += ["one two three", "one, two: THREE", "- - -", "...", ""]
    return [(f"{number:03d}", text) for number, text in zip(draw.permutation(len(texts)), texts, strict=True)]


@pytest.mark.parametrize("similarity", [0.6, 0.8, 1.0])
def test_what_is_dropped_is_what_pairs_by_hand_drop(documents, similarity, tmp_path):
    expected = by_hand(documents, similarity)
    digests = {doc_id: digest_of(text.encode()) for doc_id, text in documents}
    actual = find_near_duplicates(lambda: documents, similarity, tmp_path)
    assert actual.dropped == {digests[doc_id] for doc_id in expected}
    assert actual.entries[0]["dropped"] == len(expected) >= (1 if similarity == 1.0 else 15)
    reverse = find_near_duplicates(lambda: documents[::-1], similarity, tmp_path)
    assert reverse.dropped == actual.dropped and reverse.entries[0] == actual.entries[0]
    for example in actual.entries[0]["examples"]:
        texts = dict(documents)
        dropped, like = grams(texts[example["document"]]), grams(texts[example["like"]])
        assert example["similarity"] == round(len(dropped & like) / len(dropped | like), 4)
        assert example["like"] < example["document"]
        assert " ".join(texts[example["document"]].split()).startswith(example["text"][:40])
    assert not list(tmp_path.iterdir())


def test_of_a_chain_every_other_document_stays_and_equal_ones_count_once(tmp_path):
    words = [f"w{i}" for i in range(200)]
    chain = [(str(i), " ".join(words[20 * i : 20 * i + 100])) for i in range(5)]  # neighbours 0.66, others 0.43 or less
    chain += [("7", chain[0][1]), ("6", "alone")]
    assert by_hand(chain, 0.6) == {"1", "3"}
    result = find_near_duplicates(lambda: chain, 0.6, tmp_path)
    assert result.dropped == {digest_of(chain[i][1].encode()) for i in (1, 3)} and result.entries[0]["documents"] == 6


def test_a_document_with_too_many_candidates_stays_and_is_counted(monkeypatch, tmp_path):
    common = " ".join(f"c{i}" for i in range(60))
    documents = [(f"{i:02d}", f"{common} " + " ".join(f"u{i}x{j}" for j in range(20))) for i in range(30)]
    documents += [("99", documents[29][1] + " end")]
    assert find_near_duplicates(lambda: documents, 0.8, tmp_path).entries[0]["cut_short"] == 0
    monkeypatch.setattr(near, "MOST_COMPARED", 3)
    result = find_near_duplicates(lambda: documents, 0.8, tmp_path)
    assert result.entries[0]["cut_short"] > 0 and not result.dropped


def test_text_that_changes_between_its_readings_is_refused(tmp_path):
    text = " ".join(f"w{i}" for i in range(40))
    first = [("a", text), ("b", text + " end")]
    other = [("a", text), ("b", text + " more")]
    for second in ([("a", text)], [("a", text), ("c", text)], [*first, ("d", "x")], other):
        readings = iter([first, second])
        with pytest.raises(InputError, match="changed while it was read"):
            find_near_duplicates(lambda readings=readings: next(readings), 0.8, tmp_path)


def shared(bands: Bands, similarity: float) -> float:
    """The probability that two documents of this similarity share a band."""
    return float(1 - (1 - similarity**bands.rows) ** bands.n_bands)


def test_bands_are_shared_as_often_as_computed():
    """Over pairs of sets of a known similarity: the share of pairs with a band in common, beside the formula."""
    draw, bands = np.random.default_rng(1), Bands(4, 4)
    for similarity in (0.5, 0.7, 0.9):
        n_own = round(100 * (1 - similarity) / similarity) * 2
        hits = 0
        for _ in range(300):
            elements = draw.integers(0, 1 << 63, 200 + n_own, dtype=np.uint64)
            first, other = elements[: 200 + n_own // 2], np.concatenate([elements[:200], elements[200 + n_own // 2 :]])
            exact = jaccard(np.sort(first), np.sort(other))
            assert exact == pytest.approx(similarity, abs=0.01)
            hits += bool((bands.of(first) == bands.of(other)).any())
        expected = shared(bands, exact)
        assert abs(hits / 300 - expected) < 4 * (expected * (1 - expected) / 300) ** 0.5 + 0.005
    for similarity in (0.5, 0.8, 0.95, 1.0):
        chosen = bands_for(similarity)
        assert chosen.n_bands * chosen.rows <= 128 and 1 - shared(chosen, similarity) <= MISSED


def test_a_corpus_leaves_them_out_and_says_so(tmp_path, documents):
    source = tmp_path / "text.jsonl"
    rows = [{"text": text} for _, text in documents]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = prepare(CorpusSettings(source=str(source)), tmp_path / "plain")
    corpus = prepare(CorpusSettings(source=str(source), clean=("near_duplicates",)), tmp_path / "clean")
    (entry,) = corpus.manifest["cleaning"]
    counts, before = corpus.manifest["counts"], plain.manifest["counts"]
    assert entry["dropped"] == counts["near_duplicates"] == before["documents"] - counts["documents"] > 15
    splits = [made.manifest["splits"] for made in (plain, corpus)]
    text_bytes = [sum(counts[split]["bytes"] for split in ("train", "validation")) for counts in splits]
    assert "near_duplicates" not in before and "cleaning" not in plain.manifest and text_bytes[0] > text_bytes[1]
    (tmp_path / "moved").mkdir()
    moved = source.rename(tmp_path / "moved" / "text.jsonl")
    again = prepare(CorpusSettings(source=str(moved), clean=("near_duplicates",)), tmp_path / "clean")
    assert again.fingerprint == corpus.fingerprint != plain.fingerprint
    for clean in ((), ("near_duplicates:0.9",)):
        with pytest.raises(InputError, match=r"differ: clean"):
            prepare(CorpusSettings(source=str(moved), clean=clean), tmp_path / "clean")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("near_duplicate",), "did you mean 'near_duplicates'"),
        (("near_duplicates:x",), "write near_duplicates, or near_duplicates:0.9"),
        (("near_duplicates:0.2",), "between 0.5 and 1"),
        (("near_duplicates", "near_duplicates:0.9"), "names near_duplicates twice"),
    ],
)
def test_wrong_steps_are_one_line(steps, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_steps(steps)
    assert similarity_of("near_duplicates") == 0.8 and similarity_of("near_duplicates:0.9") == 0.9
