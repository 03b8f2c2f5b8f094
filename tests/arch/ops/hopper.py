"""What tests of the Gluon kernels share: where they run, what passes for the GPU that they need, their emulation."""

import random

import pytest
import torch

from arch.ops.fused import linear
from arch.ops.fused.triton import mlp, projections, sum_norm
from arch.ops.triton import device_config

from . import gluon_emulator as emulator

GPU = torch.cuda.is_available()
HOPPER = pytest.mark.skipif(
    not (GPU and device_config.GLUON and device_config.hopper_instructions(exact=False)),
    reason="needs a Hopper GPU with the Triton that Gluon kernels ran with",
)
ON_A_CPU = pytest.mark.skipif(GPU, reason="the emulator is beside Triton's interpreter")
LAUNCHERS = {  # module of launches, that of each kernel
    mlp: {"up_gate": "mlp_forward", "gate_gradients": "mlp_backward"},
    projections: {"project_silu": "projections_kernel"},
    sum_norm: {"product_sum_norm": "sum_norm_kernel", "product_norm_gradients": "sum_norm_kernel"},
}


def pass_for_hopper(monkeypatch):
    """CPU tensors take the kernels of a Hopper GPU."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(device_config, "hopper_instructions", lambda exact: not exact)
    monkeypatch.setattr(device_config, "GLUON", True)


def set_programs(monkeypatch, grid_of):
    for launcher in LAUNCHERS:
        monkeypatch.setattr(launcher, "grid_of", grid_of)


def emulate(monkeypatch):
    """Launches run the emulated kernels, two programs at most."""
    names = ["mlp_parts", *dict.fromkeys(module for kernels in LAUNCHERS.values() for module in kernels.values())]
    modules = dict(zip(names, emulator.emulated(*(f"arch.ops.fused.triton.{name}" for name in names)), strict=True))
    for module in modules.values():
        if hasattr(module, "sigmoid"):
            monkeypatch.setattr(module, "sigmoid", torch.sigmoid)
    for launcher, kernels in LAUNCHERS.items():
        for kernel, module in kernels.items():
            monkeypatch.setattr(launcher, kernel, emulator.Launch(getattr(modules[module], kernel)))
        monkeypatch.setattr(launcher, "blocks", emulator.Descriptor)
    set_programs(monkeypatch, lambda x, tiles: (min(2, tiles),))
    random.seed(0)


def randn(*shape, seed, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)
