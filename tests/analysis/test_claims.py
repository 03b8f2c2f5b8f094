"""Claims: one owner at a time, the dead make way, the living do not."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from analysis import claims
from analysis.claims import clear, progress_of, take

HOLD = (
    "import sys, time, pathlib; from analysis.claims import take\n"
    "with take(pathlib.Path(sys.argv[1]), 'task') as claim:\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


def hold(directory: Path) -> "subprocess.Popen[str]":
    """A process that holds the claim."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_claim_is_one_owners_and_ends(tmp_path: Path) -> None:
    claim = take(tmp_path / "evals", "task")
    assert claim is not None
    with claim:
        assert take(tmp_path / "evals", "task") is None
        other = take(tmp_path / "evals", "another")
        assert other is not None
        with other:
            pass
        assert progress_of(tmp_path / "evals", "task") is not None
    assert list((tmp_path / "evals").iterdir()) == []
    assert progress_of(tmp_path / "evals", "task") is None
    assert take(tmp_path / "evals", "task") is not None


def test_a_living_owner_keeps_its_claim_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert take(tmp_path, "task") is None
    process.kill()
    process.wait()
    claim = take(tmp_path, "task")
    assert claim is not None and claim.path.name == "task.claim-1"
    with claim:
        assert take(tmp_path, "task") is None
    assert list(tmp_path.iterdir()) == []


def test_what_the_dead_left_is_cleared(tmp_path: Path) -> None:
    process = hold(tmp_path)
    alive = take(tmp_path, "mine")
    assert alive is not None
    with alive:
        process.kill()
        process.wait()
        clear(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["mine.claim-0"]
    clear(tmp_path / "absent")


def test_a_process_number_used_again_does_not_keep_a_claim(tmp_path: Path) -> None:
    with take(tmp_path, "task") as claim:  # type: ignore[union-attr]
        record = json.loads(claim.path.read_bytes())
        claim.path.write_text(json.dumps(record | {"start": "1"}).ljust(claims.RECORD_BYTES))
        assert not claims.is_alive(claim.path)
        claim.path.write_text(json.dumps(record).ljust(claims.RECORD_BYTES))
        assert claims.is_alive(claim.path)


def test_another_hosts_claim_lives_by_its_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "task.claim-0"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "share": 0.25}))
    assert take(tmp_path, "task") is None
    assert progress_of(tmp_path, "task") == 0.25
    old = time.time() - claims.STALE_S - 5
    os.utime(path, (old, old))
    assert take(tmp_path, "task") is not None


def test_a_claim_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment of making it, its owner leaves none, or one that tells who is dead."""
    monkeypatch.setattr(claims.os, "link", lambda *paths: os._exit(9))
    child = os.fork()
    if child == 0:
        take(tmp_path, "task")
    os.waitpid(child, 0)
    monkeypatch.undo()
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    claim = take(tmp_path, "task")
    assert claim is not None and len(claim.path.read_bytes()) == claims.RECORD_BYTES and claims.is_alive(claim.path)


def test_a_claim_that_cannot_be_read_lives_by_its_age(tmp_path: Path) -> None:
    path = tmp_path / "task.claim-0"
    path.touch()
    assert take(tmp_path, "task") is None
    os.utime(path, (1, 1))
    assert take(tmp_path, "task") is not None


def test_the_heartbeat_carries_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    with take(tmp_path, "task") as claim:  # type: ignore[union-attr]
        claim.say(0.5)
        deadline = time.monotonic() + 60
        while progress_of(tmp_path, "task") != 0.5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert progress_of(tmp_path, "task") == 0.5
        assert claim.path.stat().st_size == claims.RECORD_BYTES


def _race(directory: Path, together: Barrier, found: "multiprocessing.Queue[int]") -> None:
    """Take what can be taken of 50 claims of a dead owner, at the same moment as the others; count it."""
    together.wait(600)
    held = [claim for i in range(50) if (claim := take(directory, f"task{i}")) is not None]
    for claim in held:
        claim.__enter__()
    found.put(len(held))
    together.wait(600)  # hold them all until everybody has tried


def test_a_race_for_dead_claims_has_one_winner_each(tmp_path: Path) -> None:
    for i in range(50):
        path = tmp_path / f"task{i}.claim-0"
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1"}))
        os.utime(path, (1, 1))
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[int] = context.Queue()
    together = context.Barrier(4)
    racers = [context.Process(target=_race, args=(tmp_path, together, found)) for _ in range(4)]
    for racer in racers:
        racer.start()
    assert sum(found.get(timeout=600) for _ in racers) == 50
    for racer in racers:
        racer.join()


@pytest.mark.parametrize("wrong", [[], {}, "x\0", 7, None, 1.5, ["x"]])
def test_values_of_another_kind_in_a_claim_do_no_harm(tmp_path: Path, wrong: object) -> None:
    with take(tmp_path, "task") as claim:  # type: ignore[union-attr]
        record = json.loads(claim.path.read_bytes())
        for key in record:
            claim.path.write_text(json.dumps(record | {key: wrong}).ljust(claims.RECORD_BYTES))
            assert isinstance(claims.is_alive(claim.path), bool)
            assert isinstance(progress_of(tmp_path, "task") or 0.0, float)
        (tmp_path / "task.claim-x").touch()
        clear(tmp_path)
