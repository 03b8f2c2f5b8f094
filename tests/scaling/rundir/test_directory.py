"""A run's directory: run.json once and for one spec, readers that take only what is whole, one writer at a time."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.runs import load_runs
from arch.errors import InputError
from data.files import new_directory, read_json
from flops import cost_table
from scaling.rundir.directory import RunDir, clean_unfinished, git_commit, package_versions, prepare_run
from scaling.rundir.lock import is_locked, run_lock, study_lock
from scaling.rundir.worklist import is_trained
from scaling.stages.status import show_status, status_rows
from scaling.study.spec import load_study


def one_run(*sets):
    return load_study("quickstart", list(sets)).runs("arch=tnl,size=14k,seed=0")[0]


def prepare(folder, run, fingerprint="f" * 64):
    return prepare_run(folder / run.run_id, run, cost_table(run.config), fingerprint, package_versions())


def test_run_json(tmp_path):
    run = one_run()
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    assert record["schema"] == 1 and record["run_id"] == run.run_id and record["spec_hash"] == run.spec_hash
    assert record["model"]["d_model"] == 24 and record["tokenizer"] == "bytes" and record["study"] == "quickstart"
    assert record["cost"]["flops_per_token_train"].keys() == {"exact", "paper", "6nd"}
    assert record["versions"]["torch"] and record["corpus_fingerprint"] == "f" * 64
    assert rundir.spec() == run and rundir.spec().spec_hash == record["spec_hash"]


def test_the_same_run_is_accepted_and_left_alone(tmp_path):
    rundir = prepare(tmp_path, one_run())
    before = rundir.run_json.read_bytes()
    prepare(tmp_path, one_run())
    assert rundir.run_json.read_bytes() == before


def test_a_run_that_was_written_with_an_option_its_architecture_does_not_read(tmp_path):
    """Earlier versions gave every model rope_base and its like, and hashed them; of a study of several architectures
    that set one, TNL's run is the same run."""
    run = one_run()
    earlier = run.model_copy(update={"model": run.model | {"rope_base": 5e5, "tpe_dim": 12, "tpe_residual": True}})
    assert earlier.spec_hash != run.spec_hash and earlier.config == run.config
    rundir = prepare(tmp_path, earlier)
    prepare(tmp_path, run)
    assert rundir.spec().spec_hash == earlier.spec_hash == rundir.record()["spec_hash"]
    assert {earlier.spec_hash, earlier.earlier_hash} <= set(rundir.hashes(run))


def with_source(run, source):
    return run.model_copy(update={"corpus": run.corpus.model_copy(update={"source": [source]})})


def test_a_run_whose_text_moved_is_the_same_run(tmp_path):
    """Also where an earlier version wrote it down, with the text's place in the hashes of run and corpus."""
    here, there = with_source(one_run(), "/here"), with_source(one_run(), "/there")
    rundir = prepare(tmp_path, here)
    record = rundir.record()
    prepare(tmp_path, there)
    assert rundir.record() == record  # where it was first is kept
    rundir.run_json.write_text(json.dumps(record | {"spec_hash": here.earlier_hash}))
    prepare(tmp_path, there)
    assert rundir.spec() == here and rundir.record()["spec_hash"] == here.earlier_hash
    for name, spec_hash in (("done", here.earlier_hash), ("another", "0" * 16)):
        with new_directory(rundir.checkpoint(there.n_steps), {"spec_hash": spec_hash}):
            pass
        rundir.status_json.write_text(json.dumps({"state": "done"}))
        assert is_trained(there, rundir) == is_trained(here, rundir) == (name == "done")
    other = there.model_copy(update={"seed": 7})
    for spec_hash in ("0" * 16, other.earlier_hash):
        rundir.run_json.write_text(json.dumps(record | {"spec_hash": spec_hash}))
        with pytest.raises(InputError, match="was written with"):
            prepare(tmp_path, there)


