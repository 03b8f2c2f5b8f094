"""A run that was stopped anywhere continues to the numbers of an undisturbed one, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from arch.errors import InputError
from arch.model.lm import load_model
from data.files import write_json
from data.tokenizer import get_tokenizer
from scaling.rundir.checkpoint_writer import valid_checkpoint, write_checkpoint
from scaling.rundir.directory import RunDir
from scaling.rundir.worklist import is_trained
from scaling.trainer.loop import Trainer
from tests.gate import gated

from ..forks import Forked
from ..small_runs import BATCH, exact_rows, make_run, start, start_fresh, status, train, train_here

STEPS = 200
SETTINGS = {"state_every_tokens": 20 * BATCH, "checkpoint_tokens": [50 * BATCH, 150 * BATCH, STEPS * BATCH]}
SLOW = pytest.mark.slow
SEEDS = [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3, 4))]
SLOW_WRITES = ("checkpoint:1", "checkpoint:2", "checkpoint-manifest:1", "state:1", "state-manifest:2")
SLOW_WRITES += ("metrics:1", "status:1", "status:3")
WRITES = ["state:3", *(pytest.param(write, marks=SLOW) for write in SLOW_WRITES)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    rundir = make_run(tmp_path_factory.mktemp("undisturbed"), n_steps=STEPS, keep_states=2, **SETTINGS)
    code, out, err = train(rundir)
    assert code == 0, out + err
    return rundir


def disturbed(tmp_path: Path) -> RunDir:
    return make_run(tmp_path, n_steps=STEPS, keep_states=2, **SETTINGS)


def assert_same_run(rundir: RunDir, undisturbed: RunDir) -> None:
    assert exact_rows(rundir) == exact_rows(undisturbed)
    names = [checkpoint.path.name for checkpoint in undisturbed.checkpoints()]
    assert names == ["00000050", "00000150", "00000200"]
    for name in names:
        weights = [r.path / "checkpoints" / name / "model.safetensors" for r in (rundir, undisturbed)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), name
    assert status(rundir) == status(undisturbed)
    assert not list(rundir.path.rglob("*.tmp")), "nothing unfinished is left"


def wait_for_start(process: Forked | subprocess.Popen[str], rundir: RunDir) -> None:
    while not rundir.status_json.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_9_at_a_random_moment(tmp_path: Path, undisturbed: RunDir, seed: int) -> None:
    rundir = disturbed(tmp_path)
    length = undisturbed.checked_rows().rows[-1]["time_s"]
    moment = random.Random(seed).uniform(0.1, 0.9) * length
    process = start(rundir)
    wait_for_start(process, rundir)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed = status(rundir)
    print(f"seed {seed}: killed after {moment:.2f} of {length:.2f} s, status {killed['state']}")
    code, out, err = train(rundir)
    assert code == 0, out + err
    assert_same_run(rundir, undisturbed)


@pytest.mark.parametrize("write", WRITES)
def test_kill_9_inside_a_write(tmp_path: Path, undisturbed: RunDir, write: str) -> None:
    rundir = disturbed(tmp_path)
    code, _, _ = train(rundir, KILL_AT_WRITE=write)
    assert code == -signal.SIGKILL, "the kill must have happened"
    if write not in ("metrics:1", "status:1"):
        assert status(rundir)["state"] == "running"
    code, out, err = train(rundir)
    assert code == 0, out + err
    assert_same_run(rundir, undisturbed)


def test_sigterm_saves_and_exits_75(tmp_path: Path, undisturbed: RunDir) -> None:
    rundir = disturbed(tmp_path)
    process = start(rundir, **gated(30, tmp_path / "go"))
    while (rundir.last_row() or {"step": 0})["step"] < 30:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 75, out + err
    progress, state = status(rundir), rundir.states()[-1]
    assert progress["state"] == "running"
    assert progress["step"] == state.step == rundir.checked_rows().rows[-1]["step"] < STEPS
    assert progress["reason"] == f"stopped by SIGTERM after step {state.step}, to be continued"
    code, out, err = train(rundir)
    assert code == 0 and f"step {state.step} of {STEPS}" in out, out + err
    assert_same_run(rundir, undisturbed)


def workers_of(rundir: RunDir) -> list[int]:
    """Processes that train the run."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"scaling.trainer.process" in arguments and b"torch.distributed.run" not in arguments:
            pids += [int(folder.name)] if os.fsencode(rundir.path) in arguments else []
    return pids


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds processes in /proc")
def test_workers_of_torchrun_die_with_its_process_group(tmp_path: Path) -> None:
    """torchrun gives them sessions of their own, so a kill -9 of the group reaches torchrun alone."""
    rundir = make_run(tmp_path, n_steps=300, state_every_tokens=20 * BATCH)
    process = start_fresh(rundir, processes=2)
    wait_for_start(process, rundir)
    workers = workers_of(rundir)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 5
    while workers_of(rundir) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(workers) == 2 and not workers_of(rundir)
    assert status(rundir)["state"] == "running", "they were killed while they trained"


