"""Each operation's chunk backend against its naive recurrence: outputs, final states and all gradients. Decays of every
kind, long sequences and what all operations have in common: test_stress.py."""

import math

import pytest
import torch
import torch.nn.functional as nnf

from arch.ops import causal_filter, decay_attention, decay_attention_step, gated_attention
from arch.ops.forget_gate import forget_gate

from .compare import LENGTHS, TOLERANCE, assert_close, case, compare, randn, silu_of_queries


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decay", ["none", "head", "step", "zero"])
def test_decay_attention(length, decay, dtype):
    q, k = (randn(2, length, 2, 6, dtype=dtype, seed=seed) for seed in (0, 1))
    v = randn(2, length, 2, 10, dtype=dtype, seed=2)
    state = randn(2, 2, 6, 10, dtype=dtype, seed=3)
    log_decay = {
        "none": [],
        "head": [torch.tensor([-0.3, -4.0], dtype=dtype)],
        "step": [-randn(2, length, 2, dtype=dtype, seed=4).abs()],
        "zero": [torch.tensor([-math.inf, -1e-9], dtype=dtype)],
    }[decay]

    def run(backend, q, k, v, state, *log_decay):
        return decay_attention(q, k, v, *log_decay, initial_state=state, chunk_size=16, backend=backend)

    compare(run, [q, k, v, state, *log_decay], dtype)


@pytest.mark.parametrize(("backend", "angles"), [*((x, y) for x in ("naive", "chunk") for y in (0, 1)), ("step", 0)])
def test_decay_attention_takes_silu_of_queries_and_keys(backend, angles):
    x = [randn(1, 20, 2, 4, dtype=torch.float64, seed=seed) for seed in range(3)]
    rates, rotation = torch.tensor([-0.1, -2.0], dtype=torch.float64), None
    if angles:
        rotation = randn(2, 4, dtype=torch.float64, seed=3), torch.arange(20)
    expected = decay_attention(nnf.silu(x[0]), nnf.silu(x[1]), x[2], rates, backend="naive", angles=rotation)
    if backend == "step":
        state, outputs = None, []
        for t in range(20):
            out, state = decay_attention_step(*(y[:, t] for y in x), rates, state, activation="silu")
            outputs.append(out)
        actual = torch.stack(outputs, 1), state
    else:
        actual = decay_attention(*x, rates, backend=backend, angles=rotation, activation="silu")
    assert_close(actual, expected, 1e-12)


def test_decay_attention_shares_query_heads():
    q, k = (randn(1, 20, 1, 4, dtype=torch.float64, seed=seed) for seed in (0, 1))
    v = randn(1, 20, 3, 5, dtype=torch.float64, seed=2)
    shared, _ = decay_attention(q, k, v, chunk_size=8)
    expanded, _ = decay_attention(q.expand(-1, -1, 3, -1), k.expand(-1, -1, 3, -1), v, chunk_size=8)
    assert torch.equal(shared, expanded)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("gate", ["random", "strong", "logits"])
def test_gated_attention(length, gate, dtype):
    q, k = (randn(2, length, 2, 6, dtype=dtype, seed=seed) for seed in (0, 1))
    v = randn(2, length, 2, 10, dtype=dtype, seed=2)
    state = randn(2, 2, 6, 10, dtype=dtype, seed=3)
    noise = randn(2, length, 2, 6, dtype=dtype, seed=4)
    if gate == "logits":
        bound = torch.rand(2, 6, generator=torch.Generator().manual_seed(5)).to(dtype)
        bound[0] = 0.0

        def run(backend, q, v, state, logits, bound):
            return gated_attention(q, None, v, (logits, bound), initial_state=state, chunk_size=16, backend=backend)

        return compare(run, [q, v, state, 4 * noise, bound], dtype)
    log_f = {"random": -noise.abs(), "strong": -50 * noise.abs()}[gate]

    def run(backend, q, k, v, state, log_f):
        return gated_attention(q, k, v, log_f, initial_state=state, chunk_size=16, backend=backend)

    compare(run, [q, k, v, state, log_f], dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_silu_of_gated_queries(dtype):
    """Inside the operation as before it, token by token too."""
    example = case("gated logits", 2, 20, dtype)
    outside, given = (silu_of_queries(example, given) for given in (False, True))
    for backend in ("naive", "chunk", "step"):
        actual, expected = (x.run(x.inputs(), backend) for x in (given, outside))
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_gate_of_zero_forgets_exactly_and_has_no_gradient():
    log_f = torch.full((1, 12, 1, 3), -0.2, dtype=torch.float64)
    log_f[:, 5] = -math.inf
    log_f.requires_grad_()
    q, k, v = (randn(1, 12, 1, 3, dtype=torch.float64, seed=seed) for seed in (0, 1, 2))
    out, _ = gated_attention(q, k, v, log_f, chunk_size=8)
    alone, _ = gated_attention(q[:, 5:], k[:, 5:], v[:, 5:], log_f[:, 5:].clamp(min=-1.0), chunk_size=8)
    torch.testing.assert_close(out[:, 5:], alone, rtol=1e-12, atol=1e-12)
    (grad,) = torch.autograd.grad(out.sum(), log_f)
    assert (grad[:, 5] == 0).all() and (grad[:, 4] != 0).any()


def test_forget_gate_keeps_small_numbers():
    """Against float64 formulas that do not cancel, from saturated to saturated."""
    logits = torch.linspace(-60, 60, 241)
    for bound in (0.0, 0.25, 0.96, 1 - 1e-4):
        log_f, complement = forget_gate(logits, torch.tensor(bound))
        wide, b = logits.double(), torch.tensor(bound).double()
        exact = (1 - b) * torch.sigmoid(-wide)
        exact_log = torch.where(exact < 0.5, torch.log1p(-exact), torch.log(b + (1 - b) * torch.sigmoid(wide)))
        if bound == 0.0:
            exact_log = torch.nn.functional.logsigmoid(wide)
        torch.testing.assert_close(complement.double(), exact, rtol=1e-6, atol=1e-37)
        torch.testing.assert_close(log_f.double(), exact_log, rtol=1e-6, atol=1e-37)
        extreme, _ = forget_gate(torch.tensor([-1e4, 1e4]), torch.tensor(bound))
        assert not extreme.isnan().any() and (extreme <= 0).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", LENGTHS)
def test_causal_filter(length, dtype):
    x = randn(2, length, 6, dtype=dtype, seed=0)
    mix = randn(6, 5, dtype=dtype, seed=1)
    log_decay = torch.tensor([-math.inf, -3.0, -0.1, -1e-3, 0.0], dtype=dtype)
    state = randn(2, 6, 5, dtype=dtype, seed=2)

    def run(backend, x, mix, log_decay, state):
        return causal_filter(x, mix, log_decay, initial_state=state, chunk_size=16, backend=backend)

    compare(run, [x, mix, log_decay, state], dtype)
