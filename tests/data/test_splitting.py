"""Which documents are held out: at least one, a share of them, or a number of tokens."""

import random
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.corpus import prepare
from data.overlap import shared_tokens
from data.settings import CorpusSettings

DOCUMENTS, LETTERS = 220, "abcdefghijklmnopqrstuvwxyz ,.\n"


def text_of(n: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(LETTERS, k=n))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> str:
    """220 documents of 200 to 3,000 letters; one of them is as long as half of the others."""
    folder = tmp_path_factory.mktemp("books")
    for i in range(DOCUMENTS):
        (folder / f"{i:03d}.txt").write_text(text_of(150_000 if i == 0 else 200 + i * 12, i))
    return str(folder)


def by_tokens(source: str, wanted: int) -> CorpusSettings:
    return CorpusSettings(source=source, validation_fraction=None, validation_tokens=wanted)


def held_out(corpus) -> tuple[int, int]:
    split = corpus.manifest["splits"]["validation"]
    return split["documents"], split["tokens"]


def test_at_least_one_document_is_held_out_and_at_least_one_trained_on(books: str, tmp_path: Path) -> None:
    few = prepare(CorpusSettings(source=books, validation_fraction=1e-9), tmp_path / "few")
    again = prepare(CorpusSettings(source=books, validation_fraction=1e-9), tmp_path / "again")
    assert held_out(few)[0] == 1 and few.fingerprint == again.fingerprint
    smallest = prepare(by_tokens(books, 1), tmp_path / "smallest")
    assert np.array_equal(smallest.validation, few.validation) and np.array_equal(smallest.train, few.train)
    most = prepare(CorpusSettings(source=books, validation_fraction=1 - 1e-12), tmp_path / "most")
    assert most.manifest["splits"]["train"]["documents"] == 1 and held_out(most)[0] == DOCUMENTS - 1
    assert few.manifest["counts"]["documents"] == most.manifest["counts"]["documents"] == DOCUMENTS


@pytest.mark.parametrize("wanted", [5_000, 40_000])
def test_a_number_of_tokens(books: str, tmp_path: Path, wanted: int) -> None:
    """The documents with the smallest draws, as many as it takes: more tokens hold out these and others."""
    corpus = prepare(by_tokens(books, wanted), tmp_path / "corpus")
    less = prepare(by_tokens(books, wanted // 4), tmp_path / "less")
    lengths = np.diff(corpus.document_starts("validation"))
    assert wanted <= held_out(corpus)[1] < wanted + lengths.max()
    documents = [set(map(bytes, np.split(np.asarray(c.validation, np.uint8), c.document_starts("validation")[1:-1])))
                 for c in (corpus, less)]  # fmt: skip
    assert documents[1] < documents[0]
    assert corpus.manifest["settings"]["validation_fraction"] is None


def test_impossible_numbers_of_tokens_are_refused(books: str, tmp_path: Path) -> None:
    total = sum(path.stat().st_size + 1 for path in Path(books).iterdir())
    for wanted, shown in (
        (10**9, rf"are more than the {total:,} of the whole text"),
        (total, "none is left to train on"),
    ):
        with pytest.raises(InputError, match=shown):
            prepare(by_tokens(books, wanted), tmp_path / "corpus")
    for both in ({"validation_tokens": 5, "validation_fraction": 0.1}, {"validation_fraction": None}):
        with pytest.raises(InputError, match="give validation_fraction or validation_tokens"):
            CorpusSettings(source=books, **both)
    assert list(tmp_path.iterdir()) == []


def test_a_share_far_from_the_requested_one_is_reported(books: str, tmp_path: Path) -> None:
    warnings = {}
    for seed in range(8):
        settings = CorpusSettings(source=books, validation_fraction=0.1, seed=seed)
        corpus = prepare(settings, tmp_path / str(seed))
        share = corpus.manifest["held_out_share"]
        sizes = [corpus.manifest["splits"][split]["bytes"] for split in ("validation", "train")]
        assert share == pytest.approx(sizes[0] / sum(sizes))
        assert bool(corpus.warnings) == (not 0.05 <= share <= 0.2)
        warnings[seed] = corpus.warnings
    shown = [lines[0] for lines in warnings.values() if lines]
    assert 0 < len(shown) < 8 and all("where corpus.validation_fraction 0.1 is set" in line for line in shown)


def test_no_passage_of_the_held_out_text_is_left_in_the_training_text(tmp_path: Path) -> None:
    """A licence in every fifth document, one document inside of another, and one that is all licence."""
    folder = tmp_path / "books"
    folder.mkdir()
    licence = text_of(700, 1000)
    for i in range(100):
        text = text_of(2000, i)
        (folder / f"{i:03d}.txt").write_text(text[:700] + licence + text[700:] if i % 5 == 0 else text)
        (folder / f"{i:03d}b.txt").write_text(text[100:1500])
        (folder / f"{i:03d}c.txt").write_text(licence[: 300 + i])
    settings = CorpusSettings(source=str(folder), validation_fraction=0.2)
    corpus, plain = prepare(settings, tmp_path / "corpus"), prepare(settings, tmp_path / "plain", shard_tokens=5000)
    shared = corpus.manifest["shared"]
    assert shared["passage_tokens"] == 256 and shared["passages"] > 10 and shared["tokens"] > 10_000
    assert shared["documents"] > 10
    for made in (corpus, plain):
        assert not shared_tokens(made.train, np.asarray(made.validation), 256, 256).any()
        split, starts = made.manifest["splits"]["validation"], made.document_starts("validation")
        assert split["documents"] == len(starts) - 1 and split["tokens"] == len(made.validation) == starts[-1]
        assert split["bytes"] == split["tokens"] - split["documents"]
        assert np.all(np.asarray(made.validation)[starts[1:] - 1] == 256) and np.diff(starts).min() > 256
    assert np.array_equal(np.asarray(corpus.train), np.asarray(plain.train))
    text = bytes(np.asarray(corpus.train)[np.asarray(corpus.train) < 256].astype(np.uint8))
    for start, stop in zip(starts[:-1].tolist(), (starts[1:] - 1).tolist(), strict=True):
        piece = bytes(np.asarray(plain.validation)[start:stop].astype(np.uint8))
        assert not any(piece[i : i + 256] in text for i in range(len(piece) - 255))


def test_text_that_repeats_itself_is_refused(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("the same line again and again\n" * (20 + i))
    with pytest.raises(InputError, match=r"all of the held-out text .* occurs in the training text too"):
        prepare(CorpusSettings(source=str(tmp_path), validation_fraction=0.3), tmp_path / "out" / "corpus")
    assert not (tmp_path / "out" / "corpus").exists()
