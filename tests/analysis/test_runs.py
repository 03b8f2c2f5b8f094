"""Tables from a study's directory: what is whole is read, what is not is counted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import scaling.rundir.directory
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.held_out import load_held_out
from analysis.report.runs import run_rows, unused_lines
from analysis.runs import load_tables
from arch.errors import InputError
from arch.registry import register_pattern
from data.files import read_object, write_json
from scaling.rundir.directory import RunDir
from scaling.rundir.metrics import Rows, checked_rows
from scaling.rundir.owner import Attempt, Token
from tests.registries import as_registered

from .fits.built import envelopes_of
from .fits.synthetic import BATCH, write_evals, write_run


def replace_in(path: Path, old: str, new: str) -> None:
    """Change a file as whoever wrote it would have, with the right digest."""
    write_json(path, json.loads(json.dumps(read_object(path)).replace(old, new)))


def rewrite(study: Path, run: str, edit: Callable[[list[str]], list[str]]) -> None:
    """Of a run in progress: what ended is read as it was written, or not at all."""
    rundir = RunDir(study / "runs" / run)
    rundir.write_status("running", 0, 0, None, None)
    rundir.metrics.write_text("".join(edit(rundir.metrics.read_text().splitlines(keepends=True))))


def row_of(line: str, **changes: object) -> str:
    return json.dumps(json.loads(line) | changes) + "\n"


@pytest.mark.parametrize(
    ("reason", "edit"),
    [
        ("no JSON object", lambda lines: ["not json\n", *lines]),
        ("no JSON object", lambda lines: [*lines, "\n"]),
        ("no JSON object", lambda lines: [*lines, "[" * 100_000 + "\n"]),
        ("no JSON object", lambda lines: [*lines, "7\n"]),
        ("without step, n_tokens or loss", lambda lines: [*lines, '{"step": 41}\n']),
        ("whose step is no count", lambda lines: [*lines, row_of(lines[0], step=1.0)]),
        ("whose step is no count", lambda lines: [*lines, row_of(lines[0], step=True)]),
        ("whose n_tokens is no count", lambda lines: [*lines, row_of(lines[0], n_tokens="2048")]),
        ("whose loss is no finite number", lambda lines: [row_of(lines[0], loss=np.nan), *lines]),
        ("whose loss is no finite number", lambda lines: [row_of(lines[0], loss="3.0"), *lines]),
        ("whose loss is no finite number", lambda lines: [row_of(lines[0], loss=10**400), *lines]),
        ("whose grad_norm is no finite number", lambda lines: [row_of(lines[0], grad_norm=np.inf), *lines]),
        ("whose loss is not positive", lambda lines: [row_of(lines[0], loss=-1), *lines]),
        ("whose n_tokens is not its step x batch_tokens", lambda lines: [row_of(lines[4], step=3), *lines]),
        ("after the run's last step", lambda lines: [*lines, row_of(lines[0], step=41, n_tokens=41 * BATCH)]),
        ("of a step given more than once", lambda lines: [*lines, lines[7]]),
        ("cut short", lambda lines: [*lines, lines[0].rstrip()]),
    ],
)
def test_a_row_that_the_run_cannot_have_written_is_left_out_and_counted(
    tmp_path: Path, reason: str, edit: Callable[[list[str]], list[str]]
) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    before = load_tables(tmp_path, [run]).curves
    rewrite(tmp_path, run, edit)
    tables = load_tables(tmp_path, [run])
    assert tables.curves[["step", "loss"]].equals(before[["step", "loss"]])
    assert tables.runs.loc[0, ["skipped_rows", "skipped_why"]].tolist() == [1, f"1 {reason}"]


def test_the_most_memory_of_a_run_is_a_column_where_a_run_recorded_it(tmp_path: Path) -> None:
    """Of all its processes; a published table without the column has none."""
    runs = [write_run(tmp_path, "tnl", "14k", 40 * BATCH, seed=seed) for seed in range(2)]
    for peaks, cells in (((), None), ((2.5, 3.125, 1.0), ["3.12", ""])):
        for restart, peak in enumerate(peaks):
            attempt = Attempt(tmp_path / "runs" / runs[0], Token(1, 7, restart))
            attempt.register()
            attempt.record(peak_memory_gb=peak)
        tables = replace(load_tables(tmp_path, runs), name="s")
        fits = fit_study(tables, approaches=())
        assert [row.get("peak memory (GB)") for row in run_rows(fits, tables, [])] == (cells or [None, None])
        older = replace(tables, runs=tables.runs.drop(columns="peak_memory_gb"))
        assert all("peak memory (GB)" not in row for row in run_rows(fits, older, []))


def test_a_run_that_was_trained_unchecked_is_named(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "tnl", "14k", 40 * BATCH, seed=seed) for seed in range(2)]
    rundir = RunDir(tmp_path / "runs" / runs[1])
    record = rundir.record()
    write_json(rundir.run_json, record | {"spec": record["spec"] | {"checked": False}}, kind="run")
    tables = replace(load_tables(tmp_path, [*runs, "tnl-14k-c256-s9"]), name="s")
    fits = fit_study(tables, approaches=())
    assert [row["checked"] for row in run_rows(fits, tables, [])] == ["", "no", ""]


def test_of_two_rows_that_contradict_each_other_none_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    rewrite(tmp_path, run, lambda lines: [*lines, row_of(lines[7], loss=0.1)])
    tables = load_tables(tmp_path, [run])
    assert tables.curves["step"].tolist() == [step for step in range(1, 41) if step != 8]
    assert tables.runs.loc[0, "skipped_why"] == "2 of a step given more than once"


def test_a_last_line_that_is_whole_but_for_its_newline_does_not_count(tmp_path: Path) -> None:
    rows = ['{"step": 1, "n_tokens": 10, "loss": 3.0}', '{"step": 2, "n_tokens": 20, "loss": 2.0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    assert [row["step"] for row in checked_rows(tmp_path / "metrics.jsonl", 10, 2).rows] == [1]
    assert checked_rows(tmp_path / "absent.jsonl", 10, 2) == Rows([], {})


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
    record = tmp_path / "runs" / run / "run.json"
    replace_in(record, f": {BATCH}", ": 300000000000")  # one step of as many tokens
    rewrite(tmp_path, run, lambda lines: [row_of(lines[0], n_tokens=300_000_000_000)])
    tables = load_tables(tmp_path, [run])
    assert tables.curves["flops_6nd"].iloc[0] == pytest.approx(1.26e22, rel=1e-12)
    assert tables.curves["n_tokens"].iloc[0] == 300_000_000_000
    assert tables.runs["n_params_non_embedding"].iloc[0] == 7_000_000_000


def test_runs_in_every_state(tmp_path: Path) -> None:
    done = write_run(tmp_path, "tnl", "14k", 10 * BATCH)
    failed = write_run(tmp_path, "tnl", "25k", 10 * BATCH, state="failed", reason="loss is nan at step 11")
    waiting, published = "hgrn2-55k-c256-s3", "mamba2-mamba2-130m-c2048-s0-lr0.001"
    assert load_tables(tmp_path, [published]).runs.loc[0, ["arch", "size", "seed"]].tolist() == [
        "mamba2",
        "mamba2-130m",
        0,
    ]
    runs = load_tables(tmp_path, [done, failed, waiting]).runs.set_index("run_id")
    assert runs["state"].tolist() == ["done", "failed", "waiting"]
    assert runs.loc[failed, "reason"] == "loss is nan at step 11"
    assert runs.loc[waiting, ["arch", "size", "seed"]].tolist() == ["hgrn2", "55k", 3]
    assert runs.loc[waiting, "n_tokens"] == 0
    with as_registered():
        register_pattern("hgrn2-3to1", ["hgrn2", "hgrn2", "hgrn2", "llama"])
        row = load_tables(tmp_path, ["hgrn2-3to1-55k-c256-s3"]).runs.loc[0]
    assert row[["arch", "size", "seed"]].tolist() == ["hgrn2-3to1", "55k", 3]
    assert runs.loc[done, "n_tokens"] == 10 * BATCH
    prepared = tmp_path / "runs" / done  # a run.json alone: planned, not begun
    (prepared / "status.json").unlink()
    (prepared / "metrics.jsonl").unlink()
    assert load_tables(tmp_path, [done]).runs["state"].tolist() == ["waiting"]


def test_time_adds_up_over_resumes(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 4 * BATCH, state="running")
    path = tmp_path / "runs" / run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, time_s in zip(rows, (1.0, 5.0, 2.0, 3.5), strict=True):
        row["time_s"] = time_s
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_tables(tmp_path, [run]).runs["time_s"].iloc[0] == 8.5


def test_every_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path, "tnl", size, 4 * BATCH) for size in ("14k", "25k")]
    read: list[str] = []

    def counted(path: Path) -> object:
        read.extend([path.parent.name] if path.name == "run.json" else [])
        return read_object(path)

    monkeypatch.setattr(scaling.rundir.directory, "read_object", counted)
    assert len(load_tables(tmp_path).curves) == 8 and read == runs


def test_variants_are_told_from_the_study_s_own_runs(tmp_path: Path) -> None:
    own = write_run(tmp_path, "tnl", "14k", 4 * BATCH)
    variant = write_run(tmp_path, "tnl", "25k", 4 * BATCH)
    path = tmp_path / "runs" / variant / "run.json"
    record = read_object(path)
    record["spec"]["sets"] = ["training.betas=[0.9, 0.99]"]
    record["spec"]["training"]["betas"] = [0.9, 0.99]
    write_json(path, record)
    tables = load_tables(tmp_path)
    assert list(tables.runs["run_id"]) == [own, variant]
    for frame in (tables.runs, tables.curves):
        result = frame.drop_duplicates("run_id").set_index("run_id")
        assert result["variant"].to_dict() == {own: "", variant: "training.betas=[0.9, 0.99]"}
        assert result["point"].to_dict() == {own: "", variant: "betas=0.9/0.99"}
        assert result.loc[variant, "betas"] == "0.9/0.99" and pd.isna(result.loc[own, "betas"])
    fits = envelopes_of(tables, FitSettings(smoothing_tokens=4096))
    assert fits.left_out == ({"run_id": variant, "why": "changed by --set training.betas=[0.9, 0.99]"},)
    assert fits.group("tnl").n_runs == 1 and unused_lines(fits) == [
        f"1 run left out of the fits, changed by --set: {variant}"
    ]


def test_axes_are_columns(tmp_path: Path) -> None:
    """Named as the field, with its section where the table has another column of that name."""
    points = [{"training.lr": 1e-3, "model.norm": "rms"}, {"training.lr": 2e-3, "training.n_tokens": "20N"}]
    runs = []
    for size, point in zip(("14k", "25k"), points, strict=True):
        runs.append(write_run(tmp_path, "tnl", size, 4 * BATCH))
        path = tmp_path / "runs" / runs[-1] / "run.json"
        record = read_object(path)
        record["spec"]["point"] = point
        write_json(path, record)
    tables = load_tables(tmp_path)
    result = tables.runs.set_index("run_id")
    assert result["point"].tolist() == ["lr=0.001, norm=rms", "lr=0.002, n_tokens=20N"]
    assert result["norm"].tolist() == ["rms", None] or pd.isna(result["norm"].iloc[1])
    assert result["training.n_tokens"].iloc[1] == "20N" and "training.lr" not in result
    curves = tables.curves.drop_duplicates("run_id").set_index("run_id")
    assert curves["training.lr"].tolist() == [1e-3, 2e-3] and curves["lr"].tolist() == [1e-3, 1e-3]


def test_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    write_evals(tmp_path, run, [4, 40], [3.0, 2.0])
    path = tmp_path / "runs" / run / "evals" / "00000040" / "validation.json"
    evals = load_tables(tmp_path, [run]).evals
    assert evals["loss"].tolist() == [3.0, 2.0]
    assert evals["bits_per_byte"].iloc[1] == pytest.approx(2 / np.log(2))
    write_json(path, read_object(path) | {"values": {"loss": None}})
    assert load_tables(tmp_path, [run]).evals["loss"].tolist() == [3.0]
    with pytest.raises(InputError, match=r"00000004: its held-out loss holds no windows \(it is of version None of"):
        load_held_out(tmp_path, run, 4)  # as results were before windows were kept: they open, for all else


def test_a_cost_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 4 * BATCH, per_token=-1.0)
    with pytest.raises(ValueError, match="exact must be positive"):
        load_tables(tmp_path, [run])


def test_an_evaluation_that_cannot_be_is_left_out_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    write_evals(tmp_path, run, [4, 8, 12, 40], [3.0, 2.5, 2.2, 2.0])
    at = {step: tmp_path / "runs" / run / "evals" / f"{step:08d}" / "validation.json" for step in (4, 8, 12)}
    replace_in(at[8], '"loss": 2.5', '"loss": "2.5"')
    replace_in(at[12], f'"n_tokens": {12 * BATCH}', '"n_tokens": 7')
    tables = load_tables(tmp_path, [run])
    assert tables.evals["loss"].tolist() == [3.0, 2.0]
    assert tables.runs.loc[0, "skipped_why"] == "2 evaluations that cannot be read"
    at[4].write_text("{")
    missing = r"00000004/validation\.json: cannot be read .*`scaling eval study` makes it again"
    with pytest.raises(InputError, match=missing):
        load_tables(tmp_path, [run])
    at[4].write_text(at[8].read_text())
    with pytest.raises(InputError, match=r"00000004/validation\.json: .* it is that of 'tnl-14k.*' after step 8"):
        load_tables(tmp_path, [run])


def test_held_out_losses_over_another_number_of_tokens_are_left_out_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "tnl", "14k", 40 * BATCH)
    write_evals(tmp_path, run, [4, 40], [3.0, 2.0])
    path = tmp_path / "runs" / run / "evals" / "00000004" / "validation.json"
    replace_in(path, '"validation_tokens": 65536', '"validation_tokens": 4096')
    tables = load_tables(tmp_path, [run], validation_tokens=65536)
    assert tables.evals["loss"].tolist() == [2.0]
    assert tables.runs.loc[0, "skipped_why"] == "1 not evaluated over 65,536 tokens"
    assert len(load_tables(tmp_path, [run]).evals) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1, "spec": {}}', '{"schema": 1, "spec": 3, "cost": {}}'])
def test_a_damaged_record_is_one_line(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path, "tnl", "14k", 4 * BATCH)
    (tmp_path / "runs" / run / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json: .*remove the run directory"):
        load_tables(tmp_path, [run])


def test_a_directory_that_is_no_study_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: does not exist: give the directory of a study, <out>/<name>"):
        load_tables(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no runs/\*/run\.json"):
        load_tables(tmp_path)
