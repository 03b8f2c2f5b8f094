"""A run's directory: readers that take only what is whole, one writer at a time."""

import fcntl
import json
import shutil
import subprocess
import sys

import pytest

from analysis.runs import load_tables
from arch.errors import InputError
from data.files import json_bytes, new_directory, read_json, write_json
from jobs.speed import measured
from scaling.cli.status import show_status, status_rows
from scaling.rundir.directory import RunDir, clean_unfinished
from scaling.rundir.lock import is_locked, run_lock, study_lock
from scaling.rundir.owner import attempt_by_hand, attempts
from scaling.rundir.worklist import is_trained, reason_of
from scaling.study.jobs_schema import Cluster
from scaling.study.spec import load_study

from .prepared import one_run, prepare


def test_a_damaged_run_json_is_an_error(tmp_path):
    rundir = prepare(tmp_path, one_run())
    record = rundir.record()
    for text in ("{", "[]", "{}", json_bytes(record | {"schema": 99}).decode()):
        rundir.run_json.write_text(text)
        with pytest.raises(InputError, match=r"run\.json: .*remove the run directory"):
            prepare(tmp_path, one_run())
    write_json(rundir.run_json, record | {"spec": record["spec"] | {"optimizer": "lion"}})
    with pytest.raises(InputError, match=r"run\.json: spec\.optimizer: .*another version") as error:
        rundir.spec()
    assert "\n" not in str(error.value)


def test_the_last_row_is_the_last_whole_line(tmp_path):
    rundir = RunDir(tmp_path)
    assert rundir.last_row() is None
    lines = [
        json.dumps({"step": step, "n_tokens": step, "loss": 1.0 / step, "pad": "x" * 50}) for step in range(1, 201)
    ]
    rundir.metrics.write_text("\n".join(lines) + "\n")
    assert rundir.last_row()["step"] == 200
    rundir.metrics.write_text("\n".join(lines))
    assert rundir.last_row()["step"] == 199
    rundir.metrics.write_text(lines[0][:10])
    assert rundir.last_row() is None


def test_checkpoints_count_only_with_a_valid_manifest(tmp_path):
    rundir = RunDir(tmp_path)
    for step in (20, 3):
        with new_directory(rundir.checkpoint(step), {"step": step}) as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
    rundir.checkpoint(7).mkdir()
    (tmp_path / "checkpoints" / ".00000030.1.tmp").mkdir()
    assert [snapshot.step for snapshot in rundir.checkpoints()] == [3, 20]
    assert rundir.checkpoints()[1].manifest["step"] == 20
    (rundir.checkpoint(20) / "model.safetensors").write_bytes(b"w3ights")  # the same size
    assert [snapshot.step for snapshot in rundir.checkpoints()] == [3]
    assert [snapshot.step for snapshot in rundir.checkpoints(verify=False)] == [3, 20]
    (rundir.checkpoint(20) / "model.safetensors").write_bytes(b"short")
    assert [snapshot.step for snapshot in rundir.checkpoints(verify=False)] == [3]
    assert rundir.states() == []


