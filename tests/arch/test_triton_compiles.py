"""Every kernel compiles for an A100 and an H100 at all head sizes, and its tiles fit their shared memory."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from ..conftest import ROOT

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

SHARED = {80: 163, 90: 227}  # KiB that a program may have


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    "name", ["hgrn2", "gla", "tnl", "cosformer2", "mamba2", "hgrn1", "hgrn1-complex", "mamba1", "tpe"]
)
def test_tiles_fit(name, width, capability, tmp_path):
    if width != 128 and name in ("hgrn1", "hgrn1-complex", "mamba1"):
        pytest.skip("these have no heads")
    if (name, width) == ("cosformer2", 256):
        pytest.skip("keys of 256 channels with angles take the chunk form")
    compiled(name, width, capability, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("interval", [1, 2])
def test_variants_with_angles_fit(width, capability, interval, tmp_path):
    sizes = {"prepared": True, "kept": True, "shared_weights": True, "overlap": "dq", "interval": interval}
    compiled("cosformer2", width, capability, tmp_path, **sizes | ({"state_stages": 3} if interval == 2 else {}))


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("sizes", [{}, {"run_tile": 64, "run_piece": 32, "run_warps": 4, "run_stages": 2}], ids=str)
def test_runs_with_angles_fit(sizes, width, tmp_path):
    compiled("cosformer2-silu", width, 90, tmp_path, runs=True, activation="gradient", **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize(("name", "width"), [("tnl-silu", 128), ("cosformer2-silu", 16), ("cosformer2-silu", 128)])
@pytest.mark.parametrize("activation", ["gradient", "inside"])
def test_silu_of_queries_and_keys_fits(activation, name, width, capability, tmp_path):
    compiled(name, width, capability, tmp_path, activation=activation)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_silu_inside_fits(width, capability, tmp_path):
    compiled("hgrn2-silu", width, capability, tmp_path, activation="inside", products=True)


def compiled(name, width, capability, tmp_path, **sizes):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.arch.compile_kernels", str(capability), name, str(width), json.dumps(sizes)],
        cwd=ROOT, env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    kernels = [json.loads(line) for line in found.stdout.splitlines()]
    assert kernels, "nothing was launched"
    for kernel in kernels:
        assert kernel["shared"] <= SHARED[capability] * 1024, kernel
