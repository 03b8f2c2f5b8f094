"""A corpus whose making was killed is taken up where it stopped, and is the one that it would have been."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import data.splitting
import data.writing
from data.corpus import Corpus, open_corpus, prepare
from data.encoding import Block
from data.resumable import unfinished
from data.settings import CorpusSettings, Weighted

NOTED = 30_000  # bytes of text between notes, in these tests
CODE = """
import json, sys
import data.splitting, data.writing
from data.corpus import CorpusSettings, prepare
from data.settings import Weighted
data.writing.NOTED_BYTES, data.splitting.BATCH_BYTES = int(sys.argv[3]), int(sys.argv[3]) // 3
given = json.loads(sys.argv[1])
if not isinstance(given["source"], str):
    given["source"] = tuple(Weighted(**entry) for entry in given["source"])
prepare(CorpusSettings(**given), sys.argv[2], shard_tokens=int(sys.argv[4]))
"""
SHARD = 25_000


def settings(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    folder = tmp_path / "texts"
    if not folder.exists():
        folder.mkdir()
        for i in range(120):
            (folder / f"{i:03d}.txt").write_text(f"document {i} says é {i * i}\n" * 75)
    sources = [{"source": str(folder), "weight": 2}, {"source": "synthetic:0:150000", "weight": 1}]
    return {"source": sources, "tokenizer": "bpe:300", "validation_fraction": 0.1} | changes


def made(given: dict[str, Any], directory: Path, **how: Any) -> Corpus:
    source = given["source"]
    mixed = source if isinstance(source, str) else tuple(Weighted(**entry) for entry in source)
    return prepare(CorpusSettings(**given | {"source": mixed}), directory, shard_tokens=SHARD, **how)


def killed(given: dict[str, Any], directory: Path, at: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(given), str(directory), str(NOTED), str(SHARD)],
        env=os.environ | {"KILL_AT_WRITE": at},
        start_new_session=True,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.writing, "NOTED_BYTES", NOTED)
    monkeypatch.setattr(data.splitting, "BATCH_BYTES", NOTED // 3)


def test_killed_at_a_few_moments(tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(tmp_path)
    expected = made(given, tmp_path / "whole")
    for at in ("corpus-journal:1", "corpus-journal:7", "corpus:1"):
        directory = tmp_path / "corpus"
        killed(given, directory, at)
        assert not directory.exists() and (tmp_path / ".corpus.unfinished").exists()
        encoded, again = 0, list[str]()
        encode = data.writing.encode_block

        def counted(tokenizer: Any, texts: list[str], n_bytes: int, encode: Any = encode) -> Block:
            nonlocal encoded
            encoded += n_bytes
            return encode(tokenizer, texts, n_bytes)

        with monkeypatch.context() as patch:
            patch.setattr(data.writing, "encode_block", counted)
            corpus = made(given, directory, progress=lambda done, total, message: again.append(message))  # noqa: B023
        assert corpus.fingerprint == expected.fingerprint
        assert corpus.manifest["splits"] == expected.manifest["splits"]
        open_corpus(directory, verify=True)
        whole = sum(split["bytes"] for split in expected.manifest["splits"].values())
        notes = {"corpus-journal:1": 0, "corpus-journal:7": 6, "corpus:1": 8}[at]
        assert encoded <= whole + 20_000 - notes * NOTED  # held-out passages were cut, and documents are not
        assert any("before a stop" in message for message in again) == (notes > 0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "texts", "whole"]
        shutil.rmtree(directory)


def test_text_that_changed_since_is_read_anew(tmp_path: Path, often: None) -> None:
    given = settings(tmp_path, tokenizer="bytes")
    killed(given, tmp_path / "corpus", "corpus-journal:5")
    (tmp_path / "texts" / "000.txt").write_text("another text\n" * 80)
    assert made(given, tmp_path / "corpus").fingerprint == made(given, tmp_path / "whole").fingerprint
    killed(given, tmp_path / "fourth", "corpus-journal:7")
    shard = next((tmp_path / ".fourth.unfinished" / "files").glob("train.texts_00000.bin"))
    shard.write_bytes(bytes(shard.stat().st_size))  # what is there is not believed
    assert made(given, tmp_path / "fourth").fingerprint == made(given, tmp_path / "whole").fingerprint
    killed(given, tmp_path / "fifth", "corpus-journal:7")
    for path in sorted((tmp_path / "texts").iterdir())[4:]:
        path.unlink()
    assert made(given, tmp_path / "fifth").fingerprint == made(given, tmp_path / "sixth").fingerprint


def test_an_error_leaves_nothing_and_an_interrupt_what_can_be_resumed(tmp_path: Path) -> None:
    for error, left in ((OSError, False), (KeyboardInterrupt, True)):
        with pytest.raises(error), unfinished(tmp_path / "made", lambda: None) as work:
            assert work.begin({"a": 1}) is None
            work.note({"b": 2})
            raise error
        assert any(tmp_path.iterdir()) == left
    with unfinished(tmp_path / "made", lambda: None) as work:
        assert work.begin({"a": 1}) == {"b": 2}
        assert work.begin({"a": 2}) is None and work.begin({"a": 1}) is None
    assert not any(tmp_path.iterdir())


def test_one_process_at_a_time(tmp_path: Path) -> None:
    waited, shown = threading.Event(), list[str]()

    def second() -> None:
        with unfinished(tmp_path / "made", waited.set):
            shown.append("second")

    with unfinished(tmp_path / "made", lambda: pytest.fail("waits")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(10)
        shown.append("first")
    thread.join(10)
    assert shown == ["first", "second"] and not any(tmp_path.iterdir())
