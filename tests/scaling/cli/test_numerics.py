"""The same bits of a fit's linear algebra whatever the environment says of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.cli import numerics

# a least-squares problem whose sums two threads share out; its bits, and whether numpy came before the bits were fixed
PROGRAM = """
import sys
import scaling.cli.main as main
assert "numpy" not in sys.modules
if {fixed}:
    main.fix_bits()
import numpy as np
rng = np.random.default_rng(0)
a, b = rng.standard_normal((600, 400)), rng.standard_normal((400, 500))
print((a @ b).tobytes().hex()[:20000], np.linalg.solve(b[:400, :400], a[:400]).tobytes().hex()[:20000])
print(" ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"]))
"""


def told(fixed: bool, threads: int) -> list[str]:
    names = ("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", PROGRAM.format(fixed=fixed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split("\n")


def test_threads_do_not_change_bits() -> None:
    bits, registers, _ = told(True, 1)
    assert told(True, 2) == [bits, registers, ""]
    assert not {"X86_V4", "AVX512_ICL", "AVX512_SPR"} & set(registers.split())
    if len(os.sched_getaffinity(0)) > 1:
        assert told(False, 2)[0] != bits  # so that this test could fail


def test_a_processor_without_fma_keeps_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(numerics.os, "environ", environment)
    monkeypatch.setattr(numerics, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(numerics.platform, "machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text("flags : fpu sse2\n")
    numerics.fix_bits()
    assert environment == {"OPENBLAS_NUM_THREADS": "1"}
    environment["OPENBLAS_NUM_THREADS"] = "3"  # somebody's own choice stays
    (tmp_path / "cpuinfo").write_text("flags : fpu fma avx2\n")
    numerics.fix_bits()
    assert environment.pop("NPY_DISABLE_CPU_FEATURES").startswith("X86_V4 ")
    assert environment == {"OPENBLAS_NUM_THREADS": "3", "OPENBLAS_CORETYPE": "Haswell"}
