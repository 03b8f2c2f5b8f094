"""A collective that waits for a process which never comes ends with a line that says rank and step."""

from __future__ import annotations

import pytest

from .. import forks

SCRIPT = """
import os, signal, sys, time
import torch
from scaling.trainer import watch
from scaling.trainer.engine import start_distributed

ranks = start_distributed("cpu")
watch.PATIENCE_S = 600.0 if ranks.rank else 2.0  # one alone notices: the other's connection would end before it does
with watch.Watch(ranks) as begun:
    for step in (6, 7):
        begun.begin(step)
        if ranks.rank and step == 7:
            HANGS_OR_FAILS
        torch.distributed.all_reduce(torch.zeros(1))
"""
HANGS = "rank 0 of 2, step 7: nothing for 2 seconds: another process hangs or is gone"


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("time.sleep(600)", HANGS),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", HANGS, marks=pytest.mark.slow),  # torchrun gives it 30 s
        ("raise RuntimeError('the kernel failed')", "rank 1 of 2, step 7: the kernel failed"),
    ],
)
def test_a_process_that_does_not_come_is_named_by_step(what: str, line: str, tmp_path) -> None:
    (tmp_path / "hang.py").write_text(SCRIPT.replace("HANGS_OR_FAILS", what))
    code, _, err = forks.run("hang", processes=2, PYTHONPATH=str(tmp_path))
    assert code != 0 and line in err, err[-2000:]