def copy_run(undisturbed: RunDir, tmp_path: Path) -> RunDir:
    """A copy that looks as if it had been killed before its last checkpoint."""
    shutil.copytree(undisturbed.study, tmp_path / "study")
    rundir = RunDir(tmp_path / "study" / "runs" / undisturbed.path.name)
    shutil.rmtree(rundir.checkpoint(STEPS))
    rundir.status_json.unlink()
    return rundir


@pytest.mark.parametrize("damage", ["truncated", "flipped", "manifest"])
def test_a_damaged_state_is_passed_over(
    tmp_path: Path, undisturbed: RunDir, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    rundir = copy_run(undisturbed, tmp_path)
    newest = rundir.states()[-1]
    assert (newest.step, rundir.states()[-2].step) == (STEPS, STEPS - 20)
    file = next(newest.path.rglob("*.safetensors"))
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        (newest.path / "manifest.json").write_text("")
    assert train_here(rundir) == 0
    captured = capsys.readouterr()
    why = "no manifest, a wrong checksum, or saved after another step"
    assert captured.err == f"warning: {newest.path} is damaged ({why}) and is not used\n"
    assert f"step {STEPS - 20} of {STEPS}" in captured.out
    assert_same_run(rundir, undisturbed)


def test_a_lost_last_checkpoint_is_written_from_the_state(tmp_path: Path, undisturbed: RunDir) -> None:
    rundir = copy_run(undisturbed, tmp_path)
    assert train_here(rundir) == 0
    assert_same_run(rundir, undisturbed)


def test_a_state_ahead_of_its_rows_is_not_used(
    tmp_path: Path, undisturbed: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = copy_run(undisturbed, tmp_path)
    lines = rundir.metrics.read_bytes().splitlines(keepends=True)
    rundir.metrics.write_bytes(b"".join(lines[:190]) + lines[190][:20])
    assert train_here(rundir) == 0
    assert f"lacks rows before step {STEPS} or has others than were written" in capsys.readouterr().err
    assert_same_run(rundir, undisturbed)


def test_intact_checkpoints_are_not_written_again(
    tmp_path: Path, undisturbed: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = copy_run(undisturbed, tmp_path)
    shutil.rmtree(rundir.path / "state")
    before = rundir.checkpoint(50).stat().st_mtime_ns
    assert train_here(rundir) == 0
    assert rundir.checkpoint(50).stat().st_mtime_ns == before
    warning = f"warning: {rundir.path / 'state'} holds no usable state: step {STEPS} was reached, starting again\n"
    assert capsys.readouterr().err == warning
    assert_same_run(rundir, undisturbed)


def test_what_was_saved_after_another_step_counts_for_none(tmp_path: Path, undisturbed: RunDir) -> None:
    """A state or a checkpoint that was copied to another step's name is whole by its checksums."""
    rundir = copy_run(undisturbed, tmp_path)
    for path, other in ((rundir.state(STEPS), STEPS - 20), (rundir.checkpoint(STEPS), 50)):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(path.with_name(f"{other:08d}"), path)
    assert not valid_checkpoint(rundir.checkpoint(STEPS), rundir.spec().spec_hash)
    assert [checkpoint.step for checkpoint in rundir.checkpoints()] == [50, 150] and [
        state.step for state in rundir.states()
    ] == [180]
    write_json(rundir.status_json, status(undisturbed))
    assert not is_trained(rundir.spec(), rundir)
    assert train_here(rundir) == 0
    assert_same_run(rundir, undisturbed)


def test_a_checkpoint_that_an_earlier_process_wrote_on_another_path_is_written_again(
    tmp_path: Path, undisturbed: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after it and before a state, a run whose steps do not repeat to the bit comes to other weights."""
    rundir = copy_run(undisturbed, tmp_path)
    shutil.rmtree(rundir.state(STEPS))
    path = rundir.checkpoint(STEPS)
    model = load_model(undisturbed.checkpoint(STEPS))
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    manifest = {key: undisturbed.checkpoints()[-1].manifest[key] for key in ("run_id", "spec_hash", "step", "n_tokens")}
    probe = np.arange(2 * 65).reshape(2, 65)
    write_checkpoint(path, model, "bf16", probe, torch.device("cpu"), manifest, get_tokenizer("bytes"))
    assert train_here(rundir) == 0
    assert f"step {STEPS}: the checkpoint there has other weights" in capsys.readouterr().out
    assert_same_run(rundir, undisturbed)


def test_a_lost_earlier_checkpoint_is_a_warning(
    tmp_path: Path, undisturbed: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = copy_run(undisturbed, tmp_path)
    (rundir.checkpoint(50) / "model.safetensors").write_bytes(b"")
    assert train_here(rundir) == 0
    expected = f"warning: {rundir.checkpoint(50)} is missing or damaged and lies before step {STEPS}: not written again"
    assert capsys.readouterr().err == expected + "\n"


def test_only_the_newest_states_are_kept(undisturbed: RunDir) -> None:
    assert sorted(path.name for path in (undisturbed.path / "state").iterdir()) == ["00000180", "00000200"]


def test_a_state_of_another_spec_is_refused(tmp_path: Path, undisturbed: RunDir) -> None:
    rundir = make_run(tmp_path, n_steps=STEPS, keep_states=2, zero_stage=1, **SETTINGS)
    shutil.copytree(undisturbed.path / "state", rundir.path / "state")
    shutil.copy(undisturbed.metrics, rundir.metrics)
    with pytest.raises(InputError, match=r"was written by spec \w{16}, this run's is \w{16}"):
        train_here(rundir)


@pytest.mark.parametrize(
    ("arch", "stage", "optimizer"),
    [
        ("hgrn2", 1, "adamw"),
        ("cosformer2", 2, "adamw"),
        ("gated_deltanet", 3, "adamw"),
        ("tnl", 1, "adam"),
        ("mamba2", 0, "muon"),
    ],
)
def test_every_stage_and_optimizer_resumes_exactly(tmp_path: Path, arch: str, stage: int, optimizer: str) -> None:
    changes = {"zero_stage": stage, "n_steps": 6, "micro_batch_tokens": BATCH // 2, "precision": "bf16"}
    changes |= {"optimizer": optimizer}
    whole = make_run(tmp_path, arch, name="whole", **changes)
    assert train_here(whole) == 0
    broken = make_run(tmp_path, arch, name="broken", **changes)
    trainer = Trainer(broken, torch.device("cpu"), time.perf_counter())
    trainer.stop.name = "SIGTERM"
    assert trainer.train() == 75 and broken.checked_rows().rows[-1]["step"] == 1
    assert train_here(broken) == 0
    assert exact_rows(broken) == exact_rows(whole)
