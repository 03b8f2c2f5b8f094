"""Decoding token by token: every operation's `step` against its chunk backend."""

import pytest
import torch

from arch import ops

from .compare import LENGTHS, TOLERANCE, compare, picked, randn

# a decay of 0, strong and weak ones, none
LOG_DECAYS = [float("-inf"), -30.0, -0.7, -1e-6, 0.0]


def along(step, length, state, *sequences):
    """The outputs [B, T, ...] of `step(tokens, state)` over [B, T, ...] sequences, and the last state."""
    outputs = []
    for t in range(length):
        out, new = step([x[:, t] for x in sequences], state)
        assert new.shape == state.shape and new.dtype == state.dtype and new.data_ptr() != state.data_ptr()
        outputs.append(out)
        state = new
    return torch.stack(outputs, 1), state


def attention_inputs(length, dtype, query_heads):
    q, k = (randn(2, length, query_heads, 6, dtype=dtype, seed=seed) for seed in (0, 1))
    return q, k, randn(2, length, 2, 10, dtype=dtype, seed=2), randn(2, 2, 6, 10, dtype=dtype, seed=3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decay", ["none", "head", "step"])
def test_decay_attention(length, decay, dtype):
    q, k, v, state = attention_inputs(length, dtype, query_heads=1)
    log_decay = {
        "none": [],
        "head": [torch.tensor([-0.3, float("-inf")], dtype=dtype)],
        "step": [picked(2, length, 2, values=LOG_DECAYS, dtype=dtype, seed=4)],
    }[decay]

    def run(backend, q, k, v, state, *log_decay):
        if backend == "chunk":
            return ops.decay_attention(q, k, v, *log_decay, initial_state=state, chunk_size=16)
        if decay == "step":
            return along(lambda x, s: ops.decay_attention_step(*x, s), length, state, q, k, v, *log_decay)
        constant = log_decay[0] if log_decay else None
        return along(lambda x, s: ops.decay_attention_step(*x, constant, s), length, state, q, k, v)

    compare(run, [q, k, v, state, *log_decay], dtype, ("chunk", "step"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("gate", ["log", "logits"])
def test_gated_attention(length, gate, dtype):
    q, k, v, state = attention_inputs(length, dtype, query_heads=2)
    if gate == "log":
        log_f = picked(2, length, 2, 6, values=LOG_DECAYS, dtype=dtype, seed=4)

        def run(backend, q, k, v, state, log_f):
            if backend == "chunk":
                return ops.gated_attention(q, k, v, log_f, initial_state=state, chunk_size=16)
            return along(lambda x, s: ops.gated_attention_step(*x, s), length, state, q, k, v, log_f)

        return compare(run, [q, k, v, state, log_f], dtype, ("chunk", "step"))

    logits, bound = 4 * k, torch.rand(2, 6, generator=torch.Generator().manual_seed(5)).to(dtype)

    def run(backend, q, v, state, logits, bound):
        if backend == "chunk":
            return ops.gated_attention(q, None, v, (logits, bound), initial_state=state, chunk_size=16)
        return along(
            lambda x, s: ops.gated_attention_step(x[0], None, x[1], (x[2], bound), s), length, state, q, v, logits
        )

    compare(run, [q, v, state, logits, bound], dtype, ("chunk", "step"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
def test_causal_filter(length, dtype):
    x, mix = randn(2, length, 6, dtype=dtype, seed=0), randn(6, 5, dtype=dtype, seed=1)
    log_decay, state = torch.tensor(LOG_DECAYS, dtype=dtype), randn(2, 6, 5, dtype=dtype, seed=2)

    def run(backend, x, mix, log_decay, state):
        if backend == "chunk":
            return ops.causal_filter(x, mix, log_decay, initial_state=state, chunk_size=16)
        return along(lambda x, s: ops.causal_filter_step(*x, mix, log_decay, s), length, state, x)

    compare(run, [x, mix, log_decay, state], dtype, ("chunk", "step"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("angle", ["real", "constant", "per_step"])
def test_scan(length, angle, dtype):
    parts = () if angle == "real" else (2,)
    log_a = picked(2, length, 6, values=LOG_DECAYS, dtype=dtype, seed=0)
    b, state = randn(2, length, 6, *parts, dtype=dtype, seed=1), randn(2, 6, *parts, dtype=dtype, seed=2)
    theta = {
        "real": [],
        "constant": [randn(6, dtype=dtype, seed=3)],
        "per_step": [randn(2, length, 6, dtype=dtype, seed=3)],
    }[angle]

    def run(backend, log_a, b, state, *theta):
        if backend == "chunk":
            return ops.scan(log_a, b, *theta, initial_state=state, chunk_size=16)
        if angle == "per_step":
            return along(lambda x, s: ops.scan_step(*x, s), length, state, log_a, b, *theta)
        constant = theta[0] if theta else None
        return along(lambda x, s: ops.scan_step(*x, constant, s), length, state, log_a, b)

    compare(run, [log_a, b, state, *theta], dtype, ("chunk", "step"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
def test_selective_scan(length, dtype):
    dt = picked(2, length, 6, values=[0.0, 1e-6, 0.7, 30.0], dtype=dtype, seed=0)
    A, state = -randn(6, 5, dtype=dtype, seed=1).abs(), randn(2, 6, 5, dtype=dtype, seed=2)
    B, C = (randn(2, length, 5, dtype=dtype, seed=seed) for seed in (3, 4))
    x = randn(2, length, 6, dtype=dtype, seed=5)

    def run(backend, dt, A, B, C, x, state):
        if backend == "chunk":
            return ops.selective_scan(dt, A, B, C, x, state)
        return along(lambda now, s: ops.selective_scan_step(now[0], A, *now[1:], s), length, state, dt, B, C, x)

    compare(run, [dt, A, B, C, x, state], dtype, ("chunk", "step"))


@pytest.mark.parametrize("name", ["decay", "gated", "filter", "scan", "selective"])
def test_first_token_needs_no_state(name):
    """Without a state a step starts from zeros, and a bf16 token gives a bf16 output and a float32 state."""
    q, k, v, g = (randn(3, 2, 8, dtype=torch.bfloat16, seed=seed) for seed in range(4))
    x, rates = q[:, 0], -torch.arange(1.0, 5.0)
    run = {
        "decay": lambda state: ops.decay_attention_step(q, k, v, rates[:2], state),
        "gated": lambda state: ops.gated_attention_step(q, None, v, (g, torch.tensor(0.5)), state),
        "filter": lambda state: ops.causal_filter_step(x, torch.ones(8, 4), rates, state),
        "scan": lambda state: ops.scan_step(-x.abs(), k[:, 0], None, state),
        "selective": lambda state: ops.selective_scan_step(
            x.abs(), rates.expand(8, 4), g[:, 0, :4], g[:, 1, :4], k[:, 0], state
        ),
    }[name]
    out, state = run(None)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    again, same = run(torch.zeros_like(state))
    assert torch.equal(out, again) and torch.equal(state, same)
