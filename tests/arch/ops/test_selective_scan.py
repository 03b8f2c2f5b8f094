"""Mamba1's selective scan: chunk against naive, and what the chunk backend holds in memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arch.ops import selective_scan

from .compare import DECAYS, TOLERANCE, compare, picked, randn


def example(batch, length, width, states, dtype, step_size=None):
    """dt, A, B, C, x, initial state."""
    dt = randn(batch, length, width, dtype=dtype, seed=0).abs() if step_size is None else step_size.to(dtype)
    A = -torch.arange(1, states + 1, dtype=dtype).expand(width, states).contiguous()
    B, C = (randn(batch, length, states, dtype=dtype, seed=seed) for seed in (1, 2))
    x = randn(batch, length, width, dtype=dtype, seed=3)
    return [dt, A, B, C, x, randn(batch, width, states, dtype=dtype, seed=4)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("decay", ["extremes", *DECAYS])
def test_backends_agree_at_decays_of_every_kind(decay, dtype):
    # a decay below exp(-800) is 0 in float64 too
    values = [-math.log(d) if d else 800.0 for d in (DECAYS if decay == "extremes" else [decay])]
    step_size = picked(2, 129, 6, values=values, dtype=dtype, seed=5)

    def run(backend, dt, A, B, C, x, state):
        return selective_scan(dt, A, B, C, x, state, chunk_size=16, backend=backend)

    # near 1 a decay rounds to 3e-8, which the float32 reference repeats at every step and the chunk backend does not
    tolerance = 1e-5 if decay == 1 - 1e-6 and dtype == torch.float32 else None
    compare(run, example(2, 129, 6, 5, dtype, step_size), dtype, tolerance=tolerance)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


def test_chunk_backend_never_holds_all_states():
    batch, length, width, states, rows = 2, 256, 8, 16, 16
    inputs = [x.requires_grad_() for x in example(batch, length, width, states, torch.float32)]
    kept = []

    def keep(x):
        kept.append(x.numel())
        return x

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out, _ = selective_scan(*inputs, chunk_size=rows)
        out.sum().backward()
    of_one_chunk = batch * rows * width * states
    of_all_chunk_starts = batch * (length // rows) * width * states
    inputs = [x.numel() for x in inputs[:5]]
    assert largest.numel <= max(of_one_chunk, of_all_chunk_starts, *inputs)
    assert sum(kept) <= sum(inputs) + of_all_chunk_starts


def test_step_size_of_zero_keeps_the_state():
    dt, A, B, C, x, state = example(2, 40, 6, 5, torch.float32)
    _, before = selective_scan(dt, A, B, C, x, state)
    dt, x = (torch.cat([t, pad], 1) for t, pad in ((dt, torch.zeros(2, 9, 6)), (x, torch.ones(2, 9, 6))))
    B, C = (torch.cat([t, torch.ones(2, 9, 5)], 1) for t in (B, C))
    _, after = selective_scan(dt, A, B, C, x, state)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7)
