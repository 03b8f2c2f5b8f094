import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from data.corpus import open_corpus, prepare
from data.enough import require_tokens
from data.settings import CorpusSettings
from data.share import allowed_windows
from data.tokenizer import get_tokenizer
from tests.commands import refused

SYNTHETIC = CorpusSettings(source="synthetic:0:100000", validation_fraction=0.2)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02d}.txt").write_text(f"document {i} says é {i * i}\n" * (i + 1))
    return folder


def documents_of(corpus, split: str) -> list[str]:
    starts = corpus.document_starts(split).tolist()
    tokens = getattr(corpus, split)
    decode = get_tokenizer("bytes").decode
    return [decode(tokens[a : b - 1]) for a, b in itertools.pairwise(starts)]


def test_every_document_is_in_one_split_once(tmp_path: Path, texts: Path) -> None:
    (texts / "copy.txt").write_text((texts / "07.txt").read_text())
    (texts / "image.png").write_bytes(b"\x89PNG\x00\x00")
    (texts / "latin.txt").write_bytes(b"\xe9t\xe9")
    (texts / "void.txt").touch()
    seen: list[tuple[int, int | None]] = []
    settings = CorpusSettings(source=str(texts), validation_fraction=0.3)
    corpus = prepare(settings, tmp_path / "corpus", progress=lambda done, total, message: seen.append((done, total)))
    assert seen[-1] == (sum(path.stat().st_size for path in texts.iterdir()),) * 2
    train, validation = documents_of(corpus, "train"), documents_of(corpus, "validation")
    expected = sorted((texts / f"{i:02d}.txt").read_text() for i in range(40))
    assert sorted(train + validation) == expected and len(train) > len(validation) > 0
    assert corpus.manifest["counts"] == {
        "documents": 40, "duplicates": 1, "binary": 1, "invalid_utf8": 1, "invalid_records": 0, "empty": 1,
        "cut_lines": 0,
    }  # fmt: skip
    for split, documents in (("train", train), ("validation", validation)):
        n_bytes = sum(len(text.encode()) for text in documents)
        record = corpus.manifest["splits"][split]
        assert (record["documents"], record["bytes"], record["tokens"]) == (
            len(documents),
            n_bytes,
            n_bytes + len(documents),
        )
    assert np.count_nonzero(np.asarray(corpus.train) == 256) == len(train)


def test_same_corpus_twice_same_fingerprint_whatever_the_order_of_work(tmp_path: Path) -> None:
    first, second = prepare(SYNTHETIC, tmp_path / "one"), prepare(SYNTHETIC, tmp_path / "two")
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint == "a139ad8d1fbd1ee8293654bbccb9cf66c280bfe952dcd22ca654fa80f02d71d3"  # frozen
    small = prepare(SYNTHETIC, tmp_path / "three", shard_tokens=1000)
    assert np.array_equal(np.asarray(small.train), np.asarray(first.train))
    assert len(small.manifest["splits"]["train"]["shards"]) > 50
    assert prepare(CorpusSettings(source="synthetic:1:100000"), tmp_path / "four").fingerprint != first.fingerprint


def test_prepare_returns_at_once_and_repairs_damage(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "corpus"
    first = prepare(SYNTHETIC, directory)
    before = os.stat(directory / "train_00000.bin").st_ino
    prepare(SYNTHETIC, directory, progress=lambda *_: pytest.fail("worked again"))
    assert os.stat(directory / "train_00000.bin").st_ino == before
    with open(directory / "train_00000.bin", "r+b") as handle:
        handle.write(b"\xff\xff")
    with pytest.raises(InputError, match="damaged"):
        open_corpus(directory, verify=True)
    assert prepare(SYNTHETIC, directory).fingerprint == first.fingerprint
    open_corpus(directory, verify=True)
    assert [path.name for path in directory.parent.iterdir()] == ["corpus"]


def test_other_settings_are_refused_with_both_hashes(tmp_path: Path) -> None:
    prepare(SYNTHETIC, tmp_path / "corpus")
    other = CorpusSettings(source="synthetic:0:100000", validation_fraction=0.2, seed=5)
    with refused(SYNTHETIC.hash, other.hash, "seed"):
        prepare(other, tmp_path / "corpus")
    open_corpus(tmp_path / "corpus", verify=True)


def test_the_same_text_elsewhere_is_the_same_corpus(tmp_path: Path, texts: Path) -> None:
    def settings(source: Path, seed: int = 0) -> CorpusSettings:
        return CorpusSettings(source=str(source), validation_fraction=0.3, seed=seed)

    here = prepare(settings(texts), tmp_path / "corpus")
    first = here.fingerprint
    moved = texts.rename(tmp_path / "elsewhere")
    elsewhere = prepare(settings(moved), tmp_path / "corpus")
    assert elsewhere.fingerprint == first and elsewhere.manifest["same_text"] == [[str(moved)]]
    assert prepare(settings(moved), tmp_path / "new").fingerprint == here.fingerprint
    assert not elsewhere.warnings
    other_seed = prepare(settings(moved, 1), tmp_path / "seed")
    assert documents_of(other_seed, "validation") != documents_of(here, "validation")
    (moved / "07.txt").write_text("another text\n" * 30)
    assert prepare(settings(texts), tmp_path / "corpus").fingerprint == first  # gone: what it was is known
    other = moved.rename(tmp_path / "other")
    with pytest.raises(InputError, match=r"holds a corpus of other text: it was made of .*texts, and .*other holds"):
        prepare(settings(other), tmp_path / "corpus")
    with pytest.raises(InputError, match="does not exist"):
        prepare(settings(texts), tmp_path / "new")
    with pytest.raises(InputError, match="does not exist"):
        open_corpus(tmp_path / "nowhere")
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "new", "other", "seed"}


