"""Tables from a study's directory: what is whole is read, what is not is counted."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.runs import load_evals, load_runs, load_tables, read_metrics, run_ids_of

from .synthetic import BATCH, write_evals, write_run


def test_torn_and_broken_rows_are_counted(tmp_path: Path) -> None:
    rows = [{"step": i, "n_tokens": 10 * i, "loss": 3.0} for i in (1, 2, 3)]
    lines = [json.dumps(row) + "\n" for row in rows]
    lines[1:1] = ["not json\n", '{"step": 2, "n_tokens": 20, "loss": NaN}\n']
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"step": 4, "n_tokens": 40, "loss": 1.0')
    found, skipped = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in found] == [1, 2, 3]
    assert skipped == 3


def test_a_last_line_that_is_whole_but_for_its_newline_does_not_count(tmp_path: Path) -> None:
    rows = ['{"step": 1, "n_tokens": 10, "loss": 3.0}', '{"step": 2, "n_tokens": 20, "loss": 2.0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")[0]] == [1]
    assert read_metrics(tmp_path / "absent.jsonl") == ([], 0)


def test_curves_carry_cost_by_convention(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH, per_token=100_000.0, warmup_tokens=3 * BATCH)
    curves = load_tables(tmp_path, [run]).curves
    assert len(curves) == 40
    last = curves.iloc[-1]
    assert last["flops_exact"] == 40 * BATCH * 100_000.0
    assert last["flops_6nd"] == 40 * BATCH * 6 * 14_000
    assert last["flops_paper"] == 40 * BATCH * 7 * 14_000
    assert curves["warmup"].tolist() == [True] * 3 + [False] * 37


def test_flops_of_a_large_run_do_not_overflow(tmp_path: Path) -> None:
    """6 N D of 7e9 parameters and 3e11 tokens is 1.26e22, beyond int64."""
    run = write_run(tmp_path, "llama", "7b", BATCH, n_params=7_000_000_000)
    path = tmp_path / "runs" / run / "metrics.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_tokens": 300_000_000_000}) + "\n")
    tables = load_tables(tmp_path, [run])
    assert tables.curves["flops_6nd"].iloc[0] == pytest.approx(1.26e22, rel=1e-12)
    assert tables.curves["n_tokens"].iloc[0] == 300_000_000_000
    assert tables.runs["n_params_non_embedding"].iloc[0] == 7_000_000_000


def test_runs_in_every_state(tmp_path: Path) -> None:
    done = write_run(tmp_path, "tnl", "14k", 10 * BATCH)
    failed = write_run(tmp_path, "tnl", "25k", 10 * BATCH, state="failed", reason="loss is nan at step 11")
    waiting, published = "hgrn2-55k-c256-s3", "mamba2-mamba2-130m-c2048-s0-lr0.001"
    assert load_runs(tmp_path, [published]).loc[0, ["arch", "size", "seed"]].tolist() == ["mamba2", "mamba2-130m", 0]
    runs = load_runs(tmp_path, [done, failed, waiting]).set_index("run_id")
    assert runs["state"].tolist() == ["done", "failed", "waiting"]
    assert runs.loc[failed, "reason"] == "loss is nan at step 11"
    assert runs.loc[waiting, ["arch", "size", "seed"]].tolist() == ["hgrn2", "55k", 3]
    assert runs.loc[waiting, "n_tokens"] == 0
    assert runs.loc[done, "n_tokens"] == 10 * BATCH
    prepared = tmp_path / "runs" / done  # a run.json alone: planned, not begun
    (prepared / "status.json").unlink()
    assert load_runs(tmp_path, [done])["state"].tolist() == ["running"]
    (prepared / "metrics.jsonl").unlink()
    assert load_runs(tmp_path, [done])["state"].tolist() == ["waiting"]


def test_time_adds_up_over_resumes(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 4 * BATCH)
    path = tmp_path / "runs" / run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, time_s in zip(rows, (1.0, 5.0, 2.0, 3.5), strict=True):
        row["time_s"] = time_s
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_runs(tmp_path, [run])["time_s"].iloc[0] == 8.5


def test_variants_are_not_mixed_in(tmp_path: Path) -> None:
    own = write_run(tmp_path, "tnl", "14k", 4 * BATCH)
    variant = write_run(tmp_path, "tnl", "25k", 4 * BATCH)
    path = tmp_path / "runs" / variant / "run.json"
    record = json.loads(path.read_text())
    record["spec"]["sets"] = ["training.lr=1e-3"]
    path.write_text(json.dumps(record))
    assert run_ids_of(tmp_path) == [own]


def test_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    write_evals(tmp_path, run, [4, 40], [3.0, 2.0])
    path = tmp_path / "runs" / run / "evals" / "00000040" / "validation.json"
    evals = load_evals(tmp_path, [run])
    assert evals["loss"].tolist() == [3.0, 2.0]
    assert evals["bits_per_byte"].iloc[1] == pytest.approx(2 / np.log(2))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"values": {"loss": None}}))
    assert load_evals(tmp_path, [run])["loss"].tolist() == [3.0]


def test_a_cost_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 4 * BATCH, per_token=-1.0)
    with pytest.raises(ValueError, match="exact must be positive"):
        load_tables(tmp_path, [run])
