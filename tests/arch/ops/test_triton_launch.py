"""What surrounds the launches: the GPU that is the current one, and what torch.compile is told of the results."""

from contextlib import contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from arch.ops.common import WITH_TRITON
from arch.ops.fused.cross_entropy import linear_cross_entropy

from .compare import case, randn

if not WITH_TRITON:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from triton.runtime.interpreter import GridExecutor

from arch.ops import decay_attention
from arch.ops.fused.triton import rows, ssm
from arch.ops.fused.triton import short_conv as conv

GPUS = torch.cuda.device_count()
OPERATIONS = ("decay step", "gated tied", "filter", "scan real", "selective", "angles", "functions")


def launch(name, device):
    """Every kernel of a forward pass, and those of the operators' backward passes."""
    x, y = (randn(1, 5, 6, dtype=torch.float32, seed=seed).to(device) for seed in (0, 1))
    heads = x[:, :, None]
    if name == "functions":
        steps = torch.zeros(5, 3, device=device)
        rows.Norm.apply(x, None, None, 1e-6), rows.AddNorm.apply(x, y, None, 1e-6), rows.Product.apply(x, y, "silu")
        rows.Rotate.apply(heads, heads, steps, steps), conv.ShortConv.apply(x, None, y[0, :4].T, x[0, 0], None)
        ssm.Softplus.apply(x, y[0, 0]), ssm.Scaled.apply(heads, y[:, :, :1]), ssm.Skip.apply(x, y, x, y[0, 0])
        return linear_cross_entropy(x[0], y[0], torch.arange(5, device=device), backend="triton")
    if name == "angles":
        angles = (torch.ones(1, 6, device=device), torch.arange(5, device=device))
        return decay_attention(heads.requires_grad_(), heads, heads, backend="triton", angles=angles)[0].sum()
    example = case(name, 1, 3, torch.float32)
    fixed = 2 if name == "filter" else None  # its decays have no gradient in the kernels
    leaves = [leaf.to(device).requires_grad_(index != fixed) for index, leaf in enumerate(example.inputs())]
    return sum(x.sum() for x in example.run(leaves, "triton"))


@pytest.mark.skipif(GPUS > 0, reason="for a machine without GPU: there the launches are watched")
@pytest.mark.parametrize("name", OPERATIONS)
def test_launches_stand_inside_a_choice_of_the_device(name, monkeypatch):
    chosen, launched = [], []

    @contextmanager
    def device_of(x):
        chosen.append(x)
        yield
        chosen.pop()

    run = GridExecutor.__call__
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(GridExecutor, "__call__", lambda *a, **k: (launched.append(len(chosen)), run(*a, **k))[1])
    out = launch(name, "cpu")
    if out.requires_grad:
        out.backward()
    assert launched and all(depth == 1 for depth in launched)


class Compared(TorchDispatchMode):
    """Shapes, dtypes and strides of our operators' results against those of their fake kernels."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "arch":
            with FakeTensorMode() as mode:
                said = func(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args))
            for a, b in zip(result, said, strict=True):
                assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), func
        return result


@pytest.mark.parametrize("name", OPERATIONS[:-1])
def test_fake_kernels_say_what_comes(name):
    """torch.compile lays out by them what reads the results."""
    with Compared():
        launch(name, "cuda" if GPUS else "cpu").backward()


@pytest.mark.gpu(n=2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_another_gpu_than_the_current_one(name):
    out = launch(name, "cuda:1")
    if out.requires_grad:
        out.backward()
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0 and torch.isfinite(out)
