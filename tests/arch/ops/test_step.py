"""Decoding token by token: every operation's `step` against its chunk backend."""

import pytest
import torch

from arch import ops

from .compare import CASES, TOLERANCE, case, compare, randn

# a decay of 0, strong and weak ones, none
LOG_DECAYS = [float("-inf"), -30.0, -0.7, -1e-6, 0.0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [1, 33])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_chunk_backend(name, length, dtype):
    """Outputs, the last state and all gradients."""
    example = case(name, 2, length, dtype, LOG_DECAYS)
    compare(lambda backend, *leaves: example.run(leaves, backend), example.inputs(), dtype, ("chunk", "step"))


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
