"""Memory that a process freed is used again, without the system clearing its pages anew."""

import ctypes
import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from scaling.rundir.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    parts = [bytearray(4 << 20) for _ in range(4)]
    for part in parts:
        part[:: resource.getpagesize()] = b"x" * len(part[:: resource.getpagesize()])
    del parts, part
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word: str) -> int:
    return int(subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc's own"
)
def test_pages_are_cleared_once() -> None:
    pages = (4 * 4 << 20) // resource.getpagesize()
    assert faults("kept") < 3 * pages < 20 * pages < faults("returned")
