"""Work on several cores: the same results in the same order, and nobody left behind."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from analysis.design.choose import simulate
from analysis.design.cores import on_cores
from analysis.design.proposal import laid
from analysis.design.worlds import Noise, Scenario, World
from analysis.fits.cost import six_nd
from arch.errors import InputError

WORLDS = [World("fitted", 1.5, 0.34, 0.28, 0.6, 0.7, 0.0, seed) for seed in range(4)]


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def refuse(what: str) -> None:
    raise InputError(what)


def test_studies_are_the_same_on_any_number_of_cores():
    proposal = laid(3e5, 6, 32.0, 40.0, 1.0, (3, -2), 1e9)
    study = partial(simulate, proposal, Scenario(WORLDS, Noise(0.003), six_nd(), 5e15), 0)
    with on_cores(1) as alone, on_cores(2) as two:
        assert alone is map
        assert study(each=two) == study(each=alone) == study()
        assert len({*two(pid_after, [0.3] * 4)} - {os.getpid()}) == 2
        with pytest.raises(InputError, match="no such thing"):
            list(two(refuse, ["no such thing"]))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import time\n"
        "from analysis.design.cores import on_cores\n"
        "from tests.analysis.design.test_cores import pid_after\n"
        "if __name__ == '__main__':\n"
        "    with on_cores(2) as each:\n"
        "        print(*set(each(pid_after, [0.3] * 4)), flush=True)\n"
        "        time.sleep(60)\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2 and all(map(alive, workers))
        parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, workers))