def test_a_corpus_is_known_by_what_an_earlier_version_called_it(tmp_path):
    run = with_source(one_run(), "/here")
    rundir = prepare(tmp_path, run)
    asked = []

    def known(fingerprint, source):
        asked.append((fingerprint, source))
        return fingerprint == "f" * 64

    moved, rest = with_source(run, "/there"), (cost_table(run.config), "0" * 64, package_versions())
    prepare_run(rundir.path, moved, *rest, known)
    assert asked == [("f" * 64, ["/here"])] and rundir.record()["corpus_fingerprint"] == "f" * 64
    rundir.run_json.write_text(json.dumps(rundir.record() | {"corpus_fingerprint": "e" * 64}))
    with pytest.raises(InputError, match="corpus_fingerprint eee"):
        prepare_run(rundir.path, moved, *rest, known)


def test_what_decides_no_number_may_change_between_starts(tmp_path):
    prepare(tmp_path, one_run())
    rundir = prepare(tmp_path, one_run().model_copy(update={"recompute": True}))
    assert rundir.spec().recompute and rundir.spec().spec_hash == one_run().spec_hash


def test_another_spec_or_corpus_is_refused_with_both_hashes(tmp_path):
    run = one_run()
    rundir = prepare(tmp_path, run)
    before = rundir.run_json.read_bytes()
    other = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    assert other.run_id == run.run_id and other.spec_hash != run.spec_hash
    with pytest.raises(InputError) as error:
        prepare(tmp_path, other)
    first = run.training.lr
    assert f"with training.lr={first} (spec_hash {run.spec_hash}), this study asks for 0.5 ({other.spec_hash})" in str(
        error.value
    )
    with pytest.raises(InputError, match="corpus_fingerprint"):
        prepare(tmp_path, run, "0" * 64)
    assert rundir.run_json.read_bytes() == before


def test_a_run_of_an_earlier_version_is_told_by_what_differs(tmp_path):
    """Not by fields that its run.json has under another name, or did not have and means by their default."""
    run = load_study("quickstart", ["grid.archs=[hgrn1]"]).runs("size=14k,seed=0")[0]
    rundir = prepare(tmp_path, run)
    record = rundir.record()
    del record["spec"]["model"]["hgrn1_state"], record["spec"]["model"]["residual_dtype"]
    record["spec"]["model"]["hgrn1_complex"] = True
    rundir.run_json.write_text(json.dumps(record))
    assert rundir.spec().spec_hash == run.spec_hash
    faster = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    with pytest.raises(InputError, match=r"with training\.lr=.* this study asks for 0\.5"):
        prepare(tmp_path, faster)
    real = run.model_copy(update={"model": run.config.replace(hgrn1_state="real").to_dict()})
    with pytest.raises(InputError, match=r"with model\.hgrn1_state=complex .* this study asks for real"):
        prepare(tmp_path, real)
    prepare(tmp_path, run)  # the same run, which is written anew by the names of today
    assert rundir.spec() == run


def test_tnl_of_an_earlier_version_is_told_by_its_slopes(tmp_path):
    run = one_run()
    before = run.model_copy(update={"model": run.config.replace(decay_slopes="paper").to_dict()})
    rundir = prepare(tmp_path, before)
    record = rundir.record()
    del record["spec"]["model"]["decay_slopes"]
    rundir.run_json.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"with model\.decay_slopes=paper .* this study asks for fixed"):
        prepare(tmp_path, run)


def test_damaged_run_json_is_told(tmp_path):
    rundir = prepare(tmp_path, one_run())
    record = rundir.record()
    for text in ("{", "[]", "{}", json.dumps(record | {"schema": 99})):
        rundir.run_json.write_text(text)
        with pytest.raises(InputError, match=r"run\.json: .*remove the run directory"):
            prepare(tmp_path, one_run())
    rundir.run_json.write_text(json.dumps(record | {"spec": record["spec"] | {"optimizer": "lion"}}))
    with pytest.raises(InputError, match=r"run\.json: spec\.optimizer: .*another version") as error:
        rundir.spec()
    assert "\n" not in str(error.value)


def test_metrics_leave_out_a_torn_last_line(tmp_path):
    rundir = RunDir(tmp_path)
    assert rundir.rows() == [] and rundir.last_row() is None
    lines = [
        json.dumps({"step": step, "n_tokens": step, "loss": 1.0 / step, "pad": "x" * 50}) for step in range(1, 201)
    ]
    rundir.metrics.write_text("\n".join(lines) + "\n")
    assert len(rundir.rows()) == 200 and rundir.last_row()["step"] == 200
    rundir.metrics.write_text("\n".join(lines))
    assert len(rundir.rows()) == 199 and rundir.last_row()["step"] == 199
    rundir.metrics.write_text(lines[0][:10])
    assert rundir.rows() == [] and rundir.last_row() is None


