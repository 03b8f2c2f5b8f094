"""A tokenizer.json by its path."""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from data.corpus import open_corpus, prepare
from data.hf_tokenizer import write_tokenizer
from data.settings import CorpusSettings
from data.tokenizer import get_tokenizer
from data.tokenizer.training import train_tokenizer
from data.vocabulary import vocabulary

TEXT = Path(argparse.__file__).read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json")
    write_tokenizer(train_tokenizer("bpe:400", [TEXT]), path)
    return path


def changed(folder: Path, to: Path, change: dict[str, Any]) -> Path:
    """A copy with keys changed, "model.type" for one that lies deeper."""
    content = copy.deepcopy(json.loads((folder / "tokenizer.json").read_text()))
    for key, value in change.items():
        place = content
        *outer, last = key.split(".")
        for name in outer:
            place = place[name]
        place[last] = value
    path = to / "changed.json"
    path.write_text(json.dumps(content))
    return path


def test_ids_are_the_files_own(folder: Path, tmp_path: Path) -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = get_tokenizer(str(folder / "tokenizer.json"))
    assert (
        tokenizer.encode(TEXT)
        == library.encode(TEXT, add_special_tokens=False).ids
        == tokenizer.encode_batch(["", TEXT])[1].tolist()
    )
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eot_id) == ("tokenizer.json", 400, 399)
    assert vocabulary(str(folder / "tokenizer.json")) == 400
    assert tokenizer.decode(tokenizer.encode(TEXT + "☃<|endoftext|>")) == TEXT + "☃<|endoftext|>"
    assert tokenizer.eot_id not in tokenizer.encode("<|endoftext|>")
    # what is put around a text is no part of it, nor of the identity
    end = "<|endoftext|>"
    text = {"Sequence": {"id": "A", "type_id": 0}}
    around = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": end, "type_id": 0}}, text],
        "pair": [text],
        "special_tokens": {end: {"id": end, "ids": [399], "tokens": [end]}},
    }
    path = changed(folder, tmp_path, {"post_processor": around})
    assert tokenizers.Tokenizer.from_file(str(path)).encode("a").ids[0] == 399
    again = get_tokenizer(str(path))
    assert again.identity == tokenizer.identity and again.encode("a") == tokenizer.encode("a")


def test_the_corpus_keeps_it_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes((folder / "tokenizer.json").read_bytes())
    settings = CorpusSettings(source="synthetic:0:60000", tokenizer=str(path), validation_fraction=0.2)
    corpus = prepare(settings, tmp_path / "corpus")
    moved = path.rename(tmp_path / "moved.json")
    elsewhere = CorpusSettings(source="synthetic:0:60000", tokenizer=str(moved), validation_fraction=0.2)
    assert prepare(elsewhere, tmp_path / "corpus").fingerprint == corpus.fingerprint
    assert elsewhere.hash == settings.hash
    assert prepare(elsewhere, tmp_path / "other").fingerprint == corpus.fingerprint
    moved.write_bytes(changed(folder, tmp_path, {"model.ignore_merges": False}).read_bytes())
    with pytest.raises(InputError, match="was made with another tokenizer"):
        prepare(elsewhere, tmp_path / "corpus")
    moved.unlink()
    stored = open_corpus(tmp_path / "corpus", verify=True).tokenizer
    assert stored.identity == get_tokenizer(str(folder / "tokenizer.json")).identity
    assert stored.decode_bytes(corpus.train[:2000]) and stored.eot_id == 399


BAD = {
    "no byte-level BPE, but WordPiece": {"model.type": "WordPiece"},
    r"normalizer \(NFC\) changes the text": {"normalizer": {"type": "NFC"}},
    r"pre-tokenizer \(ByteLevel\) adds or takes": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
    r"pre-tokenizer \(Whitespace\) adds": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "ByteLevel"}]}
    },
    "pre-tokenizer does not make bytes": {"pre_tokenizer": None},
    "lacks 255 of the 256 bytes": {"model.vocab": {"a": 0, "<|endoftext|>": 399}, "model.merges": []},
    "which stands for no byte": {"model.vocab.中": 398},
    "tokenizers refuse it": {"model.merges": ["a b c d"]},
    "which of its 0 special tokens": {"added_tokens": []},
    "is no tokenizer.json": {"model": []},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_used_is_one_line(message: str, folder: Path, tmp_path: Path) -> None:
    path = changed(folder, tmp_path, BAD[message])
    with pytest.raises(InputError, match=message) as caught:
        prepare(CorpusSettings(source="synthetic:0:60000", tokenizer=str(path)), tmp_path / "corpus")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["changed.json"]


def test_what_is_no_tokenizer_is_known_by_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match="cannot be read"):
        vocabulary(str(path))
    for content in (
        b"",
        b"[]",
        b"{}",
        b'{"model": {"vocab": {"a": "b"}}, "added_tokens": []}',
        b"\xff",
        b"[" * 100_000,
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is no tokenizer\.json of Hugging Face"):
            vocabulary(str(path))
