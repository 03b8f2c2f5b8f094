"""What tests of the Gluon kernels have in common: where they run, and what passes for the GPU that they need."""

import pytest
import torch

from arch.ops.fused import linear
from arch.ops.triton import device_config

from . import gluon_emulator as emulator

GPU = torch.cuda.is_available()
HOPPER = pytest.mark.skipif(
    not (GPU and device_config.GLUON and device_config.hopper_instructions(exact=False)),
    reason="needs a Hopper GPU with the Triton that Gluon kernels ran with",
)
ON_A_CPU = pytest.mark.skipif(GPU, reason="the emulator is beside Triton's interpreter")


def pass_for_hopper(monkeypatch):
    """CPU tensors take the kernels of a Hopper GPU."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(device_config, "hopper_instructions", lambda exact: not exact)
    monkeypatch.setattr(device_config, "GLUON", True)


def launch_emulated(monkeypatch, launcher, kernels):
    """The launches of the module `launcher` run these emulated kernels, by name, two programs at most."""
    for name, kernel in kernels.items():
        monkeypatch.setattr(launcher, name, emulator.Launch(kernel))
    monkeypatch.setattr(launcher, "blocks", emulator.Descriptor)
    monkeypatch.setattr(launcher, "grid_of", lambda x, tiles: (min(2, tiles),))


def randn(*shape, seed, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)
