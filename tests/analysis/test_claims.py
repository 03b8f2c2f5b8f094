"""Claims: one owner at a time, the dead make way, the living do not."""

import multiprocessing
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

from analysis.claims import clear, progress_of, take

HOLD = (
    "import sys, time, pathlib; from analysis.claims import take\n"
    "with take(pathlib.Path(sys.argv[1]), 'task') as claim:\n"
    "    claim.say(0.5); print('held', flush=True); time.sleep(60)\n"
)


def hold(directory: Path) -> "subprocess.Popen[str]":
    """A process that holds the claim, half way through."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_claim_is_one_owners_and_ends(tmp_path: Path) -> None:
    claim = take(tmp_path / "evals", "task")
    assert claim is not None
    with claim:
        assert take(tmp_path / "evals", "task") is None
        with take(tmp_path / "evals", "another"):  # type: ignore[union-attr]
            pass
        assert progress_of(tmp_path / "evals", "task") == 0
        claim.say(1)
        claim.say(0.25)
        assert progress_of(tmp_path / "evals", "task") == 0.25
    assert list((tmp_path / "evals").iterdir()) == []
    assert progress_of(tmp_path / "evals", "task") is None
    assert take(tmp_path / "evals", "task") is not None


def test_a_living_owner_keeps_its_claim_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    clear(tmp_path)
    assert take(tmp_path, "task") is None and progress_of(tmp_path, "task") == 0.5
    process.kill()
    process.wait()
    assert progress_of(tmp_path, "task") is None
    with take(tmp_path, "task"):  # type: ignore[union-attr]
        assert take(tmp_path, "task") is None and progress_of(tmp_path, "task") == 0
    (tmp_path / "left.claim").write_text("0.5")
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clear(tmp_path / "absent")


def _race(directory: Path, together: Barrier, n_held: "multiprocessing.Queue[int]") -> None:
    """Take what can be taken of 50 claims of a dead owner, at the same moment as the others; count it."""
    together.wait(600)
    held = [claim for i in range(50) if (claim := take(directory, f"task{i}")) is not None]
    n_held.put(len(held))
    together.wait(600)  # hold them all until everybody has tried


def test_a_race_for_dead_claims_has_one_winner_each(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / f"task{i}.claim").touch()
    context = multiprocessing.get_context("spawn")
    n_held: multiprocessing.Queue[int] = context.Queue()
    together = context.Barrier(4)
    racers = [context.Process(target=_race, args=(tmp_path, together, n_held)) for _ in range(4)]
    for racer in racers:
        racer.start()
    assert sum(n_held.get(timeout=600) for _ in racers) == 50
    for racer in racers:
        racer.join()
