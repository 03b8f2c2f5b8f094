"""A BPE trained on a corpus: against a plain one step by step, and the same whatever the threads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arch.errors import InputError
from data.corpus import open_corpus, prepare
from data.settings import CorpusSettings
from data.splitting import Reading, thresholds
from data.tokenizer import get_tokenizer, is_at_hand
from data.tokenizer.ranks import PATTERN, read_ranks
from data.tokenizer.training import train_tokenizer
from data.training_sample import sample, trained

WORDS = ["low ", "lower ", "newest ", "widest ", "ünïcode ", "中文字 ", "中文 ", "lowest\n"]
TEXT = "".join(WORDS[i * i % 7] + WORDS[i % 8] for i in range(300))


def test_a_trained_tokenizer_is_bytes_and_merges() -> None:
    tokenizer = train_tokenizer("bpe:280", [TEXT])
    ranks = tokenizer.ranks
    assert [ranks[bytes([i])] for i in range(256)] == list(range(256))
    assert (tokenizer.eot_id, tokenizer.vocab_size, tokenizer.name) == (279, 280, "bpe:280")
    ours = [token for token, rank in ranks.items() if rank >= 256]
    assert len(ours) == 23
    assert len(tokenizer.encode(TEXT)) == 1177 and tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert PATTERN.startswith("'(?i:[sdmt]|ll|ve|re)|") and len(PATTERN) == 117  # a rank file alone does not hold it


def test_the_same_whatever_the_number_of_threads() -> None:
    code = (
        "import sys; from pathlib import Path; from data.tokenizer.training import train_tokenizer\n"
        "texts = [Path(p).read_text() for p in sys.argv[1:]]\n"
        "print(train_tokenizer('bpe:1500', texts).identity)"
    )
    files = sorted(map(str, Path(os.__file__).parent.glob("[a-b]*.py")))
    tokenizers = {
        subprocess.run(
            [sys.executable, "-c", code, *files], env=os.environ | extra, capture_output=True, text=True, check=True
        ).stdout
        for extra in ({"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "4"})
    }
    assert len(tokenizers) == 1


def test_more_ids_than_the_text_yields_are_refused() -> None:
    with pytest.raises(InputError, match=r"the training text yields (\d+) ids, and bpe:5000 needs 5,000") as caught:
        train_tokenizer("bpe:5000", [TEXT])
    most = re.search(r"bpe:(\d+) or fewer", str(caught.value))
    assert most is not None
    assert train_tokenizer(most[0].split(" ")[0], [TEXT]).vocab_size >= int(most[1])
    assert train_tokenizer("bpe:257", ["aa"]).encode("né") == list("né".encode())
    with pytest.raises(InputError, match="yields 257 ids"):  # a pair seen once is no token
        train_tokenizer("bpe:258", ["aa"])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02d}.txt").write_text(f"document {i} says é 中文 {i * i}\n" * (i + 1))
    return folder


@pytest.mark.parametrize("held_out", [{"validation_fraction": 0.3}, {"validation_tokens": 500}])
def test_a_corpus_of_its_own_tokenizer(tmp_path: Path, texts: Path, held_out: dict[str, float]) -> None:
    fraction = {"validation_fraction": None} | held_out
    settings = CorpusSettings(source=str(texts), tokenizer="bpe:300", **fraction)  # type: ignore[arg-type]
    corpus = prepare(settings, tmp_path / "corpus")
    assert prepare(settings, tmp_path / "again").fingerprint == corpus.fingerprint
    assert prepare(settings, tmp_path / "corpus").fingerprint == corpus.fingerprint
    tokenizer = open_corpus(tmp_path / "corpus", verify=True).tokenizer
    assert tokenizer.name == "bpe:300" and corpus.manifest["tokenizer"]["identity"] == tokenizer.identity
    assert is_at_hand("bpe:300", tmp_path / "corpus") and not is_at_hand("bpe:300")
    train = tokenizer.decode_bytes(corpus.train[:])
    assert len(train) == corpus.manifest["splits"]["train"]["bytes"] and "é 中文".encode() in train
    assert len(train) > 1.5 * len(corpus.train)
    held = tokenizer.decode(corpus.validation[:]).split("<|endoftext|>")
    assert not {text for text in held if text} & set(sample(settings, 10**9))
    with pytest.raises(InputError, match="differ: tokenizer"):
        prepare(CorpusSettings(source=str(texts), tokenizer="bpe:301", **fraction), tmp_path / "corpus")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is trained on a corpus"):
        get_tokenizer("bpe:300")


def test_a_sample_is_of_training_text_and_no_larger_than_asked(texts: Path) -> None:
    settings = CorpusSettings(source=str(texts), tokenizer="bpe:300", validation_fraction=0.2)
    documents = [document for batch in Reading(settings).batches() for document in batch.documents]
    whole = {document.text for document in documents if document.draw >= 0.2 * 2**64}
    assert set(sample(settings, 10**9)) == whole
    some = sample(settings, 3000)
    assert sum(len(text.encode()) for text in some) in range(2997, 3001) and set(some[:-1]) <= whole
    largest = sorted(documents, key=lambda document: -document.draw)
    assert some[:-1] == [document.text for document in largest[: len(some) - 1]]


def test_held_out_documents_of_uneven_length_are_in_no_sample(tmp_path: Path) -> None:
    """How many tokens are held out is known with the tokenizer only, and documents are held out whole."""
    folder, words = tmp_path / "uneven", [f"w{a}{b}" for a in "abcdefghij" for b in "klmnopqrstuvwxyz"]
    folder.mkdir()
    for i in range(30):
        text = " ".join(words[(i * 37 + j * j) % len(words)] for j in range(20_000 if i % 2 else 250))
        (folder / f"{i:02d}.txt").write_text(text)
    for seed in range(5):
        settings = CorpusSettings(
            source=str(folder), tokenizer="bpe:420", validation_fraction=None, validation_tokens=3000, seed=seed
        )
        (bound,) = thresholds(settings, trained(settings))
        documents = [document for batch in Reading(settings).batches() for document in batch.documents]
        held_out = {document.text for document in documents if document.draw < bound}
        sampled = sample(settings, 10**9)
        assert held_out and sampled and not any(text.startswith(sample) for sample in sampled for text in held_out)


def test_of_two_documents_one_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("low lower " * 100)
    (tmp_path / "large.txt").write_text("newest widest " * 1000)
    for seed in range(4):  # either has the smaller draw
        settings = CorpusSettings(
            source=str(tmp_path), tokenizer="bpe:270", validation_fraction=None, validation_tokens=300, seed=seed
        )
        assert len(sample(settings, 10**9)) == 1


def test_a_damaged_rank_file_is_one_line(tmp_path: Path, texts: Path) -> None:
    settings = CorpusSettings(source=str(texts), tokenizer="bpe:300", validation_fraction=0.3)
    path = prepare(settings, tmp_path / "corpus").directory / "tokenizer.tiktoken"
    content = path.read_bytes()
    assert content.startswith(b"AA== 0\n") and len(content.splitlines()) == 299
    for broken in (
        b"",
        content[:-9],
        content + b"AAAA 299\n",
        b"no base64\n",
        content.replace(b"AA== 0\n", b"AAAAAA== 0\n"),
    ):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="is not the rank file of bpe:300"):
            read_ranks("bpe:300", path)
    lines = content.splitlines(keepends=True)
    (a, x), (b, y) = lines[-1].split(), lines[-2].split()
    path.write_bytes(b"".join([*lines[:-2], b" ".join([a, y]) + b"\n", b" ".join([b, x]) + b"\n"]))
    with pytest.raises(InputError, match="made with another tokenizer than the bpe:300"):
        _ = open_corpus(tmp_path / "corpus").tokenizer  # of the same size
    path.unlink()
    with pytest.raises(InputError, match=r"tokenizer\.tiktoken: cannot be read"):
        read_ranks("bpe:300", path)
