"""The bits of fits do not depend on a machine's cores, nor on which of today's x86 processors it has. Imports nothing
heavy."""

from __future__ import annotations

import os
import platform

# Sums of several threads, and those of longer registers, add up in another order. AVX2 with FMA is what every x86
# processor of the last ten years has; names of features that a version of numpy does not know are passed over.
LONGER_REGISTERS = "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"
CPUINFO = "/proc/cpuinfo"


def fix_bits() -> None:
    """Set before numpy is imported; what the environment says already stays."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if platform.machine() == "x86_64" and _has_avx2():
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
        os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", LONGER_REGISTERS)


def _has_avx2() -> bool:
    try:
        with open(CPUINFO, encoding="utf-8") as handle:
            flags = next((line.split() for line in handle if line.startswith("flags")), [])
    except OSError:
        return False
    return "avx2" in flags and "fma" in flags
