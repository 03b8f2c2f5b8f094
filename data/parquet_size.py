"""How large a Parquet file becomes in memory, by its own metadata, before it is read: bytes that repeat take none."""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from .files import regular

FEW_CELLS = 2_000_000  # of a table; as float64 16 MB
CELLS_A_BYTE = 16  # of a file; this project's own tables have at most 2
MOST_TEXT = 1 << 27  # bytes of a column of text, were each row's its longest


def check_parquet(path: Path) -> None:
    """Raise ValueError for a file whose table is much larger than what its bytes can hold, and what pyarrow raises for
    one that is damaged."""
    with open(regular(path), "rb") as handle:  # pyarrow itself opens paths of UTF-8 alone
        check_parquet_bytes(handle)


def check_parquet_bytes(handle: BinaryIO) -> None:
    """The same of an open file, or of one in memory."""
    from pyarrow import compute, parquet

    size = handle.seek(0, SEEK_END)
    metadata = parquet.read_metadata(handle)
    # of the schema: on a damaged file a row group's own columns end the process by SIGABRT (pyarrow 26)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    if metadata.num_rows * metadata.num_columns > FEW_CELLS + CELLS_A_BYTE * size:
        raise ValueError(f"{size:,} bytes claim to be {metadata.num_rows:,} rows")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > 8 * (FEW_CELLS + CELLS_A_BYTE * size):
        raise ValueError(f"{size:,} bytes claim to be much more")
    if texts := [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]:
        for column in parquet.read_table(handle, columns=texts, read_dictionary=texts).columns:
            longest = [compute.max(compute.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks]
            if max(longest, default=0) * metadata.num_rows > MOST_TEXT:
                raise ValueError("its texts are too long for its rows")
