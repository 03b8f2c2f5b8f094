"""A run from its directory to its last checkpoint: what it records, when it ends, and how it refuses."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.lm import build_model, load_model, next_token_loss
from data.corpus import open_corpus
from data.files import write_json
from data.loader import Loader
from data.synthetic import synthetic_documents
from scaling.rundir import metrics
from scaling.rundir.checkpoint_writer import probe_loss, probe_rows
from scaling.rundir.directory import RunDir
from scaling.rundir.lock import run_lock
from scaling.rundir.metrics import MetricsWriter
from scaling.trainer.loop import MOST_SKIPPED, Trainer

from ..small_runs import BATCH, CONTEXT, exact_rows, make_run, status, train, train_here

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of 12 steps, trained by the real process."""
    rundir = make_run(tmp_path_factory.mktemp("finished"))
    code, out, err = train(rundir, fresh=True)
    assert (code, err) == (0, ""), out + err
    assert "first step" in out and "done: 6144 tokens" in out
    return rundir


def test_all_threads_compute_whatever_the_site_allows(tmp_path):
    """By fewer threads than it counts on, oneDNN computes a part of a bf16 product alone."""
    runs = [make_run(tmp_path / name, "hgrn2", n_steps=2, threads=2, precision="bf16") for name in ("free", "held")]
    assert train(runs[0])[0] == 0
    code, out, err = train(runs[1], fresh=True, OMP_DYNAMIC="true", OMP_THREAD_LIMIT="1")
    assert code == 0, out + err
    assert exact_rows(runs[1]) == exact_rows(runs[0])


def test_rows_say_what_was_trained(finished: RunDir) -> None:
    rows = finished.checked_rows().rows
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["n_tokens"] for row in rows] == [BATCH * i for i in range(1, 13)]
    assert rows[0]["loss"] == pytest.approx(math.log(257), abs=0.1)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    np.testing.assert_allclose([row["lr"] for row in rows], [3e-3 * min(1, i / 4) for i in range(1, 13)])
    assert all(row["grad_norm"] > 0 and row["tokens_per_s"] > 0 for row in rows)
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)


