"""JSON of the right syntax and the wrong form in every file that a corpus or a tokenizer is read from: one line, or
made anew; never a traceback."""

import json
from pathlib import Path

import pytest

from arch.errors import InputError
from data.corpus import open_corpus, prepare
from data.hf_tokenizer import write_tokenizer
from data.left_out import left_out
from data.settings import CorpusSettings, Weighted
from data.tokenizer import get_tokenizer
from data.tokenizer.training import train_tokenizer
from data.vocabulary import vocabulary

from ..wrong_forms import changes


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for name in ("a", "b"):
        rows = [json.dumps({"text": f"document {i} of {name}: " * 40}) for i in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return folder


@pytest.mark.parametrize("name", ["manifest.json", "sources.json", "left-out.json"])
def test_files_of_a_corpus(sources: Path, tmp_path: Path, name: str) -> None:
    """Of a mixture, whose files hold all that those of one source hold."""
    source = tuple(Weighted(str(sources / f"{part}.jsonl"), weight) for part, weight in (("a", 2), ("b", 1)))
    settings, directory = CorpusSettings(source=source), tmp_path / "corpus"
    fingerprint = prepare(settings, directory).fingerprint
    path = directory / name
    content = path.read_bytes() if path.exists() else json.dumps({"schema": 1, "files": ["x"]}).encode()
    for changed in changes(json.loads(content), 40):
        path.write_bytes(changed)
        left_out(directory)
        try:
            corpus = open_corpus(directory)
            assert (
                len(corpus.train) == corpus.n_tokens("train") and corpus.tokenizer.name and corpus.warnings is not None
            )
            assert sum(part.n_tokens for part in corpus.parts("validation")) == len(corpus.validation)
        except InputError as error:
            assert "\n" not in str(error)
    for i, changed in enumerate(changes(json.loads(content), 12)):
        path.write_bytes(changed)
        if i % 2:
            (directory / "train.idx").touch()
        try:
            prepare(settings, directory)
        except InputError as error:
            assert "\n" not in str(error)
    path.write_bytes(content if name == "manifest.json" else b"{}")
    assert prepare(settings, directory).fingerprint == fingerprint


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_files_of_a_tokenizer(tmp_path: Path, name: str) -> None:
    write_tokenizer(train_tokenizer("bpe:270", ["some text, of which pairs occur, some text " * 20]), tmp_path)
    content = (tmp_path / name).read_bytes()
    for changed in changes(json.loads(content), 40):
        (tmp_path / name).write_bytes(changed)
        for opened in (get_tokenizer, vocabulary):
            try:
                opened(str(tmp_path / "tokenizer.json"))
            except InputError as error:
                assert "\n" not in str(error)
