"""Claims: one owner at a time, the dead make way, the living do not."""

import multiprocessing
import subprocess
import sys
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from pathlib import Path

from analysis.claims import claimed, clear, is_taken

HOLD = (
    "import sys, time, pathlib; from analysis.claims import claimed\n"
    "with claimed(pathlib.Path(sys.argv[1]), 'task'):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


def hold(directory: Path) -> "subprocess.Popen[str]":
    """A process that holds the claim."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_claim_is_one_owners_and_ends(tmp_path: Path) -> None:
    folder = tmp_path / "evals"
    with claimed(folder, "task") as first, claimed(folder, "task") as second, claimed(folder, "another") as other:
        assert first and not second and other and is_taken(folder, "task")
    assert list(folder.iterdir()) == [] and not is_taken(folder, "task")
    with claimed(folder, "task") as again:
        assert again


def test_a_living_owner_keeps_its_claim_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    clear(tmp_path)
    with claimed(tmp_path, "task") as is_ours:
        assert not is_ours and is_taken(tmp_path, "task")
    process.kill()
    process.wait()
    assert not is_taken(tmp_path, "task")
    with claimed(tmp_path, "task") as is_ours, claimed(tmp_path, "task") as twice:
        assert is_ours and not twice
    (tmp_path / "left.claim").touch()
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clear(tmp_path / "absent")


def _race(directory: Path, together: Barrier, n_held: "multiprocessing.Queue[int]") -> None:
    """Take what can be taken of 50 claims of a dead owner, at the same moment as the others; count it."""
    together.wait(600)
    with ExitStack() as held:
        n_held.put(sum(held.enter_context(claimed(directory, f"task{i}")) for i in range(50)))
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
