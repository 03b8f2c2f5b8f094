"""The operations at their limits: every length, saturated gates, decays of 0 and 1, long sequences, all head shapes."""

import math

import pytest
import torch

from arch.ops import causal_filter, decay_attention, gated_attention, scan, selective_scan

from .compare import CASES, DECAYS, TOLERANCE, assert_close, case, compare, picked, randn, with_gradients

LOG_DECAYS = [math.log(decay) if decay else -math.inf for decay in DECAYS]
LONG = 16_384
SUMS = {torch.float64: 1e-10, torch.float32: 1e-5}  # a thousand steps


@pytest.mark.parametrize("name", CASES)
def test_a_state_carries_a_sequence_across_calls(name):
    """Two pieces after each other, and then no token at all, which leaves the state as it is."""
    whole = case(name, 2, 70, torch.float64)

    def piece(start, stop, state):
        return whole.run([*(x[:, start:stop] for x in whole.sequences), *whole.constants, state])

    expected, last = whole.run(whole.inputs())
    first, state = piece(0, 41, whole.state)
    second, state = piece(41, 70, state)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)
    out, same = piece(70, 70, state)
    assert out.shape[1] == 0 and torch.equal(same, state)


@pytest.mark.parametrize("name", CASES)
def test_every_length_up_to_1000(name):
    """A sequence's outputs are the first outputs of a longer one, so the recurrence at 1000 steps serves all lengths;
    every 13th length, and all within one chunk of 64 rows and around its multiples."""
    whole = case(name, 1, 1000, torch.float64)
    expected, _ = whole.run(whole.inputs(), "naive")
    lengths = {*range(1, 1001, 13), *range(1, 67), *(64 * n + more for n in range(2, 16) for more in (-1, 0, 1)), 1000}
    for length in lengths:
        leaves = [*(x[:, :length] for x in whole.sequences), *whole.constants, whole.state]
        out, _ = whole.run(leaves, chunk_size=64)
        assert (out - expected[:, :length]).norm() <= 1e-10 * expected[:, :length].norm(), length


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [64, 65, 1000])
@pytest.mark.parametrize("name", CASES)
def test_gradients_around_chunks_of_64(name, length, dtype):
    example = case(name, 1, length, dtype)
    compare(
        lambda backend, *leaves: example.run(leaves, backend, chunk_size=64),
        example.inputs(),
        dtype,
        tolerance=SUMS[dtype],
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("decay", [*LOG_DECAYS, None])
@pytest.mark.parametrize("name", ["decay step", "gated log", "gated tied", "scan real", "scan constant", "scan step"])
def test_decays_of_every_kind(name, decay, dtype):
    """One decay alone, or (None) all of them mixed; naive against chunk and step."""
    example = case(name, 2, 150, dtype, LOG_DECAYS if decay is None else [decay])
    for backend in ("chunk", "step"):
        compare(lambda backend, *x: example.run(x, backend), example.inputs(), dtype, ("naive", backend), SUMS[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("decay", LOG_DECAYS)
@pytest.mark.parametrize("name", ["decay head", "filter"])
def test_constant_decays_of_every_kind(name, decay, dtype):
    example = case(name, 2, 150, dtype)
    example.constants[-1].fill_(decay)
    for backend in ("chunk", "step"):
        compare(lambda backend, *x: example.run(x, backend), example.inputs(), dtype, ("naive", backend), SUMS[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("values", [[-1e4], [1e4], [-1e4, 1e4], [-1e4, -30.0, 0.0, 30.0, 1e4]])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1 - 2**-23])
def test_saturated_gates(bound, values, dtype):
    q, v = (randn(2, 150, 2, 6, dtype=dtype, seed=seed) for seed in (0, 1))
    logits = picked(2, 150, 2, 6, values=values, dtype=dtype, seed=2)
    inputs = [q, v, logits, torch.full((2, 6), bound, dtype=dtype), randn(2, 2, 6, 6, dtype=dtype, seed=3)]

    def run(backend, q, v, logits, bound, state):
        return gated_attention(q, None, v, (logits, bound), state, 16, backend)

    compare(run, inputs, dtype, tolerance=SUMS[dtype])


@pytest.mark.parametrize("d_k", [4, 32, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_expand_ratios(d_k, dtype):
    q, logits = (randn(1, 70, 1, d_k, dtype=dtype, seed=seed) for seed in (0, 1))
    v = randn(1, 70, 1, 10, dtype=dtype, seed=2)

    def run(backend, q, v, logits):
        return gated_attention(q, None, v, (logits, torch.zeros(())), backend=backend)

    compare(run, [q, v, logits], dtype)


def test_gates_shared_by_heads_of_values():
    q, k, gates = (randn(2, 50, 2, 5, dtype=torch.float64, seed=seed) for seed in range(3))
    v, state = randn(2, 50, 6, 3, dtype=torch.float64, seed=3), randn(2, 6, 5, 3, dtype=torch.float64, seed=4)

    def shared(leaves):
        q, k, v, gates, state = leaves
        return gated_attention(q, k, v, -gates.abs(), state, 16)

    def expanded(leaves):
        q, k, v, gates, state = leaves
        q, k, gates = (x.repeat_interleave(3, 2) for x in (q, k, gates))
        return gated_attention(q, k, v, -gates.abs(), state, 16)

    inputs = [q, k, v, gates, state]
    assert_close(with_gradients(shared, inputs), with_gradients(expanded, inputs), 1e-12)


def long_case(name, dtype):
    """A function of (backend, *leaves) and its leaves: 16,384 tokens, decays and gates of every kind."""
    x, y, z = (randn(1, LONG, 1, 4, dtype=dtype, seed=seed) for seed in range(3))
    log_decay = picked(1, LONG, 4, values=LOG_DECAYS, dtype=torch.float32, seed=3)
    # what never forgets is averaged, so that the rounding of its sum is no error
    gates = picked(1, LONG, 1, 4, values=[-1e4, -30.0, 2.0, 30.0, 1e4], dtype=torch.float32, seed=4)
    steps = picked(1, LONG, 4, values=[0.0, 1e-6, 1e-3, 0.7, 14.0, 1e4], dtype=torch.float32, seed=5)
    poles, mix = torch.tensor([-math.inf, -1.0, -1e-2, -1e-4, 0.0]), randn(4, 5, dtype=torch.float32, seed=6)
    A = -randn(4, 8, dtype=torch.float32, seed=7).abs()
    B, C = (randn(1, LONG, 8, dtype=dtype, seed=seed) for seed in (8, 9))
    rates, bound = torch.tensor([-1e-7]), torch.zeros(())
    return {
        "decay none": (lambda backend, q, k, v: decay_attention(q, k, v, backend=backend), [x, y, z]),
        "decay head": (lambda backend, *leaves: decay_attention(*leaves, backend=backend), [x, y, z, rates]),
        "decay step": (
            lambda backend, *leaves: decay_attention(*leaves, backend=backend),
            [x, y, z, log_decay[..., :1]],
        ),
        "gated": (lambda backend, q, v, g: gated_attention(q, None, v, (g, bound), backend=backend), [x, y, gates]),
        "filter": (lambda backend, *leaves: causal_filter(*leaves, backend=backend), [x[:, :, 0], mix, poles]),
        "scan": (lambda backend, *leaves: scan(*leaves, backend=backend), [log_decay, x[:, :, 0]]),
        "scan complex": (
            lambda backend, *leaves: scan(*leaves, backend=backend),
            [log_decay, torch.stack([x[:, :, 0], y[:, :, 0]], -1), torch.tensor([1.0, 0.1, 3.0, 1e-3])],
        ),
        "selective": (
            lambda backend, dt, A, B, C, x: selective_scan(dt, A, B, C, x, backend=backend),
            [steps, A, B, C, x[:, :, 0]],
        ),
    }[name]


LONG_CASES = ["decay none", "decay head", "decay step", "gated", "filter", "scan", "scan complex", "selective"]


@pytest.mark.parametrize("name", LONG_CASES)
def test_long_sequences_by_the_recurrence(name):
    function, inputs = long_case(name, torch.float64)
    inputs = [x.double() for x in inputs]
    for exact, fast in zip(function("naive", *inputs), function("chunk", *inputs), strict=True):
        assert (fast - exact).norm() <= 1e-10 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LONG_CASES)
def test_long_sequences_against_float64(name, dtype):
    """Outputs, state and all gradients at 16,384 tokens against those of the same numbers in float64."""
    function, inputs = long_case(name, dtype)
    expected = long_gradients(function, [x.double() for x in inputs])
    actual = long_gradients(function, inputs)
    for index, (exact, fast) in enumerate(zip(expected, actual, strict=True)):
        assert torch.isfinite(fast).all(), index
        error = ((fast.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()
        assert error < (1e-5 if fast.dtype == torch.float32 else 4e-3), (index, error)  # 4e-3: bf16's rounding


def long_gradients(function, inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, state = function("chunk", *leaves)
    weight = randn(*out.shape, dtype=torch.bfloat16, seed=99).to(out.dtype)  # the same number in every dtype
    return [out.detach(), state.detach(), *torch.autograd.grad((out * weight).sum() + state.sum(), leaves)]
