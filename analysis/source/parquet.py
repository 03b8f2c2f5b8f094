"""Tables as small Parquet files, and back to the last bit.

The same table makes the same bytes with the same versions of pandas and pyarrow. Numbers of single precision, which
losses are where a GPU trains, take four bytes; numbers that follow from others are left out and made again.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable
from analysis.source.base import AGAIN
from analysis.table_files import read_arrow_table, table_bytes
from arch.errors import InputError
from data.files import reading
from data.parquet_size import check_parquet_bytes

FIT, RUNS = b"fit", b"runs"  # in the metadata of results: name and settings of the study, and its table of runs
LEVEL = 19  # of zstd
FEW = 8  # rows for each value from which on a column is a dictionary
NARROWED, ORDER = b"narrowed", b"order"  # in the file's metadata: columns of single precision; all columns in order
PER_TOKEN = "flops_per_token_"  # column of runs: FLOP of a token, by convention
TIMES = ("time_s", "tokens_per_s")  # of curves: the table of runs has the sums


def packed(frame: pd.DataFrame, without: list[str] | None = None) -> bytes:
    """The file of a table. without: columns that its header names and the file does not hold."""
    kept = frame.drop(columns=without or [])
    table = pa.Table.from_pandas(kept, preserve_index=False)
    narrow = [name for name in kept if kept[name].dtype == np.float64 and _is_single(kept[name].to_numpy())]
    for name in narrow:
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.float32()))
    written = {NARROWED: json.dumps(narrow).encode(), ORDER: json.dumps(list(frame)).encode()}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **written})
    encodings = {name: encoding for name in kept if (encoding := _encoding(kept[name])) is not None}
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=max(1, len(frame)),
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=[name for name in kept if name not in encodings],
        column_encoding=encodings,
    )
    return buffer.getvalue()


def unpacked(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table of a file that `packed` wrote, and its columns with those that it does not hold. Raises InputError."""
    table = read_arrow_table(path, AGAIN)
    with reading(path, AGAIN):
        narrow, order = (json.loads(table.schema.metadata[key]) for key in (NARROWED, ORDER))
        return table.to_pandas().astype(dict.fromkeys(narrow, "float64")), [str(name) for name in order]


def packed_curves(curves: pd.DataFrame, runs: pd.DataFrame) -> bytes:
    """The file of a study's curves: without the times of single rows, and without what follows from `runs`."""
    curves = curves.drop(columns=[name for name in TIMES if name in curves])
    follows = [name for name in _flops(curves) if np.array_equal(_made(curves, runs, name), curves[name], True)]
    return packed(curves, follows)


def unpacked_curves(path: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """What `packed_curves` wrote, whole but for the times of rows."""
    curves, order = unpacked(path)
    for name in (name for name in order if name not in curves):
        curves[name] = _made(curves, runs, name)
    return curves[order]


def as_stored(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it is read back from a Parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return pd.read_parquet(buffer)


def result_files(table: RunTable) -> dict[str, bytes]:
    """The files of a study's results, by name. Those of losses carry the table of runs and the settings of their fit,
    so that each can be fitted alone as the study is (`study_of_file`)."""
    runs, fit = table_bytes(table.runs), {"name": table.name, "settings": table.settings.to_dict()}
    carried = {FIT: json.dumps(fit).encode(), RUNS: runs}
    losses = {"curves": table.curves, "validation": table.evals}
    return {name: table_bytes(frame, carried) for name, frame in losses.items()} | {"runs": runs}


def study_of_file(path: Path) -> RunTable | None:
    """The study's runs of a file that `result_files` made of its losses; None of any other file. Raises InputError
    where it cannot be read, or holds losses of another kind than the study fits."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return None
    with reading(path), open(path, "rb") as file:
        carried = pq.ParquetFile(file).schema_arrow.metadata or {}
    if FIT not in carried or RUNS not in carried:
        return None
    losses = read_arrow_table(path).to_pandas()
    with reading(path), io.BytesIO(carried[RUNS]) as content:
        fit = json.loads(carried[FIT])
        name, settings = str(fit["name"]), FitSettings(**fit["settings"])
        check_parquet_bytes(content)
        runs = pd.read_parquet(content)
    held_out = "perplexity" in losses
    if held_out != (settings.loss == "validation"):
        kind, other = ("held-out", "curves") if held_out else ("training", "validation")
        raise InputError(
            f"{path}: holds {kind} losses, and study {name} fits the others: give {other}.parquet beside it, or name "
            f"the columns by --columns, which fits these as they stand"
        )
    none = losses.iloc[:0]
    table = RunTable(runs, *((none, losses) if held_out else (losses, none)), name=name, settings=settings)
    return table.without(set(runs.loc[runs["variant"] != "", "run_id"]))  # what --set changed is in no fit


def _flops(curves: pd.DataFrame) -> list[str]:
    return [name for name in map(str, curves) if name.startswith("flops_")]


def _made(curves: pd.DataFrame, runs: pd.DataFrame, name: str) -> np.ndarray:
    """A column flops_CONVENTION of curves: tokens so far times the FLOP of a token."""
    per_token = runs.set_index("run_id")[PER_TOKEN + name.removeprefix("flops_")]
    made = curves["n_tokens"].astype("float64") * curves["run_id"].map(per_token).astype("float64")
    return made.to_numpy()


def _is_single(values: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True)


def _encoding(column: pd.Series[Any]) -> str | None:
    """Parquet's encoding for a column of many different numbers; None: a dictionary."""
    if column.dtype not in (np.float64, np.int64) or column.nunique() * FEW <= len(column):
        return None
    return "BYTE_STREAM_SPLIT" if column.dtype == np.float64 else "DELTA_BINARY_PACKED"
