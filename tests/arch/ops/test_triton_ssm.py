"""What stands around the recurrences of Mamba1 and Mamba2, by kernels: outputs and gradients against plain PyTorch in
float64."""

import pytest
import torch

from arch.ops.common import WITH_TRITON
from arch.ops.fused.pointwise import scaled, skip_gated, softplus

from .test_triton_fused import DEVICE, both, inputs

if not WITH_TRITON:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.fused.triton import ssm


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that sizes are no multiples of a tile's, and programs take several tiles."""
    monkeypatch.setattr(ssm, "TILE", 64)
    monkeypatch.setattr(ssm, "CHANNELS", 16)
    monkeypatch.setattr(ssm, "SHARES", 2)


@pytest.mark.parametrize("cut", [slice(None), slice(3, 24)])
def test_softplus(cut):
    """Of a slice too."""
    width = len(range(29)[cut])
    both(
        lambda x, b: ssm.Softplus.apply(x[..., cut], b),
        lambda x, b: softplus(x[..., cut], b),
        *inputs((2, 7, 29), (width,)),
    )


def test_one_token_of_several_sequences():
    """Of [1, B, C] and its first two axes exchanged: the strides of a lone token may be anything."""
    x, bias = inputs((1, 5, 29), (29,))
    both(ssm.Softplus.apply, softplus, x.transpose(0, 1), bias)


def test_softplus_of_large_and_small():
    """Each result for itself, down to 1e-35, of which a GPU's power of 2 takes a rounded exponent."""
    x = torch.linspace(-80, 80, 2001).view(1, -1, 3)
    result = ssm.Softplus.apply(x.to(DEVICE), torch.zeros(3, device=DEVICE)).cpu().double()
    expected = torch.nn.functional.softplus(x.double(), threshold=1000)
    assert ((result / expected - 1).abs() < 2e-6 + 7.5e-8 * x.double().neg().clamp(min=0)).all()


@pytest.mark.parametrize("head", [4, 12])
def test_scaled_values(head):
    """Values in a slice of a wider tensor, which are read again beside."""
    shape = (2, 5, 3, head)

    def split(x):
        return x[..., 2 : 2 + 3 * head].unflatten(2, shape[2:])

    def of(function):
        return lambda x, dt: function(split(x), dt)

    both(of(ssm.Scaled.apply), of(scaled), *inputs((2, 5, 3 * head + 3), (2, 5, 3)))


@pytest.mark.parametrize("rows", [(1, 9), (2, 7)])
def test_skip_and_gate(rows):
    """Values and gates in slices of wider tensors."""

    def of(function):
        return lambda o, v, z, skip: function(o, v[..., 2:23], z[..., 5:26], skip)

    both(of(ssm.Skip.apply), of(skip_gated), *inputs((*rows, 21), (*rows, 30), (*rows, 30), (21,)))


@pytest.mark.parametrize("weighted", [True, False])
def test_skip_gate_and_norm(weighted):
    """In one kernel; of rows whose sizes are apart by a thousand."""

    def by_kernel(o, v, z, skip, *weight):
        return ssm.Skip.apply(o, v, z, skip, *(weight or (None,)), 1e-5)

    def reference(o, v, z, skip, *weight):
        out = skip_gated(o, v, z, skip)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)
        return out * weight[0] if weight else out

    given = inputs((2, 7, 21), (2, 7, 21), (2, 7, 21), (21,), *([(21,)] if weighted else []))
    given[0][:, ::2] *= 1000
    both(by_kernel, reference, *given)
