"""The kernels on tensors that are columns of one (joint_rows.py), against the same tensors each by itself: outputs and
gradients bit for bit, and the gradients beside each other. In the interpreter, and on a GPU in bf16."""

import importlib.util

import pytest
import torch

from arch.model.positions import rotation
from arch.ops import decay_attention, gated_attention
from arch.ops.joint_rows import joint_width

from .compare import randn

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override
from arch.ops.fused.triton.rows import Rotate

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
B, T, H, D = 2, 41, 2, 32 if not GPU else 64


def gated(activation, scale):
    """scale: of the logits; where it is not 1 they, and then q, are tensors of their own."""
    bound = torch.linspace(0, 0.9, H * D).reshape(H, D).to(DEVICE)

    def call(q, v, logits):
        logits = logits if scale == 1 else scale * logits
        return gated_attention(q, None, v, (logits, bound), backend="triton", activation=activation)

    return call


def own_keys(q, k, v, f):
    return gated_attention(q, k, v, -f.float().exp(), backend="triton")


def decay(activation, per_step):
    decays = torch.tensor([-0.3, -0.01]).to(DEVICE)
    decays = decays * (1 + torch.arange(T, device=DEVICE) % 3)[None, :, None] if per_step else decays

    def call(q, k, v):
        return decay_attention(q, k, v, decays.expand(B, T, H) if per_step else decays, backend="triton",
                               activation=activation)  # fmt: skip

    return call


def rotary(with_decays):
    theta, positions = torch.rand(H, D, generator=torch.Generator().manual_seed(0)).to(DEVICE), torch.arange(T)
    decays = torch.tensor([-0.3, -0.01]).to(DEVICE) if with_decays else None

    def call(q, k, v):
        angles = (theta, positions.to(DEVICE))
        return decay_attention(q, k, v, decays, backend="triton", angles=angles, activation="silu")

    return call


def rotate(q, k):
    cos, sin = rotation(10_000.0 ** -torch.linspace(0, 1, D // 2), torch.arange(T))
    return Rotate.apply(q, k, cos.to(DEVICE), sin.to(DEVICE))


CALLS = {
    "gated": (gated("", 4), 3, {}, 1),
    "gated silu": (gated("silu", 1), 3, {}, 3),
    "gated own keys": (own_keys, 4, {}, 1),
    "decay": (decay("", False), 3, {}, 3),
    "decay silu": (decay("silu", False), 3, {"tma": True}, 3),
    "decay silu portable": (decay("silu", False), 3, {"tma": False}, 1),
    "decay steps": (decay("", True), 3, {}, 3),
    "decay segments": (decay("", False), 3, {"segments": 2, "tma": False}, 3),
    "decay tma segments": (decay("", False), 3, {"segments": 2, "tma": True}, 3),
    "rotary": (rotary(False), 3, {}, 3),
    "rotary runs": (rotary(False), 3, {"sequential": True}, 3),
    "rotary decays": (rotary(True), 3, {}, 3),
    "rotate": (rotate, 2, {}, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_columns_of_one_tensor(name):
    """Others stand in front of the columns that are read. The last number of a case: of so many inputs the gradient
    lies beside others; the rest were copied to tensors of their own first."""
    call, count, sizes, beside = CALLS[name]
    width = H * D
    whole = randn(B, T, 16 + count * width, dtype=torch.float32, seed=0).to(DEVICE, torch.bfloat16 if GPU else None)
    weight = randn(B, T, H, D, dtype=torch.float32, seed=1).to(whole)
    results = []
    for apart in (False, True):
        _, *leaves = whole.split([16, *[width] * count], -1)
        leaves = [x.unflatten(-1, (H, D)).detach() for x in leaves]
        assert all(joint_width(x) == whole.shape[-1] for x in leaves)
        leaves = [(x.contiguous() if apart else x).requires_grad_() for x in leaves]
        with override(chunk=16, **sizes) if not GPU else override(**sizes):
            outputs = call(*leaves)
            total = sum((out * weight).sum() for out in outputs if out.shape == weight.shape)
            gradients = torch.autograd.grad(total, leaves)
        results.append([*outputs, *gradients])
        if not apart:
            found = [x for x in gradients if joint_width(x) == whole.shape[-1]]
            assert len(found) == beside
            assert len({x.untyped_storage().data_ptr() for x in found}) <= 1
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