def test_one_writer_a_study(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.rundir.lock.PATIENCE_S", 0.1)
    assert not is_locked(tmp_path)
    code = f"""
import sys, time
from pathlib import Path
from scaling.rundir.lock import study_lock
with study_lock(Path({str(tmp_path)!r})):
    print("held", flush=True)
    time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "held"
        assert is_locked(tmp_path)
        with pytest.raises(InputError, match=f"process {holder.pid} "), study_lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert not is_locked(tmp_path)
    with study_lock(tmp_path):  # a killed holder leaves nothing behind
        assert is_locked(tmp_path)
        (tmp_path / "kept").touch()  # else the lock's file goes with it
    with open(tmp_path / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_kill_left_is_swept_but_not_from_a_run_in_training(tmp_path):
    left = [".corpus.17.tmp/train.idx", "results/.fits.json.17.tmp", "runs/a/evals/00000003/.validation.json.17.tmp"]
    left += ["runs/a/state/.00000003.tmp/deepspeed/model.pt", "runs/busy/.status.json.18.tmp"]
    kept = ["runs/a/metrics.jsonl", "corpus/manifest.json"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with run_lock(tmp_path / "runs" / "busy"):
        clean_unfinished(tmp_path)
    assert [name for name in (*left, *kept) if (tmp_path / name).exists()] == [left[-1], *kept]
    clean_unfinished(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


def test_status(tmp_path):
    study = load_study("four-architectures", out=tmp_path)
    runs = study.runs("arch=tnl,seed=0")[:2]
    rundir = prepare(study.directory / "runs", runs[0])
    rundir.metrics.write_text(json.dumps({"step": 5, "n_tokens": 5_120, "loss": 4.5, "tokens_per_s": 1e4}) + "\n")
    rundir.write_status("running", 5, 5_120, None, None)
    rows = status_rows(study, runs)
    assert [(row["state"], row["step"]) for row in rows] == [("interrupted", 5), ("waiting", 0)]
    with run_lock(rundir.path):
        assert status_rows(study, runs)[0]["state"] == "running"
    rundir.write_status("failed", 6, 6_144, "loss is nan at step 6", None)
    text = show_status(status_rows(study, runs))
    for damaged in ("[]", '"x"', "{", ""):
        rundir.status_json.write_text(damaged)
        (row, waiting) = status_rows(study, runs)
        assert (row["state"], waiting["state"]) == ("damaged", "waiting") and row["reason"].startswith("status.json: ")
        with pytest.raises(InputError, match=r"status\.json: .*--repair"):
            load_tables(study.directory, [rundir.path.name])
    rundir.metrics.unlink()  # nothing was trained
    assert status_rows(study, runs)[0]["state"] == "waiting"
    rundir.checkpoint(5).mkdir(parents=True)  # it was
    assert status_rows(study, runs)[0]["state"] == "damaged"
    shutil.rmtree(rundir.checkpoint(5))
    assert "loss is nan at step 6" in text and "4.500" in text and len(text.splitlines()) == 4
    assert read_json(rundir.run_json)["run_id"] == runs[0].run_id


WRONG = ([], {}, "x", 7, None, True, 1.5, ["x"], {"x": 1}, [["x"]])
GOOD = {"state": "running", "step": 5, "n_tokens": 5_120, "reason": "stopped", "last_checkpoint": None}


def test_values_of_another_kind_in_what_a_run_left_do_no_harm(tmp_path):
    """Of status.json and of attempts: `state: ["x"]` and an empty record of an attempt were tracebacks."""
    study = load_study("four-architectures", out=tmp_path)
    (run,) = study.runs("arch=tnl,seed=0,size=6k")
    rundir = prepare(study.directory / "runs", run)
    attempt = attempt_by_hand(rundir.path)
    record, file = attempt.read(), rundir.path / "attempts" / f"{attempt.token}.json"
    for key in GOOD:
        for wrong in WRONG:
            write_json(rundir.status_json, GOOD | {key: wrong})
            (row,) = status_rows(study, [run])
            assert row["state"] in ("interrupted", "waiting") and show_status([row]), (key, wrong)
            assert not is_trained(run, rundir) and reason_of(1, rundir.path)
            measured([(run, rundir)], Cluster(nodes=1, cpus_per_node=1))
    for key in (*record, "reason", "hardware", "processes", "rendezvous", "exit_code"):
        for wrong in WRONG:
            write_json(file, record | {key: wrong})
            (row,) = status_rows(study, [run])
            assert show_status([row | {"job": "7"}])
            assert [attempt["token"] for attempt in attempts(rundir.path)] == [str(attempt.token)]
    for content in ("", "{}", "[]", "7", "\0"):
        file.write_text(content)
        assert status_rows(study, [run])[0]["node"] is None
    (file.parent / "notes.json").write_text("{}")
    (file.parent / "1.2.json").write_text("{}")
    assert status_rows(study, [run])[0]["restarts"] == 0, "what is no attempt is none"


def test_the_record_of_an_ended_run_is_of_that_run_and_of_its_rows(tmp_path):
    study = load_study("four-architectures", out=tmp_path)
    dirs = [prepare(study.directory / "runs", run) for run in study.runs("arch=tnl,seed=0")[:2]]
    for rundir in dirs:
        rundir.metrics.write_text(json.dumps({"step": 5, "n_tokens": 5_120, "loss": 4.5}) + "\n")
        rundir.write_status("done", 5, 5_120, None, None)
    shutil.copy(dirs[1].status_json, dirs[0].status_json)  # its metrics.jsonl is that of the other too
    status = dirs[0].status()
    assert (status["state"], status["reason"]) == ("damaged", f"status.json is that of '{dirs[1].path.name}'")
    record = {"state": "done", "step": 5, "n_tokens": 5_120, "reason": None, "last_checkpoint": None}
    write_json(dirs[0].status_json, record | {"run_id": dirs[0].path.name})
    status = dirs[0].status()
    assert (status["state"], status["reason"]) == ("damaged", "metrics.jsonl is not as the run's training left it")


def test_status_says_why_a_run_was_given_up(tmp_path):
    study = load_study("four-architectures", out=tmp_path)
    (run,) = study.runs("arch=tnl,seed=0,size=6k")
    rundir = prepare(study.directory / "runs", run)
    attempt_by_hand(rundir.path).record(reason="given up after 6 attempts; its log ends: srun: fatal: x")
    (row,) = status_rows(study, [run])
    assert row["state"] == "waiting" and "its log ends: srun: fatal: x" in show_status([row])


def test_status_tells_a_run_of_other_settings(tmp_path):
    """Whatever state it is in: `scaling run` would refuse the directory, and nothing there is of this study."""
    study = load_study("four-architectures", out=tmp_path)
    (run,) = study.runs("arch=tnl,seed=0,size=6k")
    rundir = prepare(study.directory / "runs", run)
    rundir.write_status("done", run.n_steps, run.n_tokens, None, None)
    assert status_rows(study, [run])[0]["state"] == "done"
    changed = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    (row,) = status_rows(study, [changed])
    assert row["state"] == "other settings" and "training.lr" in row["reason"] and row["seconds_left"] is None
    assert "other settings" in show_status([row])
