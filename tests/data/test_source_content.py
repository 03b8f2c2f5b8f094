"""The content decides what a file of text holds, whatever it is called, and what is damaged is one line."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from arch.errors import InputError
from data.corpus import prepare
from data.settings import CorpusSettings
from data.sources.documents import Counts
from data.sources.reading import read_documents, source_bytes, stored_bytes
from data.splitting import EXPANSION, bytes_to_read

TEXTS = ["erste Zeile\nzweite", "naïve ☃", "a\u2028b\u0085c\x0bd\x1ce", "中文" * 50]
LINES = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=False) + "\n" for i, text in enumerate(TEXTS)).encode()


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content).to_pybytes())


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"  # a frame without content, as pzstd writes in front
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstd}


def texts(path: Path, key: str = "text", counts: Counts | None = None) -> list[str]:
    return [text for _, text in read_documents(str(path), key, counts)]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize(
    ("name", "start"),
    [
        *((name, b"") for name in ("a.ndjson", "a.json", "a.txt", "a", "a.bin", "en.00000-of-01024.json")),
        *(("a.jsonl", start) for start in (b"", b"\xef\xbb\xbf", b"\n  \n")),
    ],
)
def test_json_lines_are_read_whatever_they_are_called(tmp_path: Path, name: str, ending: str, start: bytes) -> None:
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(PACKED[ending](start + LINES))
    first = 1 + start.count(b"\n")
    assert list(read_documents(str(path))) == [(f"{path.name}:{i}", text) for i, text in enumerate(TEXTS, first)]
    assert texts(tmp_path) == TEXTS
    assert (source_bytes(str(path)) is None) is bool(ending) and stored_bytes(str(path)) == path.stat().st_size
    settings, size = CorpusSettings(source=str(path)), path.stat().st_size
    assert bytes_to_read(settings, guess=True) == (EXPANSION * size if ending else size)
    assert bytes_to_read(replace(settings, max_bytes=9), guess=True) == 9
    path.write_bytes(PACKED[ending](LINES.replace(b'"text"', b'"content"')))
    for place in (path, tmp_path):
        with pytest.raises(InputError, match=r"corpus.text_key: .* has no key 'text'"):
            texts(place)


def test_compression_is_recognised_by_content(tmp_path: Path) -> None:
    for ending, pack in PACKED.items():
        (tmp_path / "a.jsonl").write_bytes(pack(LINES))
        assert texts(tmp_path / "a.jsonl") == TEXTS, ending
    (tmp_path / "a.jsonl").write_bytes(SKIPPABLE + zstd(LINES[:40]) + zstd(LINES[40:]))
    assert texts(tmp_path / "a.jsonl") == TEXTS
    for ending in (".gz", ".xz", ".bz2", ".zst"):
        (tmp_path / f"b.txt{ending}").write_bytes(b"plain text\n")
        with pytest.raises(InputError, match=rf"b.txt{ending} is not compressed, or damaged; repair it, or give it"):
            texts(tmp_path / f"b.txt{ending}")


def test_tables_are_recognised_by_content(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS})
    parquet.write_table(table, tmp_path / "a.bin")
    parquet.write_table(table, tmp_path / "b.jsonl")
    with ipc.new_stream(tmp_path / "c.txt", table.schema) as writer:
        writer.write_table(table)
    with ipc.new_file(tmp_path / "d", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.bin", "b.jsonl", "c.txt", "d"):
        assert texts(tmp_path / name) == TEXTS
        assert source_bytes(str(tmp_path / name)) is None and stored_bytes(str(tmp_path / name)) is None
    (tmp_path / "e.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.bin").read_bytes()))
    with pytest.raises(InputError, match="is a parquet file, compressed as a whole: decompress it"):
        texts(tmp_path / "e.parquet.gz")


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"text": "x"}] * 3),
        json.dumps([{"text": "x"}] * 3, indent=1),
        "\n ".join(json.dumps({"text": "x", "n": 1}, indent=2) for _ in range(3)),
        json.dumps({"text": "x", "n": [1]}, indent=2),
    ],
)
def test_json_that_is_not_one_record_a_line_is_refused(tmp_path: Path, content: str) -> None:
    for name in ("a.json", "a.txt", "a.json.gz"):
        (tmp_path / name).write_bytes(PACKED[Path(name).suffix if name.endswith(".gz") else ""](content.encode()))
        for place in (tmp_path / name, tmp_path):
            with pytest.raises(InputError, match="holds JSON that is not one record a line: write it as JSON lines"):
                texts(place)
        (tmp_path / name).unlink()


def test_other_json_in_a_folder_is_plain_text(tmp_path: Path) -> None:
    others = [
        '{"name": "x"}',
        '{\n "name": "x"\n}\n',
        "[1, 2]",
        '["text"]',
        "{not json}",
        "[1](http://x)",
        "{",
        "[]\n[]",
        '{"text": "x"}\nA book goes on.',
        '{\n "text": "x"\n}\nA page goes on.',
    ]
    for i, other in enumerate(others):
        (tmp_path / f"{i}.json").write_text(other, encoding="utf-8")
    assert texts(tmp_path) == others
    for i in (1, 2, 3):  # named as the source itself it is no text
        with pytest.raises(InputError, match="not one record a line"):
            texts(tmp_path / f"{i}.json")
    with pytest.raises(InputError, match="has no key 'text'"):
        texts(tmp_path / "0.json")


def test_archives_are_no_text(tmp_path: Path) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 200_000
        archive.addfile(member, io.BytesIO(b"text of a file\n" * 20_000))
    for name, content in (
        ("a.tar", tar.getvalue()),
        ("a.tgz", gzip.compress(tar.getvalue())),
        ("a.zip", b"PK\x03\x04x"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name} is an archive or a PDF, no text: unpack it"):
            texts(tmp_path / name)
    (tmp_path / "a.txt").write_text("x")
    counts = Counts()
    assert texts(tmp_path, counts=counts) == ["x"] and counts.binary == 3


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfZeile\n")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf")
    counts = Counts()
    assert texts(tmp_path, counts=counts) == ["Zeile\n"] and counts.empty == 1
    assert texts(tmp_path / "a.txt") == ["Zeile\n"]


def test_a_line_without_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.sources.jsonl.LONGEST_LINE", 1 << 16)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + b"x" * (1 << 17))
    with pytest.raises(InputError, match=r"a.jsonl line 1 is longer than 0 MiB; split it"):
        texts(tmp_path / "a.jsonl")


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in (b"caf\xe9.txt", b"\xff\xfe.txt", "gut\u2028.txt".encode()):
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_text(f"text of {name!r}\n" * 100)
    prepare(CorpusSettings(source=str(folder), validation_fraction=0.4), tmp_path / "corpus")
    assert {"caf\\xe9.txt", "\\xff\\xfe.txt"} < {name for name, _ in read_documents(str(folder))}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, or the end cut off."""
    if draw.random() < 0.3:
        return content[: draw.randrange(1, len(content))]
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 4))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def test_whatever_is_damaged_is_one_line_or_counted(tmp_path: Path) -> None:
    """No exception of a library leaves a reader; what is compressed or a table is never read as another text."""
    table = pa.table({"text": [text * 20 for text in TEXTS]})
    parquet.write_table(table, tmp_path / "a", write_page_checksum=True)
    whole = {".parquet": (tmp_path / "a").read_bytes()}
    with ipc.new_file(tmp_path / "a", table.schema) as writer:
        writer.write_table(table)
    whole[".arrow"] = (tmp_path / "a").read_bytes()
    (tmp_path / "a").unlink()
    whole |= {f".jsonl{ending}": pack(LINES * 20) for ending, pack in PACKED.items() if ending}
    draw = random.Random(0)
    for ending, content in whole.items():
        path = tmp_path / f"a{ending}"
        for _ in range(60):
            path.write_bytes(damaged(content, draw))
            try:
                list(read_documents(str(path)))
            except InputError as error:
                assert "\n" not in str(error) and path.name in str(error)
        path.unlink()
