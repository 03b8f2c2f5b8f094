"""Softmax attention as a recurrence (the paper's eq. 2) against PyTorch's attention: outputs and all gradients."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from arch.ops.softmax_recurrence import softmax_recurrence


def inputs(length, dtype=torch.float64, size=1.0):
    generator = torch.Generator().manual_seed(length)
    widths = (6, 6, 10)  # q, k, v
    tensors = [torch.randn(2, length, 3, width, dtype=torch.float64, generator=generator) for width in widths]
    return [(x * scale).to(dtype) for x, scale in zip(tensors, (size, size, 1.0), strict=True)]


def attention(q, k, v):
    return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


def with_gradients(function, tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


@pytest.mark.parametrize("length", [1, 2, 7, 64, 129])
def test_equals_attention_in_float64(length):
    expected, actual = (with_gradients(f, inputs(length)) for f in (attention, softmax_recurrence))
    for reference, ours in zip(expected, actual, strict=True):
        assert (ours - reference).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_large_logits_do_not_overflow(dtype):
    """Logits of a few thousand, whose exponentials no format holds."""
    tensors = inputs(40, dtype, size=50.0)
    expected, actual = (with_gradients(f, tensors) for f in (attention, softmax_recurrence))
    logits = tensors[0] @ tensors[1].transpose(-1, -2)
    assert logits.abs().max() / 6**0.5 > 2000
    for reference, ours in zip(expected, actual, strict=True):
        assert torch.isfinite(ours).all()
        tolerance = 1e-10 if dtype == torch.float64 else 2e-3  # a logit of 4000 in fp32 is known to 2e-4
        assert (ours - reference).norm() <= tolerance * reference.norm()


def test_rising_and_falling_logits():
    """Each key far above, or far below, all before it: the running maximum moves at every step, or never."""
    slope = 1000.0 * torch.arange(20, dtype=torch.float64)[None, :, None, None]
    q, v = torch.ones(1, 20, 1, 1, dtype=torch.float64), torch.randn(1, 20, 1, 4, dtype=torch.float64)
    assert torch.equal(softmax_recurrence(q, slope, v), v)
    assert torch.equal(softmax_recurrence(q, -slope, v), v[:, :1].expand_as(v))


def test_dtypes_and_an_empty_sequence():
    q, k, v = inputs(33, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = softmax_recurrence(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, softmax_recurrence(q.float(), k.float(), v.float()).bfloat16())
    assert softmax_recurrence(*(x[:, :0] for x in (q, k, v))).shape == (2, 0, 3, 10)
