"""`decay_attention`'s kernels in Triton's interpreter with a GPU's roundings: as exact as the chunk backend with the
same.

The interpreter's own bf16 is wrong; operands of products and the states that are kept are rounded here.
"""

import importlib.util

import numpy as np
import pytest
import torch

from arch.bench.measure import gradients
from arch.ops import decay_attention

from .compare import assert_as_exact_as_the_chunk_backend, picked, randn
from .test_triton import GPU

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from triton.runtime import interpreter

from arch.kernel_config import override

DECAYS = (0.0, -1e-6, -0.02, -0.7, -14.0, -float("inf"))

pytestmark = pytest.mark.skipif(GPU, reason="for the interpreter; a GPU rounds by itself: test_triton_decay_bf16.py")


def nearest(x):
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16()


@pytest.fixture
def rounding(monkeypatch):
    convert, new = interpreter._convert_float, torch.Tensor.new_empty

    def dot(self, a, b, d, *_):
        left, right = (nearest(x.data).float().numpy() for x in (a, b))
        return interpreter.TensorHandle(left @ right + d.data, d.dtype.scalar)

    def converted(x, before, after, mode):  # which cuts off instead
        if (before.name, after.name) == ("fp32", "bf16"):
            return nearest(x).view(torch.uint16).numpy()
        return convert(x, before, after, mode)

    def new_empty(self, *shape, **options):
        """States, [BH, chunks, .., ..], are made like the values, which the interpreter has in fp32."""
        return new(self, *shape, **({"dtype": torch.bfloat16} if len(shape) == 4 else {}) | options)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.mark.parametrize("kernels", ["plain", "tma", "rotated"])
@pytest.mark.usefixtures("rounding")
def test_as_exact_as_the_chunk_backend_with_its_roundings(kernels):
    """One row, between two states that are given in fp32."""
    batch, length, heads, width = 6, 1, 2, 16
    rotated = kernels == "rotated"
    q, k, v, weight = (randn(batch, length, heads, width, dtype=torch.float32, seed=seed) for seed in range(4))
    q, k = q / 2, k / 2
    state = randn(batch, heads, width * (2 if rotated else 1), width, dtype=torch.float32, seed=4)
    log_decay = picked(batch, length, heads, values=DECAYS, dtype=torch.float32, seed=5)
    leaves, names = (
        [q.bfloat16(), k.bfloat16(), v.bfloat16(), log_decay, state],
        ["out", "q", "k", "v", "decay", "state"],
    )
    if rotated:
        leaves.append(torch.linspace(0.1, 2, heads * width).view(heads, width))
        names.append("theta")
    ones = torch.cat([weight.flatten(), randn(state.numel(), dtype=torch.float32, seed=6)])
    config = {"chunk": 16} if rotated else {"chunk": 16, "tma": kernels == "tma"}

    def run(backend, inputs):
        def call(x):
            angles = (x[5], torch.arange(1, length + 1)) if rotated else None
            result = decay_attention(*x[:5], backend=backend, angles=angles)
            return torch.cat([y.double().flatten() for y in result])

        with override(**config):
            return gradients(call, inputs, ones.double())

    assert_as_exact_as_the_chunk_backend(run, leaves, names)
