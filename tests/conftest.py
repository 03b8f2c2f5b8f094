"""Set before any test imports torch: one thread (the number of threads changes bits), and no accelerator is assumed."""

import os
import shutil
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, by torch among others

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background jobs ignore ctrl-c and hand that on to what they start, where tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however slow the machine: a test that fails must fail for whoever tries it again.
hypothesis.settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference tables and real texts beside a checkout; not part of the repository."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no ../shared folder: reference tables and texts are not part of the repository")
    return path


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """A test that draws from torch's own generator draws the same whatever this process ran before, and no earlier
    training's way with denormals is left."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_flush_denormal(False)
