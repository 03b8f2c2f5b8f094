"""What a process on a CPU does with memory that it has freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT, LARGE = 1 << 28, 1 << 25  # bytes


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB that it freed, and take pieces below 32 MiB from there: small models give
    their activations back and ask for them again all the time, and the system would clear every page in between. Does
    nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
