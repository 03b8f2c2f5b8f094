"""Every kernel compiles for an A100 and an H100 at all head sizes, and its tiles fit their shared memory."""

import json
import os
import subprocess
import sys

import pytest

from arch.config import ARCHS
from arch.ops.triton.assembler import version_of
from arch.ops.triton.device_config import CHECKED, GLUON

from ...conftest import ROOT

SHARED = {80: 163, 90: 227}  # KiB that a program may have


def compiled(name, width, capability, folder, **sizes):
    """Names of the kernels launched, all of which fit; sizes: of kernel_config."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.arch.ops.compile_kernels", str(capability), name, str(width), json.dumps(sizes)],
        env=environment | {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    kernels = [json.loads(line) for line in result.stdout.splitlines()]
    assert kernels, "nothing was launched"
    for kernel in kernels:
        assert kernel["shared"] <= SHARED[capability] * 1024, kernel
    return {kernel["kernel"] for kernel in kernels}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    "name",
    [
        "hgrn2-silu",
        "gla",
        "tnl-silu",
        "cosformer2-silu",
        "mamba2",
        "gated-deltanet",
        "kimi-delta",
        "deltanet",
        "hgrn1",
        "hgrn1-complex",
        "mamba1",
        "tpe",
    ],
)
def test_tiles_fit(name, width, capability, tmp_path):
    if width != 128 and name in ("hgrn1", "hgrn1-complex", "mamba1"):
        pytest.skip("these have no heads")
    if (name, width) == ("cosformer2-silu", 256):
        pytest.skip("keys of 256 channels with angles take the chunk backend")
    kernels = compiled(name, width, capability, tmp_path)
    runs = (name, width, capability) == ("cosformer2-silu", 128, 90)
    assert ("rotary_hopper_keys" in kernels) == runs
    assert ("rotary_hopper_values_gluon" in kernels) == (runs and GLUON)


def test_gluon_runs_with_the_triton_that_an_install_brings():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    assert version_of(pins["triton"]) in CHECKED


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize("arch", ARCHS)
def test_whole_models_compile(arch, width, capability, tmp_path):
    """With what stands around the sequence operations: tests run those kernels in the interpreter, which takes more
    than a compiler does."""
    kernels = compiled(f"model:{arch}", width, capability, tmp_path)
    assert {"norm_forward", "norm_backward", "cross_entropy", "scale"} <= kernels


@pytest.mark.slow
def test_states_of_chunks_fit_hopper_too(tmp_path):
    """With angles, by its own instructions: what runs where there are decays."""
    assert "rotary_backward" in compiled("cosformer2-silu", 128, 90, tmp_path, sequential=False)


@pytest.mark.slow
def test_values_in_triton_fit_hopper_too(tmp_path):
    """Where this Triton's Gluon is not known."""
    assert "rotary_hopper_values" in compiled("cosformer2-silu", 128, 90, tmp_path, gluon=False)
