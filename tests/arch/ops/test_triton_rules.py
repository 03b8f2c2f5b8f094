"""Which kernels run where: whose instructions, in how many segments, by which ptxas."""

from pathlib import Path

import pytest
import torch
import triton

from arch.kernel_config import decay_config, decay_segments, override, rotary_hopper_segments, rotary_segments
from arch.ops.triton import assembler, device_config
from arch.ops.triton.device_config import GLUON, decay_by_hopper_here, gated_for_device, rotary_for_device


@pytest.fixture
def device(monkeypatch):
    """A GPU: whether it is Hopper, and whether its assembler is trusted."""

    def choose(hopper, trusted):
        monkeypatch.setattr(device_config, "hopper", lambda: hopper)
        monkeypatch.setattr(device_config, "trusted_assembler", lambda: trusted)

    return choose


@pytest.mark.parametrize(
    ("widths", "exact", "expected"),
    [((128, 128), False, True), ((64, 128), False, True), ((128, 128), True, False),
     ((128, 32), False, False), ((256, 128), False, False)],  # widths at which they were not checked
)  # fmt: skip
def test_where_the_tma_kernels_run(widths, exact, expected, device):
    for hopper, trusted in ((True, True), (False, True), (True, False)):
        device(hopper, trusted)
        own = decay_by_hopper_here(decay_config(*widths, exact), *widths, exact)
        assert own is (expected and hopper and trusted)


@pytest.mark.parametrize(("hopper", "trusted"), [(True, True), (True, False), (False, True)])
def test_whose_instructions_the_rules_choose(hopper, trusted, device):
    """sm80's, which every GPU has, unless all is known to be right; only then states in registers, and Gluon."""
    device(hopper, trusted)
    own = hopper and trusted
    rules = rotary_for_device(128, 128, False)
    assert gated_for_device(128, 128, False).arch == rules.arch == (None if own else "sm80")
    assert (rules.sequential, rules.gluon) == (own, own and GLUON)
    for other in (rotary_for_device(64, 128, False), rotary_for_device(128, 128, True)):
        assert (other.arch, other.sequential, other.gluon) == ("sm80", False, False)
    assert decay_config(128, 128, False).arch == gated_for_device(128, 128, True).arch == "sm80"


def test_segments_by_the_rules(device):
    """Many sequences are not cut, few are, with angles never in two; no segment is empty."""
    device(False, False)
    decays, angles = decay_config(128, 128, exact=False), rotary_for_device(128, 128, exact=False)
    assert decay_segments(decays, 1024, 128, 128) == rotary_segments(angles, 32, 128, 128, 128) == 1
    assert decay_segments(decays, 8, 128, 128) > 1 and rotary_segments(angles, 4, 128, 128, 128) > 2
    for rows in (1, 4, 12, 32, 80):
        for chunks in (1, 7, 16, 100, 1000):
            counts = decay_segments(decays, rows, 128, chunks), rotary_segments(angles, rows, 128, 128, chunks)
            assert counts[1] != 2 and all((count - 1) * -(-chunks // count) < chunks for count in counts)
    assert [rotary_hopper_segments(angles, *sizes) for sizes in ((32, 128), (132, 128), (1, 20))] == [4, 1, 2]
    with override(segments=6):
        assert rotary_hopper_segments(rotary_for_device(128, 128, exact=False), 32, 128) == 6


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


@pytest.mark.parametrize("reason", ["older", "newer than the driver", "another machine's", "not executable"])
def test_a_package_that_is_left_out(reason, install, monkeypatch):
    before = triton.knobs.nvidia.ptxas.path
    if reason == "newer than the driver":  # which would load nothing of what it makes
        monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 98_040)
    path = Path(install("1.2" if reason == "older" else "99.1"))
    if reason in ("another machine's", "not executable"):
        path.write_bytes(b"\x7fELF of another machine")
        path.chmod(0o755 if reason == "another machine's" else 0o644)
    assert assembler.choose()[0] == before == triton.knobs.nvidia.ptxas.path


def test_the_users_choice_stands(install, tmp_path, monkeypatch):
    """Also a folder, with which kernels fail with Triton's own words, and imports do not."""
    install("99.1")
    mine = tool(tmp_path / "mine", "13.1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", mine)
    assert assembler.choose() == (mine, (13, 1))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path))
    assert assembler.choose() == ("", ())


@pytest.mark.parametrize(
    "version, expected", [((), False), ((12, 8), False), ((13, 2), False), ((13, 3), True), ((14, 0), True)]
)
def test_which_assembler_is_trusted(version, expected, monkeypatch):
    monkeypatch.setattr(assembler, "VERSION", version)
    assert assembler.trusted_assembler() is expected
