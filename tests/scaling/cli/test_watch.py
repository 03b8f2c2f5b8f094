"""`scaling watch`: what `status` prints in a pipe, in place on a terminal, and the report while a study trains."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from scaling.cli.main import app
from scaling.cli.request import Request
from scaling.cli.status import InQueue, slow_lines, status_rows
from scaling.cli.watch import _view
from scaling.rundir.lock import study_lock
from scaling.rundir.owner import this_host
from scaling.study.spec import load_study

from .conftest import Tiny

RUN = {"state": "running", "node": this_host(), "seconds_left": 90.0, "step": 5, "n_steps": 10, "loss": 2.5}
RUN |= {"tokens_per_s": 1000.0, "pace": None, "reason": None}


@pytest.fixture(scope="module")
def own(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the finished study."""
    return Path(shutil.copytree(tiny.folder, tmp_path_factory.mktemp("copy") / "study"))


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pipe_gets_what_status_prints(own: Path) -> None:
    words = [str(own / "tiny.yaml"), "--out", str(own / "out")]
    table = printed("watch", *words)
    assert printed("status", *words).startswith(table) and table.count("done") >= 2
    assert printed("watch", *words, "--json") == printed("status", *words, "--json")


def test_a_terminal_gets_the_runs_until_nothing_works_on_the_study(own: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "scaling", "watch", str(own / "tiny.yaml"), "--out", "out"]
    command += ["--every", "1"]
    with study_lock(own / "out" / "tiny"):  # as while its corpus is made
        process = subprocess.Popen(command, cwd=own, stdout=follower, env=os.environ | {"COLUMNS": "120"})
        os.close(follower)
        shown = b""
        while "━".encode() not in shown:
            shown += os.read(leader, 4096)
        time.sleep(2)
        assert process.poll() is None
    try:
        while part := os.read(leader, 4096):
            shown += part
    except OSError:  # how a terminal ends
        pass
    assert process.wait() == 0 and "━".encode() in shown and b"next: scaling status" in shown


def test_runs_that_deserve_a_look_come_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    request = Request(load_study("four-architectures", out=tmp_path))
    states = ["done"] * 30 + ["waiting", "failed", "other settings", "running"]
    now = InQueue([RUN | {"run_id": f"r{i}", "state": state} for i, state in enumerate(states)], [])
    console = Console(file=io.StringIO(), width=120)
    console.print(_view(request, now, "report: page", height=12))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "34 runs (30 done, 1 waiting, 1 failed, 1 other settings, 1 running)" in lines[0] and len(lines) < 12
    assert [line.split()[0] for line in lines[2:6]] == ["r33", "r31", "r32", "r30"]
    assert any(line.startswith("and ") and line.strip().endswith("more runs") for line in lines)


def test_a_busy_machine_is_named() -> None:
    slow = [RUN | {"run_id": f"r{pace}", "pace": pace} for pace in (0.5, 0.74, 0.76)]
    (here, there) = slow_lines([*slow, RUN | {"run_id": "x", "pace": 0.1, "node": "gpu-7"}])
    assert here.startswith(f"busy: 2 runs are slower than before on {this_host()}, whose load is ")
    assert here.endswith("r0.5 makes 50% of its median speed")
    assert there == "busy: 1 run is slower than before on gpu-7: x makes 10% of its median speed"
    assert not slow_lines([RUN])


def test_the_report_is_drawn_beside_the_studys_own(own: Path) -> None:
    out = own / "out"
    before = (out / "tiny" / "report" / "index.html").read_bytes()
    words = ["watch", str(own / "tiny.yaml"), "--out", str(out), "--report"]
    page = out / "tiny" / "report-live" / "index.html"
    assert f"report: {page}, " in printed(*words)
    assert '<meta http-equiv="refresh"' in page.read_text() and b"http-equiv" not in before
    assert f"report: {page}, " not in printed(*words), "nothing has changed"
    assert (out / "tiny" / "report" / "index.html").read_bytes() == before


@pytest.mark.parametrize("words", [[], ["--report"]])
def test_a_study_that_was_never_run_is_watched_for_a_moment(words: list[str], tmp_path: Path) -> None:
    shown = printed("watch", "four-architectures", "--out", str(tmp_path), *words)
    assert "waiting" in shown and "nothing of this study is in" in shown
    assert ("no run has trained" in shown) == bool(words) and not list(tmp_path.iterdir())


def test_rows_have_a_pace_while_a_run_trains(tmp_path: Path) -> None:
    study = load_study("four-architectures", out=tmp_path)
    assert {row["pace"] for row in status_rows(study, study.runs())} == {None}
