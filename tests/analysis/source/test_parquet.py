"""Tables as small files: the same table back, to the last bit, and the same bytes of it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.source.parquet import as_stored, packed, packed_curves, unpacked, unpacked_curves
from arch.errors import InputError


def curves(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    loss = rng.normal(2, 0.1, rows).astype(np.float32).astype(float)
    exact = rng.normal(2, 0.1, rows)  # a number of double precision stays one
    steps = np.tile(np.arange(1, rows // 2 + 1), 2)
    frame = pd.DataFrame({"run_id": np.repeat(["a-1", "b-1"], rows // 2), "step": steps, "n_tokens": steps * 2048})
    frame = frame.assign(loss=loss, grad_norm=exact, time_s=0.1 * steps, tokens_per_s=7.0, lr=1e-3, warmup=steps < 9)
    frame.loc[3, "loss"] = float("nan")
    per_token = frame["run_id"].map({"a-1": 6.1e4, "b-1": float("nan")})
    frame["flops_exact"] = frame["n_tokens"].astype("float64") * per_token
    return frame.assign(flops_paper=np.arange(rows) * 1.1, phase="undecayed", axis=[None, "x"] * (rows // 2))


RUNS = pd.DataFrame({"run_id": ["a-1", "b-1"], "flops_per_token_exact": [6.1e4, float("nan")]})
RUNS["flops_per_token_paper"] = 7e4  # of which the column above does not follow


@pytest.mark.parametrize("frame", [curves(), curves().head(0), RUNS, pd.DataFrame({"a": [None, None]})])
def test_a_table_comes_back_whole(frame: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(packed(frame))
    table, columns = unpacked(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(table, as_stored(frame), check_exact=True)
    assert columns == list(frame) and packed(table) == packed(as_stored(frame))


def test_curves_lose_their_times_and_what_follows_from_runs_is_made_again(tmp_path: Path) -> None:
    frame = as_stored(curves())
    (tmp_path / "c.parquet").write_bytes(packed_curves(frame, RUNS))
    assert "flops_exact" not in unpacked(tmp_path / "c.parquet")[0]
    stored = unpacked_curves(tmp_path / "c.parquet", RUNS)
    pd.testing.assert_frame_equal(stored, frame.drop(columns=["time_s", "tokens_per_s"]), check_exact=True)
    assert len(packed_curves(frame, RUNS)) < len(packed(frame))


def test_a_file_that_is_none_of_these_is_refused(tmp_path: Path) -> None:
    RUNS.to_parquet(tmp_path / "plain.parquet")
    (tmp_path / "cut.parquet").write_bytes(packed(RUNS)[:-9])
    for name in ("plain", "cut", "missing"):
        with pytest.raises(InputError, match=rf"{name}\.parquet: cannot be read"):
            unpacked(tmp_path / f"{name}.parquet")
