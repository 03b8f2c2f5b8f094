"""Tables as Parquet files that carry the digest of their content, which is checked wherever they are read."""

from __future__ import annotations

import hashlib
import io
from base64 import b64decode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from data.files import SEAL, reading
from data.parquet_size import check_parquet

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ARROW = b"ARROW:schema"  # pyarrow's own entry in a file's metadata


def table_bytes(frame: pd.DataFrame, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """The Parquet file of `frame`, without its index; metadata: more of the file's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [name for name in table.column_names if name not in floats]
    pq.write_table(
        sealed(table.replace_schema_metadata({**table.schema.metadata, **(metadata or {})})),
        buffer,
        compression="zstd",
        use_dictionary=others,
        use_byte_stream_split=floats,
    )
    return buffer.getvalue()


def sealed(table: pa.Table) -> pa.Table:
    """`table` with the digest of its content in its metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), SEAL.encode(): _digest(table).encode()})


def read_table(path: Path, advice: str = "", columns: Iterable[str] = ()) -> pd.DataFrame:
    """The table of a Parquet file. Raises InputError, with `advice` on what to do, where it cannot be read, is not what
    was written or lacks one of `columns`: it is another table."""
    table = read_arrow_table(path, advice)
    if lacks := [name for name in columns if name not in table.column_names]:
        raise InputError(f"{path}: is another table: it has no column {lacks[0]!r}" + (f"; {advice}" if advice else ""))
    with reading(path, advice):
        return table.to_pandas()


def read_arrow_table(path: Path, advice: str = "") -> pa.Table:
    """As `read_table`, with the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path, advice):
        check_parquet(path)
        with open(path, "rb") as handle:  # pyarrow itself opens paths of UTF-8 alone
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            table, copies = file.read(), file.metadata.metadata or {}
        written = (table.schema.metadata or {}).get(SEAL.encode())
        digest = None if written is None else _digest(table).encode()
        if written is not None and ARROW in copies:  # which holds the metadata once more, and is read for types alone
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(copies[ARROW])))
            digest = digest if schema.metadata == table.schema.metadata else None
    if digest != written:
        message = f"{path}: was changed or damaged: its content does not match its {SEAL}"
        raise InputError(f"{message}; {advice}" if advice else message)
    return table


def _digest(table: pa.Table) -> str:
    """Of column names, types, values and metadata, however they are encoded in the file."""
    rest = {key: value for key, value in (table.schema.metadata or {}).items() if key != SEAL.encode()}
    schema = [(field.name, str(field.type)) for field in table.schema]
    digest = hashlib.sha256(repr((schema, sorted(rest.items()))).encode())
    for column in table.combine_chunks().columns:
        values: Any = column.combine_chunks()
        digest.update(_canonical(values))
    return digest.hexdigest()


def _canonical(values: pa.Array) -> bytes:
    """The values of a column as bytes: of two equal columns the same, whatever lies in the slots of missing values."""
    import pyarrow as pa

    buffer = io.BytesIO()
    missing = values.is_null()
    if values.null_count and not pa.types.is_null(values.type):
        values = values.drop_null()
    for part in (missing, values):
        batch = pa.record_batch([pa.concat_arrays([part])], names=["values"])
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
    return buffer.getvalue()