def test_checkpoints_hold_the_trained_model(finished: RunDir) -> None:
    checkpoints = finished.checkpoints()
    assert [(c.step, c.manifest["n_tokens"]) for c in checkpoints] == [(6, 6 * BATCH), (12, 12 * BATCH)]
    corpus = open_corpus(finished.study / "corpus")
    rows = probe_rows(corpus.validation, CONTEXT)
    losses = [probe_loss(load_model(c.path).eval(), torch.from_numpy(rows)) for c in checkpoints]
    assert losses == [c.manifest["probe_loss"] for c in checkpoints]
    batch = Loader(corpus.train, CONTEXT, BATCH // CONTEXT, 0).batch(6)
    loss = probe_loss(load_model(checkpoints[0].path).eval(), torch.from_numpy(batch))
    assert loss == pytest.approx(finished.checked_rows().rows[6]["loss"], abs=0.01)
    assert status(finished) == {
        "state": "done", "step": 12, "n_tokens": 12 * BATCH, "reason": None, "last_checkpoint": "checkpoints/00000012",
    }  # fmt: skip


def test_a_finished_run_is_left_alone_at_once(finished: RunDir) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    code = (
        "import sys; from scaling.trainer.process import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules, 'torch was imported'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(finished.path)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert before == {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}


def test_documents_are_read_apart_where_a_run_says_so(finished: RunDir, tmp_path: Path) -> None:
    """In training, and by whoever opens the checkpoint."""
    text, source = "".join(synthetic_documents(0, 60_000)), tmp_path / "short.jsonl"
    source.write_text("".join(json.dumps({"text": text[i : i + 40]}) + "\n" for i in range(0, len(text), 40)))
    rundir = make_run(tmp_path, reset_at_documents=True, n_steps=2, source=str(source), arch="tnl")
    assert train_here(rundir) == 0
    corpus = open_corpus(rundir.study / "corpus")
    config, end = ModelConfig.from_dict(rundir.spec().model), corpus.tokenizer.eot_id
    loader = Loader(corpus.train, CONTEXT, BATCH // CONTEXT, 0)
    batch, model = torch.from_numpy(loader.batch(0)), build_model(config, 0)
    plain = float(next_token_loss(model(input_ids=batch[:, :-1]).logits, batch[:, 1:]))
    logits = []
    for row in batch[:, :-1]:
        cuts = [0, *[at for at in (row == end).nonzero().flatten().tolist() if at], len(row)]
        pieces = [row[a:b] for a, b in itertools.pairwise(cuts)]
        logits.append(torch.cat([model(input_ids=piece[None]).logits for piece in pieces], 1))
    apart = float(next_token_loss(torch.cat(logits), batch[:, 1:]))
    assert rundir.checked_rows().rows[0]["loss"] == pytest.approx(apart, rel=1e-6) and abs(plain - apart) > 1e-5
    assert load_model(rundir.checkpoints()[-1].path).decoder.document_start_id == end
    assert load_model(finished.checkpoints()[-1].path).decoder.document_start_id is None


@pytest.mark.parametrize("stage", [0, 3, pytest.param(1, marks=pytest.mark.slow)])
def test_two_processes_train_the_same_model(finished: RunDir, tmp_path: Path, stage: int) -> None:
    rundir = make_run(tmp_path, zero_stage=stage)
    code, out, err = train(rundir, processes=2, fresh=stage == 0)
    assert code == 0, out + err
    for column, tolerance in (("loss", 1e-5), ("grad_norm", 1e-4), ("lr", 0.0), ("n_tokens", 0.0)):
        alone, together = ([row[column] for row in r.checked_rows().rows] for r in (finished, rundir))
        np.testing.assert_allclose(together, alone, rtol=tolerance, err_msg=column)
    for first, second in zip(finished.checkpoints(), rundir.checkpoints(), strict=True):
        assert second.manifest["probe_loss"] == pytest.approx(first.manifest["probe_loss"], rel=1e-3)
    shutil.rmtree(rundir.checkpoint(12))  # so that it is not simply done
    code, out, err = train(rundir)
    assert code == 0 and "step 12 of 12, 1 process" in out, out + err


def test_a_run_in_training_is_not_trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling.rundir.lock.PATIENCE_S", 0.1)
    rundir = make_run(tmp_path)
    trainer = Trainer(rundir, CPU, time.perf_counter())
    with run_lock(rundir.path), pytest.raises(InputError, match=f"process {os.getpid()} is training this run"):
        trainer.train()
    assert not rundir.metrics.exists() and not rundir.status_json.exists()


def test_recomputation_is_the_runs_to_say(tmp_path: Path) -> None:
    rundir = make_run(tmp_path)
    assert not Trainer(rundir, CPU, time.perf_counter()).engine.model.decoder.gradient_checkpointing
    record = rundir.record()
    record["spec"]["recompute"] = True
    write_json(rundir.run_json, record)
    assert Trainer(rundir, CPU, time.perf_counter()).engine.model.decoder.gradient_checkpointing


def test_sparse_logging_keeps_the_rows_of_checkpoints(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, log_every=5, n_steps=12)
    assert train_here(rundir) == 0
    assert [row["step"] for row in rundir.checked_rows().rows] == [5, 6, 10, 12]


def test_a_run_that_diverges_fails_and_stays_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rundir = make_run(tmp_path, lr=1e20, warmup_tokens=0, checkpoint_tokens=[BATCH, 8 * BATCH])
    code, out = train_here(rundir), capsys.readouterr().out
    state = status(rundir)
    assert code == 3 and state["state"] == "failed", out
    assert f" at step {state['step']}" in state["reason"] and state["step"] <= 3 + MOST_SKIPPED
    assert f"failed: {state['reason']} (last good checkpoint: {state['last_checkpoint'] or 'none'})" in out
    assert all(math.isfinite(row["loss"]) for row in rundir.checked_rows().rows)
    assert all(math.isfinite(c.manifest["probe_loss"]) for c in rundir.checkpoints())
    before = rundir.metrics.read_bytes()
    code, out, _ = train(rundir)
    assert code == 3 and "failed before" in out and rundir.metrics.read_bytes() == before
    shutil.rmtree(rundir.path / "state")  # the next start cuts all rows
    code, _, _ = train(rundir, "--retry", KILL_AT_WRITE="status:1")  # with --retry it trains again
    assert code == -signal.SIGKILL and rundir.status()["state"] != "damaged", "its rows are those that its status names"
    assert train_here(rundir) == 3


def test_a_changed_run_json_and_another_corpus_are_refused(tmp_path: Path) -> None:
    rundir = make_run(tmp_path)
    record = rundir.record()
    write_json(rundir.run_json, record | {"spec_hash": "0" * 16})
    code, out, err = train(rundir)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert f"spec_hash {'0' * 16} is not that of its spec, {record['spec_hash']}" in err
    write_json(rundir.run_json, record | {"corpus_fingerprint": "other"})
    with pytest.raises(InputError, match="this run was planned with other"):
        train_here(rundir)
    write_json(rundir.run_json, record | {"tokenizer_identity": "0" * 64})
    with pytest.raises(InputError, match="the run was made with another tokenizer than the bytes that is here"):
        train_here(rundir)
    assert [path.name for path in rundir.path.iterdir()] == ["run.json"]


def test_a_missing_run_and_a_small_corpus_are_one_line(tmp_path: Path) -> None:
    code, _, err = train(RunDir(tmp_path / "nowhere"))
    assert code == 2 and err.count("\n") == 1 and "run.json" in err
    rundir = make_run(tmp_path, n_steps=400, source="synthetic:0:100000")
    with pytest.raises(InputError, match="too small"):
        train_here(rundir)


def test_metrics_end_before_a_torn_line_and_are_cut_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WRITE_SECONDS", 600.0)  # longer than three rows can take
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2, 3):
        writer.append({"step": step, "loss": 0.1 * step})
    assert path.read_bytes() == b"", "rows wait"
    writer.flush()
    writer.close()
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "lo')
    assert [step for step, _ in metrics.complete_rows(path)] == [1, 2, 3]
    assert metrics.last_step(path, 9) == 3 and metrics.last_step(path, 2) == 2 and metrics.last_step(path, 0) == 0
    metrics.cut(path, 3)
    assert path.read_bytes() == whole
    metrics.cut(path, 2)
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    metrics.cut(path, 0)
    assert path.read_bytes() == b""


def test_rows_reach_the_file_within_a_second_or_so(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.append({"step": 1})
    time.sleep(1.05)
    writer.append({"step": 2})
    assert [step for step, _ in metrics.complete_rows(tmp_path / "metrics.jsonl")] == [1, 2]
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_raises_where_rows_are_written() -> None:
    writer = MetricsWriter(Path("/dev/full"))
    writer.append({"step": 1})
    with pytest.raises(OSError) as caught:
        writer.flush()
    assert caught.value.errno == errno.ENOSPC
