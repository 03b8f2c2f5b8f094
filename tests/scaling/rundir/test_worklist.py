"""Why a run's process ended: in one line, from its exit code, what it wrote down and its log."""

from pathlib import Path

import pytest

from data.files import new_directory
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import prepare_run
from scaling.rundir.versions import package_versions
from scaling.rundir.worklist import reason_of
from scaling.study.spec import load_study

TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
scaling.trainer.process FAILED
  exitcode  : {code} (pid: 17)
  traceback : {why}
"""
RAISED = """Traceback (most recent call last):
  File "loop.py", line 3, in step
RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer
"""
LINK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    run = load_study("four-architectures").runs("arch=tnl,size=14k,seed=0")[0]
    return prepare_run(tmp_path / run.run_id, run, "f" * 64, package_versions(), "0" * 64)


@pytest.mark.parametrize(
    ("code", "log", "message"),
    [
        (-9, "", "its process was killed by signal 9; run it again"),
        (1, "", "its process ended with exit code 1; run it again"),
        (1, RAISED, "exit code 1 (RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer); run it"),
        (1, RAISED + TORCHRUN.format(code=1, why=LINK), "(RuntimeError: [gloo"),
        (1, RAISED + TORCHRUN.format(code=-11, why="Signal 11 (SIGSEGV) received by PID 17"), "(Signal 11 (SIGSEGV));"),
        (2, "corpus: fine\nerror: a.yaml: no such field\n", "a.yaml: no such field"),
        (1, "error: runs/a: the disk is full\n" * 2 + TORCHRUN.format(code=2, why=LINK), "runs/a: the disk is full"),
    ],
)
def test_the_reason_names_what_ended_the_process(rundir: RunDir, code: int, log: str, message: str) -> None:
    rundir.log.write_text(log)
    reason = str(reason_of(code, rundir.path))
    assert message in reason and ("its process" in reason) == ("error: " not in log)


def test_a_run_whose_process_dies_after_all_is_written_is_done(rundir: RunDir) -> None:
    run = rundir.spec()
    rundir.log.write_text(RAISED)
    rundir.write_status("done", run.n_steps, run.n_tokens, None, None)
    assert reason_of(1, rundir.path) is not None  # its last checkpoint is not there
    with new_directory(rundir.checkpoint(run.n_steps), {"step": run.n_steps, "spec_hash": run.spec_hash}):
        pass
    assert reason_of(1, rundir.path) is None and reason_of(-6, rundir.path) is None


def test_a_run_that_never_began_is_not_done(rundir: RunDir) -> None:
    assert not rundir.log.exists()
    for code in (0, 75):
        assert f"ended with exit code {code}; run it again" in str(reason_of(code, rundir.path))


def test_a_process_that_could_not_even_write_why_it_ended_met_a_full_disk(tmp_path: Path) -> None:
    reason = reason_of(2, tmp_path)
    assert reason is not None and "No space left on device" in reason and str(tmp_path / "train.log") in reason
    (tmp_path / "train.log").write_text("starts\nerror: the corpus is gone\n")
    assert reason_of(2, tmp_path) == "the corpus is gone"
