"""Tables as files: the same table back, to the last bit, and the same bytes of it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.source.parquet import as_stored
from analysis.table_files import read_table, table_bytes
from arch.errors import InputError


def curves(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    loss = rng.normal(2, 0.1, rows).astype(np.float32).astype(float)
    steps = np.tile(np.arange(1, rows // 2 + 1), 2)
    frame = pd.DataFrame({"run_id": np.repeat(["a-1", "b-1"], rows // 2), "step": steps, "n_tokens": steps * 2048})
    frame = frame.assign(loss=loss, grad_norm=rng.normal(2, 0.1, rows), lr=1e-3, warmup=steps < 9)
    frame.loc[3, "loss"] = float("nan")
    return frame.assign(phase="undecayed", axis=[None, "x"] * (rows // 2))


@pytest.mark.parametrize("frame", [curves(), curves().head(0), pd.DataFrame({"a": [None, None]})])
def test_a_table_comes_back_whole(frame: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(table_bytes(frame))
    table = read_table(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(table, as_stored(frame), check_exact=True)
    assert table_bytes(table) == table_bytes(as_stored(frame))


def test_a_file_that_is_cut_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").write_bytes(table_bytes(curves())[:-9])
    for name in ("cut", "missing"):
        with pytest.raises(InputError, match=rf"{name}\.parquet: cannot be read"):
            read_table(tmp_path / f"{name}.parquet")
