"""Sources of every kind that is not plain text: tables, datasets, packages, compressed files."""

import shutil
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from arch.errors import InputError
from data.checks import check_text
from data.corpus import prepare
from data.settings import CorpusSettings
from data.source_record import is_touched
from data.sources.documents import Counts
from data.sources.reading import check_source, read_documents, source_bytes, versions_of

TEXTS = ["erste Zeile\nzweite", "naïve ☃", "third", "中文" * 500]


def table(texts: list[str | None] = TEXTS, column: str = "text") -> pa.Table:
    return pa.table({"id": range(len(texts)), column: pa.array(texts, pa.string())})


def written(folder: Path) -> dict[str, Path]:
    """The same table as Parquet, as both formats of Arrow, and as a dictionary column."""
    paths = {name: folder / name for name in ("a.parquet", "b.arrow", "c.arrow", "d.feather")}
    parquet.write_table(table(), paths["a.parquet"], row_group_size=3)
    with ipc.new_stream(paths["b.arrow"], table().schema) as writer:
        writer.write_table(table(), max_chunksize=3)
    with ipc.new_file(paths["c.arrow"], table().schema) as writer:
        writer.write_table(table(), max_chunksize=2)
    coded = table().set_column(1, "text", table()["text"].dictionary_encode())
    with ipc.new_file(paths["d.feather"], coded.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(coded)
    return paths


@pytest.mark.parametrize("batch_bytes", [2000, 1 << 20])
def test_tables_give_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    monkeypatch.setattr("data.sources.tables.BATCH_BYTES", batch_bytes)
    for name, path in written(tmp_path).items():
        assert list(read_documents(str(path))) == [(f"{name}:{i}", text) for i, text in enumerate(TEXTS, start=1)]
        assert source_bytes(str(path)) is None
        assert next(iter(read_documents(str(path), most_bytes=10))).text == TEXTS[0]
    counts = Counts()
    parquet.write_table(table([None, "", "x"]), tmp_path / "some.parquet")
    assert [text for _, text in read_documents(str(tmp_path / "some.parquet"), counts=counts)] == ["x"]
    assert (counts.invalid_records, counts.empty) == (1, 1) and counts.read_bytes > 0


def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    parquet.write_table(table(column="content"), tmp_path / "a.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-10])
    parquet.write_table(pa.table({"content": TEXTS}), tmp_path / "damaged.parquet")
    damaged = bytearray((tmp_path / "damaged.parquet").read_bytes())
    damaged[4:60] = b"\xff" * 56
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    (tmp_path / "no.arrow").write_bytes(b"no arrow at all")
    invalid = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
    )
    parquet.write_table(pa.table({"content": invalid}), tmp_path / "latin.parquet")
    for name, key, shown in (
        ("a.parquet", "contents", r"corpus.text_key: a.parquet has no column .*did you mean 'content'"),
        ("a.parquet", "id", r"corpus.text_key: column 'id' of a.parquet holds int64, no text"),
        ("cut.parquet", "content", r"corpus.source: .*cut.parquet: cannot be read"),
        ("damaged.parquet", "content", r"corpus.source: .*damaged.parquet: cannot be read"),
        ("no.arrow", "content", r"corpus.source: .*no.arrow: cannot be read"),
        ("latin.parquet", "content", r"corpus.source: row 2 of latin.parquet is not UTF-8"),
    ):
        with pytest.raises(InputError, match=rf"^{shown}") as caught:
            prepare(CorpusSettings(source=str(tmp_path / name), text_key=key), tmp_path / "out" / "corpus")
        assert "\n" not in str(caught.value) and not (tmp_path / "out" / "corpus").exists()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.parquet").rename(tmp_path / "folder" / "latin.parquet")
    counts = Counts()
    assert [text for _, text in read_documents(str(tmp_path / "folder"), "content", counts)] == ["a"]
    assert counts.invalid_utf8 == 1


@pytest.mark.parametrize("content", [b"good\ncaf\xe9\n", "Größe\n".encode("utf-16-le")[:5] + b"\xff\xfe\n"])
def test_a_named_file_that_is_no_utf8_is_refused_with_the_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n" * 20_000 + content.replace(b"\0", b" "))
    with pytest.raises(InputError, match=r"corpus.source: a.txt is not UTF-8 \(byte 0x.. at 100,0"):
        prepare(CorpusSettings(source=str(tmp_path / "a.txt")), tmp_path / "corpus")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"corpus.source: a.jsonl line 2 is not UTF-8 \(byte 0xe9 at 13\)"):
        prepare(CorpusSettings(source=str(tmp_path / "a.jsonl")), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_packages_are_source_with_their_versions() -> None:
    version = metadata.version("pyyaml")
    documents = dict(read_documents("packages:PyYAML"))
    assert "packages:yaml/__init__.py" in documents and all(name.endswith(".py") for name in documents)
    both = [name for name, _ in read_documents(f"packages:typer,pyyaml=={version}")]
    assert set(documents) < set(both) and both == sorted(both)
    assert versions_of(["packages:pyyaml", "packages:typer", "stdlib:"])["packages"] == {
        "pyyaml": version, "typer": metadata.version("typer")}  # fmt: skip
    for source, shown in (
        ("packages:numpyy", "'numpyy' is not installed .did you mean 'numpy'"),
        ("packages:pyyaml==0.1", f"installed in version {version}, not 0.1"),
    ):
        with pytest.raises(InputError, match=rf"^corpus.source: package .*{shown}"):
            check_source(source)


def test_datasets_of_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"content": TEXTS, "n": [1, 2, 3, 4]})
    rows.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(tmp_path / "several")
    (tmp_path / "files").mkdir()
    rows.to_parquet(tmp_path / "files" / "train.parquet")
    for name, wanted in (("saved", TEXTS), ("several", TEXTS), ("several:test", TEXTS[2:3]), ("files", TEXTS)):
        documents = list(read_documents(f"hf:{tmp_path / name}", "content"))
        assert [text for _, text in documents] == wanted
        assert documents[0][0] == f"hf:{name.partition(':')[0]}:1"
    for source, shown in (
        (f"hf:{tmp_path / 'several'}:tset", "has no split 'tset' .did you mean 'test'"),
        (f"hf:{tmp_path / 'nowhere'}", "does not exist"),
        ("hf:", "is misspelt"),
        (f"hf:{tmp_path / 'saved'}", "has no column 'text'"),
    ):
        with pytest.raises(InputError, match=shown):
            list(read_documents(source))
    settings = CorpusSettings(source=f"hf:{tmp_path / 'saved'}", text_key="content", validation_fraction=0.4)
    prepare(settings, tmp_path / "corpus")
    assert not is_touched(settings, tmp_path / "corpus")
    shutil.rmtree(tmp_path / "saved")
    datasets.Dataset.from_dict({"content": [*TEXTS, "One more."]}).save_to_disk(tmp_path / "saved")
    assert is_touched(settings, tmp_path / "corpus")
    with pytest.raises(InputError, match="has changed since"):
        prepare(settings, tmp_path / "corpus")


def test_a_dataset_of_the_hub_is_not_fetched_before_the_corpus_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    settings = CorpusSettings(source="hf:nobody/nothing@abc:en:train")
    assert "read over the network" in check_text(settings)[0]
    assert versions_of("hf:nobody/nothing@abc:en:train") == {"hugging_face": {"nobody/nothing": "abc"}}
    monkeypatch.setattr("data.sources.hugging_face.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package datasets: pip install 'linear-scaling\[corpus\]'"):
        check_text(settings)


def test_a_hub_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    hub = pytest.importorskip("huggingface_hub")
    logger, level = hub.utils.logging.get_logger("huggingface_hub.utils._http"), hub.utils.logging.get_verbosity()

    def unreachable(*args: object, **more: object) -> None:
        logger.warning("Retrying in 1s")
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"\(ConnectionError: .*\); without a network give a folder on disk"):
        next(read_documents("hf:nobody/nothing"))
    assert not capsys.readouterr().err and hub.utils.logging.get_verbosity() == level
