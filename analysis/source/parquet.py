"""The files of a study's results, and a study of one of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from analysis.fits.settings import FitSettings
from analysis.run_table import RunTable
from analysis.table_files import read_arrow_table, table_bytes
from arch.errors import InputError
from data.files import reading
from data.parquet_size import check_parquet_bytes

FIT, RUNS = b"fit", b"runs"  # in the metadata of results: name and settings of the study, and its table of runs


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
