"""Parquet and Arrow files: the text of each row, in one of the columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest

from .documents import Document, ReadOptions, usable

BATCH_BYTES = 8 << 20  # of text that is decoded at a time
BATCH_ROWS = 1024


def read_parquet(path: Path, name: str, how: ReadOptions, refuses: bool = False) -> Iterator[Document]:
    """The text of every row. Raises InputError for a file or a column that cannot be read, or that holds no text; where
    it `refuses`, for a row that is no UTF-8 too, which is counted otherwise."""
    from pyarrow import parquet

    with open(path, "rb") as handle, parquet.ParquetFile(handle, page_checksum_verification=True) as file:
        _check_column(file.schema_arrow, name, how.text_key)
        rows = _rows_at_once(file.metadata)
        batches = file.iter_batches(batch_size=rows, columns=[how.text_key])
        yield from _texts((batch.column(0) for batch in batches), name, how, refuses)


def read_arrow(path: Path, name: str, how: ReadOptions, refuses: bool = False) -> Iterator[Document]:
    """As `read_parquet`, of Arrow's file or stream format."""
    import pyarrow
    from pyarrow import ipc

    with pyarrow.memory_map(str(path)) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        reader = ipc.open_file(mapped) if is_file else ipc.open_stream(mapped)
        _check_column(reader.schema, name, how.text_key)
        stored = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else iter(reader)
        yield from _texts(_parts_of(stored, how.text_key), name, how, refuses)


def _check_column(schema: Any, name: str, text_key: str) -> None:
    from pyarrow import types

    if text_key not in schema.names:
        raise InputError(f"corpus.text_key: {name} has no column {text_key!r}{nearest(text_key, list(schema.names))}")
    kind = schema.field(text_key).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise InputError(f"corpus.text_key: column {text_key!r} of {name} holds {kind}, no text; name another")


def _rows_at_once(metadata: Any) -> int:
    """Rows of about BATCH_BYTES, as the sizes of the groups have it, all columns together: on a damaged file a group's
    own columns end the process by SIGABRT (pyarrow 26)."""
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(1, size)))


def _parts_of(batches: Iterator[Any], column: str) -> Iterator[Any]:
    """The columns of record batches, cut to about BATCH_BYTES."""
    for batch in batches:
        array = batch.column(batch.schema.names.index(column))
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * len(array) // max(1, array.nbytes)))
        for start in range(0, len(array), rows):
            yield array.slice(start, rows)


def _texts(columns: Iterator[Any], name: str, how: ReadOptions, refuses: bool) -> Iterator[Document]:
    number, counts = 0, how.counts
    for column in columns:
        if how.is_enough:
            return
        counts.read_bytes += column.nbytes
        for value in column:
            number += 1
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                if refuses:
                    raise InputError(
                        f"corpus.source: row {number:,} of {name} is not UTF-8 ({error.reason}); convert it"
                    ) from None
                counts.invalid_utf8 += 1
                continue
            if not isinstance(text, str):
                counts.invalid_records += 1
            elif usable(text, counts):
                yield Document(f"{name}:{number}", text)
