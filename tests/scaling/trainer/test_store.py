"""The processes of a run wait for each other a bounded time, say for whom, and end on a signal meanwhile."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.rundir.directory import RunDir
from scaling.rundir.worklist import EXIT_INPUT, EXIT_STOPPED

from ...jobs.studies import study_file
from .. import forks
from ..forks import Forked
from ..small_runs import make_run, start, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def address() -> Iterator[dict[str, str]]:
    """Of a port without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}


def says(process: Forked, word: str) -> str:
    """Its stderr, once there is a whole line with `word`."""
    while not (word in (err := process.printed()[1]) and err.endswith("\n")):
        assert process.poll() is None, err
        time.sleep(0.05)
    return err


def test_a_process_without_its_peers_says_so_and_ends_on_a_signal(run: RunDir, address: dict[str, str]) -> None:
    """A pod's variables and no peers: it waited for ever without a word."""
    with socket.socket() as free:  # rank 0 opens the port itself
        free.bind(("127.0.0.1", 0))
        ports = {0: str(free.getsockname()[1]), 3: address["MASTER_PORT"]}
    started = {
        rank: start(run, **address | {"RANK": str(rank), "WORLD_SIZE": "8", "MASTER_PORT": port})
        for rank, port in ports.items()
    }
    try:
        for rank, number in ((0, signal.SIGTERM), (3, signal.SIGUSR1)):
            process, where = started[rank], f"127.0.0.1:{ports[rank]}"
            what = f"rank 0 at {where}" if rank else f"ranks 1, 2, 3, 4, 5 and 2 more at {where}"
            assert f"rank {rank} of 8: waiting for {what}, for up to 600 s" in says(process, "waiting for")
            begun = time.monotonic()
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            assert time.monotonic() - begun < 30
            assert process.returncode == EXIT_STOPPED and err.count("\n") == 2, err
            assert f"stopped by {signal.Signals(number).name}: rank {rank} of 8 was waiting for {what}" in err
    finally:
        for process in started.values():
            process.send_signal(signal.SIGKILL)
    assert run.status()["state"] == "waiting", "nothing was trained"


PATIENT = """
import sys
from scaling.trainer import process, store
store.PATIENCE_S = 1.0
process.end_with(process.main)
"""


def test_the_wait_is_bounded(run: RunDir, address: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    second = {"RANK": "1", "WORLD_SIZE": "2", "PYTHONPATH": str(tmp_path)} | address
    code, _, err = forks.run("patient", str(run.path), "--device", "cpu", **second)
    assert code == EXIT_INPUT and err.count("\n") == 1, err
    assert "error: rank 1 of 2: rank 0 at 127.0.0.1:" in err and "did not come in 1 s" in err


def test_a_port_that_is_taken_is_one_line(run: RunDir) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = train(run, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert code == EXIT_INPUT and "rank 0 of 2: cannot reach the other processes" in err and "Traceback" not in err, err


def test_nonsense_of_a_launcher_is_one_line(run: RunDir, address: dict[str, str]) -> None:
    code, _, err = train(run, **{"RANK": "2", "WORLD_SIZE": "2"} | address)
    assert code == EXIT_INPUT and err.startswith("error: environment: ") and err.count("\n") == 1, err


PODS = {
    **{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "29500"},
    **{"PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_RDZV_ENDPOINT": "10.255.255.1:29500", "GROUP_RANK": "3"},
    **{"TORCHELASTIC_USE_AGENT_STORE": "True", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
    **{"PMI_RANK": "3", "PMI_SIZE": "8", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"},
}


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_command_that_starts_trainers_hands_none_of_it_on(tmp_path: Path, processes: int) -> None:
    grid = {"archs": ["llama"], "sizes": ["6k"]}
    study = study_file(tmp_path, ["6k"], grid=grid, jobs={"processes": processes})
    code, out, err = forks.run("scaling", "train", str(study), **PODS)
    assert code == 0, out + err
    assert err.splitlines()[0] == (
        "the environment's GROUP_RANK, MASTER_ADDR, MASTER_PORT and 8 more: not used, since this command starts its "
        "processes itself (jobs.processes of the study says how many a run has)"
    )
    assert RunDir(tmp_path / "out/tiny/runs/llama-6k-c64-s0").status()["state"] == "done"