def test_a_file_that_has_changed_is_named(tmp_path: Path, texts: Path) -> None:
    settings = CorpusSettings(source=str(texts), validation_fraction=0.3)
    made = prepare(settings, tmp_path / "corpus")
    before = (tmp_path / "corpus" / "sources.json").read_text()
    os.utime(texts / "03.txt", (1, 1))
    assert prepare(settings, tmp_path / "corpus").fingerprint == made.fingerprint  # touched, and the same text
    assert (tmp_path / "corpus" / "sources.json").read_text() != before
    (texts / "07.txt").write_text("another text\n" * 30)
    shutil.copytree(texts, tmp_path / "copy")
    for source, shown in ((texts, "has changed since"), (tmp_path / "copy", "holds another")):
        with pytest.raises(InputError, match=rf"{shown} \(07.txt differs\)") as caught:
            prepare(CorpusSettings(source=str(source), validation_fraction=0.3), tmp_path / "corpus")
        assert "\n" not in str(caught.value)
    (texts / "08.txt").rename(texts / "zz.txt")
    with pytest.raises(InputError, match=r"07.txt differs, 08.txt is gone, zz.txt is new"):
        prepare(settings, tmp_path / "corpus")
    assert open_corpus(tmp_path / "corpus", verify=True).fingerprint == made.fingerprint


def test_a_folder_of_the_users_is_never_replaced(tmp_path: Path, texts: Path) -> None:
    with pytest.raises(InputError, match="holds other files"):
        prepare(SYNTHETIC, texts)
    assert len(list(texts.iterdir())) == 40


def test_max_bytes_cuts_between_characters(tmp_path: Path, texts: Path) -> None:
    settings = CorpusSettings(source=str(texts), validation_fraction=0.3, max_bytes=2_000)
    corpus = prepare(settings, tmp_path / "corpus")
    total = sum(split["bytes"] for split in corpus.manifest["splits"].values())
    assert 1_996 < total <= 2_000


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.bin": b"\0\0", "b.txt": b"\xff"}, r"no usable text in .*1 binary, 1 invalid utf8"),
        ({"a.txt": b"one"}, "the validation split is empty: there is 1 document; give more"),
        ({"a.txt": b"one", "b.txt": b"caf\xe9 "}, r"there is 1 document \(left out: 1 invalid utf8\); give more"),
    ],
)
def test_text_that_makes_no_corpus(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    (tmp_path / "texts").mkdir()
    for name, content in files.items():
        (tmp_path / "texts" / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        prepare(CorpusSettings(source=str(tmp_path / "texts")), tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="validation_fraction"):
            CorpusSettings(validation_fraction=fraction)


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import errno, resource, signal, sys\n"
        "from data.corpus import CorpusSettings, prepare\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: prepare(CorpusSettings(source='synthetic:0:400000'), sys.argv[1])\n"
        "except OSError as error: sys.exit(70 + (error.errno == errno.EFBIG))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "corpus")], capture_output=True, text=True)
    assert done.returncode == 71, done.stderr
    assert not list(tmp_path.iterdir())


def test_require_tokens_says_what_is_missing_and_its_own_remedy_works(tmp_path: Path) -> None:
    corpus = prepare(SYNTHETIC, tmp_path / "corpus")
    windows = (len(corpus.train) - 1) // 64
    require_tokens(corpus, windows // 8 * 8 * 64, 1.0, 64, 8)
    with pytest.raises(InputError) as caught:
        require_tokens(corpus, (windows + 9) * 64, 1.0, 64, 1)
    message = str(caught.value)
    assert f"{9 * 64:,} tokens short" in message
    epochs = float(message.rsplit("corpus.epochs: ", 1)[1])
    require_tokens(corpus, (windows + 9) * 64, epochs, 64, 1)
    with pytest.raises(InputError, match="longer than the whole split"):
        require_tokens(corpus, 10**6, 1.0, 10**6, 1)


def test_allowance_is_of_the_decimal_that_was_written() -> None:
    assert int(1.15 * 100) == 114 and allowed_windows(100, 1.15) == 115
    assert [allowed_windows(10, epochs) for epochs in (0.05, 0.1, 1, 2.55)] == [0, 1, 10, 25]
