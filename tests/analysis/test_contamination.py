"""Evaluation sets from files, held against a corpus once, and `scaling eval contamination`."""

import json
import re
from pathlib import Path

import pytest

import analysis.contamination
from analysis.contamination import data_hash, documents, ensure, stored
from arch.errors import InputError
from data.corpus import Corpus, open_corpus, prepare
from data.settings import CorpusSettings
from scaling.cli.evaluate import own_sets
from tests.commands import printed, refusal_of

LINE = "a long line of twenty words and no fewer that stands in the text that we train on here today so"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study file; its text repeats nothing but has LINE in it."""
    text = "".join(json.dumps({"text": f"{i} " * 3 + f"{LINE} {i * 7} and so on {i}"}) + "\n" for i in range(60))
    (tmp_path / "text.jsonl").write_text(text)
    (tmp_path / "piqa.jsonl").write_text(
        "\n".join(json.dumps(row) for row in [{"goal": LINE, "sol1": "a", "label": 0}, {"goal": "other words " * 9}])
    )
    (tmp_path / "data" / "piqa").mkdir(parents=True)
    (tmp_path / "piqa.jsonl").rename(tmp_path / "data" / "piqa" / "validation.jsonl")
    (tmp_path / "data" / "needle").mkdir()
    (tmp_path / "data" / "needle" / "one.txt").write_text(
        f"An essay.\n\n{LINE}. And more of it, which nobody has read."
    )
    (tmp_path / "s.yaml").write_text(
        f"name: demo\nout: {tmp_path}/out\n"
        f"corpus: {{source: {tmp_path}/text.jsonl, validation_fraction: 0.1}}\n"
        "grid: {archs: [tnl], sizes: [14k]}\ntraining: {n_tokens: 3000}\n"
        f"evaluation: {{tasks: [piqa, niah-easy, niah-standard, validation], data: {tmp_path}/data}}\n"
    )
    return tmp_path / "s.yaml"


def corpus_of(study: Path) -> Corpus:
    source = str(study.parent / "text.jsonl")
    settings = CorpusSettings(source=source, validation_fraction=0.1)
    return prepare(settings, study.parent / "out" / "demo" / "corpus")


def test_the_command_finds_it_once(study: Path) -> None:
    command = ("eval", "contamination", study)
    assert "prepare it again with `scaling data STUDY`" in refusal_of(*command)
    corpus = corpus_of(study)
    sets = json.loads(printed(*command, "--json"))["sets"]
    assert set(sets) == {"piqa", "niah-easy, niah-standard"}
    counts = {name: (row["documents"], row["overlapping"], row["mostly"]) for name, row in sets.items()}
    assert counts == {"piqa": (2, 1, 1), "niah-easy, niah-standard": (1, 1, 0)}
    (study.parent / "own.txt").write_text(f"{LINE}\n\nand {' else '.join('abcdefghijklmnop')}\n")
    own = printed(*command, "--file", f"own={study.parent}/own.txt")
    assert re.search(r"own +2 +0 +1 \(50\.00%\)", own) and LINE[:20] in own
    record = stored(study.parent / "out" / "demo" / "results" / "contamination.json", corpus.fingerprint)
    assert record is not None and record["sets"].items() >= sets.items() and set(record["sets"]) == {*sets, "own"}
    assert "own: nowhere.txt does not exist" in refusal_of(*command, "--file", "own=nowhere.txt")


@pytest.mark.parametrize(("words", "message"), [(["own"], "is not NAME=PATH"), (["a=b", "a=c"], "a is given twice")])
def test_own_sets_that_are_none_are_told(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        own_sets(words)


def test_only_what_is_missing_or_changed_is_done(study: Path, tmp_path: Path, monkeypatch) -> None:
    corpus, path = corpus_of(study), tmp_path / "record.json"
    asked: list[list[str]] = []

    def counted(corpus, sets, progress=None):
        asked.append(list(sets))
        return overlaps(corpus, sets, progress)

    overlaps = analysis.contamination.overlaps
    monkeypatch.setattr(analysis.contamination, "overlaps", counted)
    needle, own = tmp_path / "data" / "needle", tmp_path / "own.txt"
    own.write_text(LINE)
    ensure(corpus, path, {"needle": needle, "own": own})
    first = ensure(corpus, path, {"needle": needle, "own": own})
    own.write_text("something else")
    assert data_hash("own", own) != first["sets"]["own"]["data_hash"]
    second = ensure(corpus, path, {"own": own})
    assert second["sets"]["needle"] == first["sets"]["needle"] and second["sets"]["own"]["overlapping"] == 0
    ensure(corpus, path, {"needle": needle}, force=True)
    assert asked == [["needle", "own"], ["own"], ["needle"]]
    assert stored(path, "another corpus") is None
    path.write_text("{damaged")
    assert stored(path, open_corpus(corpus.directory).fingerprint) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{broken', "line 2 is not JSON"),
        ("a.txt", b"\xff\xfe bad", "is not UTF-8 text"),
        ("folder", None, "holds no .txt file"),
        ("a.jsonl", b'{"n": 3}\n', "holds no text"),
    ],
)
def test_a_set_that_cannot_be_read_is_told(
    study: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    place = tmp_path / name
    place.mkdir() if content is None else place.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        ensure(corpus_of(study), tmp_path / "record.json", {"mine": place})
    assert "\n" not in str(caught.value) and not (tmp_path / "record.json").exists()


def test_what_a_document_is(tmp_path: Path) -> None:
    rows = tmp_path / "a.jsonl"
    rows.write_text('{"a": "one", "b": {"c": ["two", 3, "four"]}}\n\n["five"]\n')
    assert list(documents("x", rows)) == [("a.jsonl line 1", ["one", "two", "four"]), ("a.jsonl line 3", ["five"])]
    text = tmp_path / "b.txt"
    text.write_text("one\ntwo\n \nthree\n")
    result = [("b.txt paragraph 1", ["one\ntwo"]), ("b.txt paragraph 2", ["three"])]
    assert list(documents("x", text)) == result
    assert [name for name, _ in documents("x", tmp_path)] == ["b.txt"]
