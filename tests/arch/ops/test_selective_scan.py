"""Mamba1's selective scan: chunk against naive, and what the chunk backend holds in memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arch.ops import selective_scan

from .compare import DECAYS, LENGTHS, TOLERANCE, compare, picked, randn


def example(batch, length, width, states, dtype, step_size=None):
    """dt, A, B, C, x, initial state."""
    dt = randn(batch, length, width, dtype=dtype, seed=0).abs() if step_size is None else step_size.to(dtype)
    A = -torch.arange(1, states + 1, dtype=dtype).expand(width, states).contiguous()
    B, C = (randn(batch, length, states, dtype=dtype, seed=seed) for seed in (1, 2))
    x = randn(batch, length, width, dtype=dtype, seed=3)
    return [dt, A, B, C, x, randn(batch, width, states, dtype=dtype, seed=4)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decay", ["random", "extremes", *DECAYS])
def test_backends_agree(length, decay, dtype):
    step_size = None
    if decay != "random":
        # a decay below exp(-800) is 0 in float64 too
        values = [-math.log(d) if d else 800.0 for d in (DECAYS if decay == "extremes" else [decay])]
        step_size = picked(2, length, 6, values=values, dtype=dtype, seed=5)

    def run(backend, dt, A, B, C, x, state):
        return selective_scan(dt, A, B, C, x, state, chunk_size=16, backend=backend)

    # near 1 a decay rounds to 3e-8, which the float32 reference repeats at every step and the chunk backend does not
    tolerance = 1e-5 if decay == 1 - 1e-6 and dtype == torch.float32 else None
    compare(run, example(2, length, 6, 5, dtype, step_size), dtype, tolerance=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_backends_agree_on_many_chunks(dtype):
    compare(lambda backend, *inputs: selective_scan(*inputs, backend=backend), example(1, 1000, 4, 3, dtype), dtype)


def test_recurrence_by_hand():
    """One channel, one state number, two steps."""
    dt, x = torch.tensor([[[0.5], [2.0]]]), torch.tensor([[[3.0], [-1.0]]])
    B, C = torch.tensor([[[2.0], [4.0]]]), torch.tensor([[[1.0], [10.0]]])
    out, state = selective_scan(dt, torch.tensor([[-1.0]]), B, C, x)
    first = 0.5 * 2.0 * 3.0
    second = math.exp(-2.0) * first + 2.0 * 4.0 * -1.0
    torch.testing.assert_close(out.flatten(), torch.tensor([first, 10 * second]))
    torch.testing.assert_close(state.flatten(), torch.tensor([second]))


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


def test_long_sequences_against_float64():
    """16,384 tokens with step sizes from 0 to beyond forgetting, bf16 inputs."""
    values = [0.0, 1e-6, 1e-3, 0.7, 14.0, 1e4]
    dt = picked(1, 16_384, 4, values=values, dtype=torch.float32, seed=0)
    _, A, B, C, x, _ = example(1, 16_384, 4, 16, torch.bfloat16)
    A = A.float()
    exact, exact_last = selective_scan(dt.double(), A.double(), B, C, x, backend="naive")
    out, last = selective_scan(dt, A, B, C, x)
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert ((out - exact).norm() / exact.norm()) < 4e-3  # bf16's rounding
    assert ((last - exact_last).norm() / exact_last.norm()) < 1e-6


def test_step_size_of_zero_keeps_the_state():
    dt, A, B, C, x, state = example(2, 40, 6, 5, torch.float32)
    _, before = selective_scan(dt, A, B, C, x, state)
    dt, x = (torch.cat([t, pad], 1) for t, pad in ((dt, torch.zeros(2, 9, 6)), (x, torch.ones(2, 9, 6))))
    B, C = (torch.cat([t, torch.ones(2, 9, 5)], 1) for t in (B, C))
    _, after = selective_scan(dt, A, B, C, x, state)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7)


def test_autocast_changes_no_bit():
    inputs = example(1, 40, 8, 4, torch.bfloat16)
    outside = selective_scan(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        inside = selective_scan(*inputs)
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(outside, inside, strict=True))


def test_state_carries_a_sequence_across_calls():
    dt, A, B, C, x, state = example(2, 70, 6, 5, torch.float64)
    whole, last = selective_scan(dt, A, B, C, x, state)
    first, middle = selective_scan(dt[:, :41], A, B[:, :41], C[:, :41], x[:, :41], state)
    second, end = selective_scan(dt[:, 41:], A, B[:, 41:], C[:, 41:], x[:, 41:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=1e-12, atol=1e-12)


def test_no_tokens_leave_the_state():
    dt, A, B, C, x, state = example(1, 0, 3, 2, torch.float32)
    out, last = selective_scan(dt, A, B, C, x, state)
    assert out.shape == (1, 0, 3) and torch.equal(last, state)
