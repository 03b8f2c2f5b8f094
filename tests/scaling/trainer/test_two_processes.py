"""Two processes of one run, disturbed 40 times: killed, stopped, on a full disk, with their last state damaged.

Kinds and moments are seeded and printed. Every run must end with an undisturbed one's rows and weights, bit for bit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scaling.rundir.directory import RunDir
from scaling.rundir.owner import tokens

from ..small_runs import BATCH, exact_rows, make_run, start_fresh, status, train
from .test_resume import workers_of

STEPS, TIMES = 300, 5
SETTINGS = {"n_steps": STEPS, "state_every_tokens": 15 * BATCH, "keep_states": 2, "checkpoint_dtype": "fp32"}
RUNS = [(stage, draw) for stage in range(4) for draw in (0, 1)]
FULL = "no private mounts here"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], RunDir]:
    runs: dict[int, RunDir] = {}

    def of_stage(stage: int) -> RunDir:
        if stage not in runs:
            runs[stage] = make_run(tmp_path_factory.mktemp(f"stage{stage}"), zero_stage=stage, **SETTINGS)
            code, out, err = train(runs[stage], processes=2)
            assert code == 0, out + err
        return runs[stage]

    return of_stage


def on_full_disk(rundir: RunDir, spare_kb: int) -> str:
    """Go on in a copy of the study on a file system with so much room left, and copy it back; what was printed."""
    study, disk = rundir.study, rundir.study.with_name("disk")
    disk.mkdir(exist_ok=True)
    run = disk / "study" / rundir.path.relative_to(study)
    script = (
        f"mount -t tmpfs -o size=$(($(du -sk {study} | cut -f1) + {spare_kb}))k tmpfs {disk} || exit 77; "
        f"cp -a {study} {disk}/study || exit 78; "
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 -m scaling.trainer.process {run} "
        f"--device cpu 2>&1; rm -r {study}; cp -a {disk}/study {study}"
    )
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    result = subprocess.run(line, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if result.returncode in (1, 77):
        return FULL
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def damage_newest(rundir: RunDir, how: str, draw: random.Random) -> bool:
    """Truncate a piece of the newest state, or change one of its bits; False where there is no state yet."""
    for state in rundir.states()[-1:]:
        piece = draw.choice(sorted(state.path.glob("*.safetensors")))
        content = bytearray(piece.read_bytes())
        if how == "truncated":
            content = content[: draw.randrange(len(content))]
        else:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        piece.write_bytes(content)
        return True
    return False


def disturb(rundir: RunDir, how: str, moment: float, draw: random.Random) -> str:
    """Go on and be disturbed `moment` seconds after the training took the run over; says what happened."""
    if how == "full":
        printed = on_full_disk(rundir, draw.randrange(40, 300))
        if printed == FULL:
            return FULL
        is_full, now = "No space left on device" in printed, status(rundir)
        assert is_full or now["state"] == "done", printed  # removing a damaged state makes room for the rest
        return f"disk {'full' if is_full else 'large enough'}, step {now['step']}"
    before = len(tokens(rundir.path))
    process = start_fresh(rundir, processes=2)
    while len(tokens(rundir.path)) == before:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(moment)
    if how == "term":
        process.send_signal(signal.SIGTERM)
    elif how == "one" and (workers := workers_of(rundir)):
        os.kill(draw.choice(workers), signal.SIGKILL)
    elif process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=600)
    done = f"{how} after {moment:.2f} s, step {(rundir.last_row() or {'step': 0})['step']}"
    return done if how in ("all", "one", "term") or damage_newest(rundir, how, draw) else f"{done} (no state yet)"


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "seed"), RUNS)
def test_nothing_is_lost(tmp_path: Path, undisturbed: Callable[[int], RunDir], stage: int, seed: int) -> None:
    expected, draw = undisturbed(stage), random.Random(1000 * stage + seed)
    length = expected.checked_rows().rows[-1]["time_s"]
    rundir = make_run(tmp_path, zero_stage=stage, **SETTINGS)
    for how in draw.sample(["all", "one", "term", "full", "truncated", "flipped"], TIMES):
        print(f"stage {stage}, seed {seed}: {disturb(rundir, how, draw.uniform(0, length / TIMES), draw)}", flush=True)
    code, out, err = train(rundir, processes=2)
    assert code == 0, out + err
    assert exact_rows(rundir) == exact_rows(expected)
    for checkpoint in expected.checkpoints():
        weights = [run.checkpoint(checkpoint.step) / "model.safetensors" for run in (rundir, expected)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list(rundir.path.rglob("*.tmp")), "nothing unfinished is left"
