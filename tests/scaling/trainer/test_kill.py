"""kill -9 of a whole study at any moment: the same command finishes it, and no recorded number differs.

The moments are seeded and printed: random ones, and one inside each of a corpus, checkpoint, state, evaluation and
report write (KILL_AT_WRITE stops the process group between the temporary file and its rename, see data/files.py).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ..small_runs import EXACT

STUDY = """
name: killed
corpus: {source: "synthetic:0:300000", tokenizer: bytes, validation_fraction: 0.1}
grid: {archs: [tnl, hgrn2], sizes: [14k, 25k]}
model: {context_length: 64}
training:
  {n_tokens: 40_000, batch_tokens: 512, lr: 4e-3, warmup_tokens: 4_000, n_checkpoints: 3, checkpoint_dtype: fp32}
evaluation: {validation_tokens: 4_096}
fit: {smoothing_tokens: 4_000}
jobs: {parallel: 2}
"""
BRANCHED = STUDY.replace("archs: [tnl, hgrn2], sizes: [14k, 25k]", "archs: [tnl], sizes: [14k, 25k]").replace(
    "n_tokens: 40_000", "schedule: wsd, branches: [20_000, 40_000]"
)
SEED = 20_240_624
WRITES = ["corpus:1", "checkpoint:2", "state:2", "eval:2", "results:1", "report:1"]


def start(study: Path, out: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`scaling run` in a process group of its own."""
    command = [sys.executable, "-m", "scaling", "run", str(study), "--out", str(out)]
    with open(out.parent / f"{out.name}.log", "ab") as log:
        return subprocess.Popen(
            command, env=os.environ | environment, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
        )


def finish(study: Path, out: Path) -> None:
    process = start(study, out)
    assert process.wait(timeout=600) == 0, (out.parent / f"{out.name}.log").read_text()[-3000:]


def recorded(out: Path) -> dict[str, list[tuple[float, ...]]]:
    """Every run's rows, timing columns left out."""
    return {
        path.parent.name: [tuple(row[key] for key in EXACT) for row in map(json.loads, path.read_text().splitlines())]
        for path in sorted(out.glob("killed/runs/*/metrics.jsonl"))
    }


Undisturbed = tuple[Path, dict[str, list[tuple[float, ...]]], float]


def finished(directory: Path, text: str) -> Undisturbed:
    """The study, its rows, and the seconds that it took."""
    study = directory / "killed.yaml"
    study.write_text(text)
    begin = time.monotonic()
    finish(study, directory / "out")
    return study, recorded(directory / "out"), time.monotonic() - begin


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    study, rows, seconds = finished(tmp_path_factory.mktemp("undisturbed"), STUDY)
    assert len(rows) == 4 and all(len(steps) == 79 for steps in rows.values())
    return study, rows, seconds


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    study, rows, seconds = finished(tmp_path_factory.mktemp("branched"), BRANCHED)
    assert [len(steps) for steps in rows.values()] == [63, 8, 16] * 2, "trunk and branches of two sizes"
    return study, rows, seconds


def check(study: Path, out: Path, expected: dict[str, list[tuple[float, ...]]]) -> None:
    finish(study, out)
    assert recorded(out) == expected
    assert (out / "killed/report/index.html").exists()
    leftovers = [str(path) for path in out.rglob(".*.tmp")]
    assert not leftovers, f"unfinished writes remain: {leftovers}"


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(8))
def test_killed_at_a_random_moment(draw: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    kill(draw, undisturbed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(100, 106))
def test_branches_killed_at_a_random_moment(draw: int, branched: Undisturbed, tmp_path: Path) -> None:
    kill(draw, branched, tmp_path)


def kill(draw: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    study, rows, seconds = undisturbed
    moment = random.Random(SEED + draw).uniform(0.05, 0.95) * seconds
    process = start(study, tmp_path / "out")
    time.sleep(moment)
    alive = process.poll() is None
    with suppress(ProcessLookupError):  # it ended before, and all its children
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print(f"seed {SEED + draw}: killed after {moment:.2f} of {seconds:.2f} s" + ("" if alive else " (had finished)"))
    check(study, tmp_path / "out", rows)


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_killed_inside_a_write(write: str, undisturbed, tmp_path: Path) -> None:
    study, rows, _ = undisturbed
    process = start(study, tmp_path / "out", KILL_AT_WRITE=write)
    assert process.wait(timeout=600) == -signal.SIGKILL, f"no write {write} was reached"
    check(study, tmp_path / "out", rows)