def test_checkpoints_count_only_with_a_valid_manifest(tmp_path):
    rundir = RunDir(tmp_path)
    for step in (20, 3):
        with new_directory(rundir.checkpoint(step), {"step": step}) as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
    rundir.checkpoint(7).mkdir()
    (tmp_path / "checkpoints" / ".00000030.1.tmp").mkdir()
    assert [found.step for found in rundir.checkpoints()] == [3, 20]
    assert rundir.checkpoints()[1].manifest["step"] == 20
    (rundir.checkpoint(20) / "model.safetensors").write_bytes(b"w3ights")  # the same size
    assert [found.step for found in rundir.checkpoints()] == [3]
    assert [found.step for found in rundir.checkpoints(verify=False)] == [3, 20]
    (rundir.checkpoint(20) / "model.safetensors").write_bytes(b"short")
    assert [found.step for found in rundir.checkpoints(verify=False)] == [3]
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
    study = load_study("quickstart", out=tmp_path)
    runs = study.runs("arch=tnl,seed=0")[:2]
    rundir = prepare(study.directory / "runs", runs[0])
    rundir.metrics.write_text(json.dumps({"step": 5, "n_tokens": 5_120, "loss": 4.5, "tokens_per_s": 1e4}) + "\n")
    rundir.status_json.write_text(json.dumps({"state": "running", "reason": None}))
    rows = status_rows(study, runs)
    assert [(row["state"], row["step"]) for row in rows] == [("interrupted", 5), ("waiting", 0)]
    with run_lock(rundir.path):
        assert status_rows(study, runs)[0]["state"] == "running"
    rundir.status_json.write_text(json.dumps({"state": "failed", "reason": "loss is nan at step 6"}))
    text = show_status(status_rows(study, runs))
    for damaged in ("[]", '"x"', "{", ""):
        rundir.status_json.write_text(damaged)
        assert [row["state"] for row in status_rows(study, runs)] == ["waiting", "waiting"]
        assert load_runs(study.directory, [rundir.path.name])["state"].tolist() == ["running"]
    assert "loss is nan at step 6" in text and "4.500" in text and len(text.splitlines()) == 4
    assert read_json(rundir.run_json)["run_id"] == runs[0].run_id


def test_status_tells_a_run_of_other_settings(tmp_path):
    """Whatever state it is in: `scaling run` would refuse the directory, and nothing there is of this study."""
    study = load_study("quickstart", out=tmp_path)
    (run,) = study.runs("arch=tnl,seed=0,size=6k")
    rundir = prepare(study.directory / "runs", run)
    rundir.status_json.write_text(json.dumps({"state": "done", "reason": None}))
    assert status_rows(study, [run])[0]["state"] == "done"
    changed = run.model_copy(update={"training": run.training.model_copy(update={"lr": 0.5})})
    (row,) = status_rows(study, [changed])
    assert row["state"] == "other settings" and "training.lr" in row["reason"] and row["seconds_left"] is None
    assert "other settings" in show_status([row])


def test_status_tells_rows_that_the_run_cannot_have_written(tmp_path, monkeypatch):
    study = load_study("quickstart", out=tmp_path)
    (run,) = study.runs("arch=tnl,seed=0,size=6k")
    rundir = prepare(study.directory / "runs", run)
    good = json.dumps({"step": 5, "n_tokens": 5_120, "loss": 4.5, "tokens_per_s": 1e4}) + "\n"
    for garbage in ("7\n", '{"step": "x"}\n', '{"step": 6, "n_tokens": 1, "loss": 0.1}\n'):
        rundir.metrics.write_text(good + garbage)
        (row,) = status_rows(study, [run])
        assert row["rows_left_out"].startswith("1 ")
        assert show_status([row]).splitlines()[-1] == f"{run.run_id}: rows left out: {row['rows_left_out']}"
    monkeypatch.setattr("scaling.stages.status.CHECKED_BYTES", 10)
    assert "the rows of 1 runs were not checked" in show_status(status_rows(study, [run]))


def test_the_commit_is_that_of_the_source_tree():
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert (git_commit() or "").removesuffix("+changes") == head.strip()
