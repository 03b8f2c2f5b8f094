"""A node's own copy of a corpus: made once by whoever comes first, and never a reason to stop."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data.corpus import prepare
from data.files import STAGE
from data.settings import CorpusSettings
from data.staging import open_staged


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return prepare(CorpusSettings(source="synthetic:0:20000"), tmp_path / "shared" / "corpus").directory


def test_one_copy_for_all_processes(corpus, tmp_path, monkeypatch):
    assert open_staged(corpus).directory == corpus
    node = tmp_path / "a node's disk" / "new"
    monkeypatch.setenv(STAGE, str(node))
    (node / f"corpus-{open_staged(corpus).fingerprint[:16]}").rename(tmp_path / "first")
    left = node / f"corpus-{open_staged(corpus).fingerprint[:16]}"
    left.rename(f"{left}.tmp")  # as a copy that was killed
    (Path(f"{left}.tmp") / "manifest.json").unlink()
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(open_staged, [corpus] * 8))
    assert {made.directory for made in opened} == {left} and not Path(f"{left}.tmp").exists()
    assert (opened[0].train[:] == open_staged(corpus).train[:]).all()
    assert {path.name: path.stat().st_size for path in left.iterdir()} == {
        path.name: path.stat().st_size for path in corpus.iterdir()
    }


@pytest.mark.parametrize("wrong", ["a file", "a damaged copy"])
def test_what_cannot_be_copied_is_read_where_it_is(corpus, tmp_path, monkeypatch, capsys, wrong):
    monkeypatch.setenv(STAGE, str(tmp_path / "stage"))
    if wrong == "a file":
        (tmp_path / "stage").write_text("")
    else:
        (open_staged(corpus).directory / "manifest.json").write_text("{}")
    assert open_staged(corpus).directory == corpus
    assert capsys.readouterr().err.startswith(f"the corpus is read from {corpus}: no copy at {tmp_path / 'stage'}")
