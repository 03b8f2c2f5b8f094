"""Which ptxas compiles the kernels: a package's where it is newer, unless the user names one."""

import importlib.util
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

import triton

from arch.ops.triton import assembler


def tool(path, version):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {version}, V{version}.0"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package of that version whose ptxas says that it is of it, found first; afterwards all is as before."""
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")  # so that it is put back
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 99_000, raising=False)

    def make(version):
        ptxas = tool(tmp_path / "nvidia/cu13/bin/ptxas", version)
        about = tmp_path / f"nvidia_cuda_nvcc-{version}.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-cuda-nvcc\nVersion: {version}.0\n")
        (about / "RECORD").write_text("nvidia/cu13/bin/nvlink,,\nnvidia/cu13/bin/ptxas,,\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return ptxas

    with triton.knobs.nvidia.scope():
        yield make


def test_a_newer_package_is_used(install):
    path = install("99.1")
    assert assembler.choose() == (path, (99, 1))
    assert triton.knobs.nvidia.ptxas.path == path


def test_a_package_newer_than_the_driver_is_not(install, monkeypatch):
    """Which would load nothing of what it makes."""
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 98_040)
    before = triton.knobs.nvidia.ptxas.path
    install("99.1")
    assert assembler.choose()[0] == before == triton.knobs.nvidia.ptxas.path


def test_an_older_package_is_not(install):
    before = triton.knobs.nvidia.ptxas.path
    install("1.2")
    assert assembler.choose()[0] == before == triton.knobs.nvidia.ptxas.path


def test_the_users_choice_stands(install, tmp_path, monkeypatch):
    install("99.1")
    mine = tool(tmp_path / "mine", "13.1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", mine)
    assert assembler.choose() == (mine, (13, 1))


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_package_that_cannot_run_is_left_out(install, mode):
    """Of another kind of machine, or not executable."""
    before = triton.knobs.nvidia.ptxas.path
    broken = Path(install("99.1"))
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(mode)
    assert assembler.choose()[0] == before == triton.knobs.nvidia.ptxas.path


def test_what_cannot_run_is_no_assembler_to_trust(tmp_path, monkeypatch):
    """TRITON_PTXAS_PATH names a folder: kernels compile with it or fail with Triton's own words, imports do not."""
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path))
    assert assembler.choose() == ("", ())
    monkeypatch.setattr(assembler, "VERSION", ())
    assert not assembler.trusted_assembler()


@pytest.mark.parametrize("version, expected", [((12, 8), False), ((13, 2), False), ((13, 3), True), ((14, 0), True)])
def test_who_is_trusted(version, expected, monkeypatch):
    monkeypatch.setattr(assembler, "VERSION", version)
    assert assembler.trusted_assembler() is expected
