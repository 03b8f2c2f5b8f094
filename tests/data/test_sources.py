from pathlib import Path

import pytest

from arch.errors import InputError
from data.sources.documents import Counts
from data.sources.reading import check_source, read_documents, source_bytes
from data.sources.text import NAMED_FILE_PIECE


def test_folder_in_sorted_order_with_relative_ids(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/x.txt", "a.txt", ".hidden", ".git/config"):
        (tmp_path / name).write_text(f"text of {name}")
    assert list(read_documents(str(tmp_path))) == [("a.txt", "text of a.txt"), ("b/x.txt", "text of b/x.txt")]
    assert source_bytes(str(tmp_path)) == sum(len(text) for _, text in read_documents(str(tmp_path)))
    both = [str(tmp_path / name) for name in ("b/x.txt", "a.txt")]
    assert [text for _, text in read_documents(both)] == ["text of b/x.txt", "text of a.txt"]  # in the order given


def test_unusable_text_is_counted_never_a_crash(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\x01\x02 elf")
    (tmp_path / "b.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "c.txt").write_text(" \n\t")
    (tmp_path / "d.txt").write_bytes(b"")
    (tmp_path / "e.txt").write_text("good")
    (tmp_path / "f.jsonl").write_bytes(
        b'{"text": "fine"}\n{"text": "cut\n[1]\n{"text": null}\n{"other": 1}\n{"text": "\xff"}\n'
        b'{"text": "\\ud800"}\n{"text": ""}\n\n' + b"[" * 100_000 + b'\n{"text": "one", "text": "two"}\n'
        b'{"text": "also", "n": NaN, "m": 1, "m": 2}\n{"\\u0074ext": "a", "text": "b"}\n'
    )
    counts = Counts()
    assert [text for _, text in read_documents(str(tmp_path), counts=counts)] == ["good", "fine", "also"]
    assert (counts.binary, counts.invalid_utf8, counts.empty, counts.invalid_records) == (1, 3, 3, 7)
    assert counts.read_bytes == source_bytes(str(tmp_path))
    with pytest.raises(InputError, match=r"corpus.text_key: f.jsonl line 1 .*did you mean 'text'"):
        list(read_documents(str(tmp_path / "f.jsonl"), "texts"))


@pytest.mark.parametrize("line", ["plain ascii\n", "日本語のテキスト\n", "日" * 50_000, "a" * 200_000])
def test_a_named_text_file_is_cut_without_loss(tmp_path: Path, line: str) -> None:
    text = line * (300_000 // len(line) + 1)
    (tmp_path / "big.txt").write_text(text)
    counts = Counts()
    documents = list(read_documents(str(tmp_path / "big.txt"), counts=counts))
    assert len(documents) > 1 and len({doc_id for doc_id, _ in documents}) == len(documents)
    assert counts.cut_lines == sum(not piece.endswith("\n") for _, piece in documents[:-1])
    assert "".join(piece for _, piece in documents) == text
    assert max(len(piece.encode()) for _, piece in documents) <= 2 * NAMED_FILE_PIECE + 3
    if line.endswith("\n"):
        assert all(piece.endswith("\n") for _, piece in documents)
    assert [piece for _, piece in read_documents(str(tmp_path))] == [text]  # in a folder: one document


def test_stdlib_is_real_source_without_tests() -> None:
    documents = list(read_documents("stdlib:"))
    ids = [doc_id for doc_id, _ in documents]
    assert ids == sorted(ids) and "stdlib:json/decoder.py" in ids
    assert not [i for i in ids if "/test/" in i or "/tests/" in i or "site-packages" in i or "sysconfigdata" in i]
    assert sum(len(text) for _, text in documents) > 5_000_000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/path", "does not exist"),
        ("wikitext-103-raw/wiki.train.raw", "correct the path; WikiText-103 (Merity et al. 2017) is the folder"),
        ("my/pile/train/", "the Pile (Gao et al. 2020) is the folder pile with train/00.jsonl.zst"),
        ("https://host/text.txt", "is an address: no text is fetched from one; download it"),
        ("stdlb:", "did you mean 'stdlib:'"),
        ("synthetic:1", "synthetic:<seed>:<n_bytes>"),
        ("synthetic:x:100", "synthetic:<seed>:<n_bytes>"),
        ("synthetic:1:0", "synthetic:<seed>:<n_bytes>"),
        ([], "empty list"),
        ("void.txt", "is empty"),
        ("folder", "is empty"),
        ("pile/train", "put text in it; the Pile (Gao et al. 2020) is the folder pile with train/00.jsonl.zst"),
        ("wikitext-103/wiki.train.tokens", "give a file with text; WikiText-103 (Merity et al. 2017) is the folder"),
    ],
)
def test_bad_source_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "void.txt").touch()
    for folder in ("folder/inner", "pile/train", "wikitext-103"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wikitext-103" / "wiki.train.tokens").touch()
    with pytest.raises(InputError, match=r"^corpus\.source") as caught:
        check_source(source)
    assert message in str(caught.value) and "\n" not in str(caught.value)
