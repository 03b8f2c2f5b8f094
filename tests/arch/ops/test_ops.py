"""The operations' chunk backends against their naive recurrences, and at their limits: every length, saturated gates,
decays of 0 and 1, long sequences."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as nnf

from arch.ops import causal_filter, decay_attention, gated_attention, scan, selective_scan
from arch.ops.forget_gate import forget_gate

from .compare import (
    CASES,
    DECAYS,
    LENGTHS,
    TOLERANCE,
    assert_close,
    case,
    compare,
    picked,
    randn,
    silu_of_queries,
)

LOG_DECAYS = [math.log(decay) if decay else -math.inf for decay in DECAYS]
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
def test_every_length(name):
    """A sequence's outputs are the first outputs of a longer one, so its recurrence serves all lengths: within one
    chunk of 64 rows, and around its multiples."""
    whole = case(name, 1, 260, torch.float64)
    expected, _ = whole.run(whole.inputs(), "naive")
    for length in (*range(1, 67), *(64 * n + more for n in (2, 3, 4) for more in (-1, 0, 1)), 260):
        leaves = [*(x[:, :length] for x in whole.sequences), *whole.constants, whole.state]
        out, _ = whole.run(leaves, chunk_size=64)
        assert (out - expected[:, :length]).norm() <= 1e-10 * expected[:, :length].norm(), length


@pytest.mark.parametrize(
    ("length", "rows", "dtype"),
    [*((length, 16, torch.float64) for length in LENGTHS), *((length, 64, torch.float64) for length in (64, 200)),
     (33, 16, torch.float32), (200, 64, torch.float32)],
)  # fmt: skip
@pytest.mark.parametrize("name", CASES)
def test_chunks_are_the_naive_recurrence(name, length, rows, dtype):
    """Outputs, the last state and all gradients."""
    example = case(name, 2, length, dtype)
    tolerance = SUMS[dtype] if rows == 64 else None
    compare(lambda backend, *x: example.run(x, backend, None, rows), example.inputs(), dtype, tolerance=tolerance)


@pytest.mark.parametrize(
    ("decay", "dtype"), [*((decay, torch.float64) for decay in LOG_DECAYS), *((None, dtype) for dtype in TOLERANCE)]
)
@pytest.mark.parametrize(
    "name",
    ["decay step", "gated log", "gated tied", "delta head", "delta channel", "scan real", "scan constant", "scan step"],
)
def test_decays_of_every_kind(name, decay, dtype):
    """One decay alone, or (None) all of them mixed."""
    example = case(name, 2, 70, dtype, LOG_DECAYS if decay is None else [decay])
    compare(lambda backend, *x: example.run(x, backend), example.inputs(), dtype, tolerance=SUMS[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("decay", LOG_DECAYS)
@pytest.mark.parametrize("name", ["decay head", "filter"])
def test_constant_decays_of_every_kind(name, decay, dtype):
    example = case(name, 2, 70, dtype)
    example.constants[-1].fill_(decay)
    compare(lambda backend, *x: example.run(x, backend), example.inputs(), dtype, tolerance=SUMS[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [1, 33])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_chunk_backend(name, length, dtype):
    """Decoding token by token: outputs, the last state and all gradients, at every decay."""
    example = case(name, 2, length, dtype, [-math.inf, -30.0, -0.7, -1e-6, 0.0])
    compare(lambda backend, *leaves: example.run(leaves, backend), example.inputs(), dtype, ("chunk", "tokens"))


@pytest.mark.parametrize("name", CASES)
def test_first_token_needs_no_state(name):
    """Without a state a token starts from zeros, and a bf16 token gives a bf16 output and a float32 state."""
    example = case(name, 3, 1, torch.bfloat16)
    out, state = example.run(example.inputs(), "tokens", initial=False)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    again, same = example.run([*example.inputs()[:-1], torch.zeros_like(state)], "tokens")
    assert torch.equal(out, again) and torch.equal(state, same)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("decay", "gated"))])
def test_heads_of_values_share_those_of_keys(name):
    """Each of two heads of keys, and of gates, serves two of values."""
    example = case(name, 2, 50, torch.float64)
    wide = replace(
        example,
        sequences=[x if x.shape[2] == 4 else x.repeat_interleave(2, 2) for x in example.sequences],
        constants=[x if x.shape[0] == 4 else x.repeat_interleave(2, 0) for x in example.constants],
    )
    for backend in ("naive", "chunk"):
        assert_close(example.run(example.inputs(), backend), wide.run(wide.inputs(), backend), 1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("values", [[-1e4], [1e4], [-1e4, 1e4], [-1e4, -30.0, 0.0, 30.0, 1e4]])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1 - 2**-23])
def test_saturated_gates(bound, values, dtype):
    q, v = (randn(2, 70, 2, 6, dtype=dtype, seed=seed) for seed in (0, 1))
    logits = picked(2, 70, 2, 6, values=values, dtype=dtype, seed=2)
    inputs = [q, v, logits, torch.full((2, 6), bound, dtype=dtype), randn(2, 2, 6, 6, dtype=dtype, seed=3)]

    def run(backend, q, v, logits, bound, state):
        return gated_attention(q, None, v, (logits, bound), state, 16, backend)

    compare(run, inputs, dtype, tolerance=SUMS[dtype])


def long_case(name, length, dtype):
    """A function of (backend, *leaves) and its leaves: decays and gates of every kind."""
    x, y, z = (randn(1, length, 1, 4, dtype=dtype, seed=seed) for seed in range(3))
    log_decay = picked(1, length, 4, values=LOG_DECAYS, dtype=torch.float32, seed=3)
    # what never forgets is averaged, so that the rounding of its sum is no error
    gates = picked(1, length, 1, 4, values=[-1e4, -30.0, 2.0, 30.0, 1e4], dtype=torch.float32, seed=4)
    steps = picked(1, length, 4, values=[0.0, 1e-6, 1e-3, 0.7, 14.0, 1e4], dtype=torch.float32, seed=5)
    poles, mix = torch.tensor([-math.inf, -1.0, -1e-2, -1e-4, 0.0]), randn(4, 5, dtype=torch.float32, seed=6)
    A = -randn(4, 8, dtype=torch.float32, seed=7).abs()
    B, C = (randn(1, length, 8, dtype=dtype, seed=seed) for seed in (8, 9))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [2048, pytest.param(16_384, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LONG_CASES)
def test_long_sequences_against_float64(name, length, dtype):
    """Outputs, state and all gradients against those of the same numbers in float64."""
    function, inputs = long_case(name, length, dtype)
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


@pytest.mark.parametrize("angles", [0, 1])
@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_decay_attention_takes_silu_of_queries_and_keys(backend, angles):
    x = [randn(1, 20, 2, 4, dtype=torch.float64, seed=seed) for seed in range(3)]
    rates, rotation = torch.tensor([-0.1, -2.0], dtype=torch.float64), None
    if angles:
        rotation = randn(2, 4, dtype=torch.float64, seed=3), torch.arange(20)
    expected = decay_attention(nnf.silu(x[0]), nnf.silu(x[1]), x[2], rates, backend="naive", angles=rotation)
    assert_close(decay_attention(*x, rates, backend=backend, angles=rotation, activation="silu"), expected, 1e-12)


@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_decay_attention_takes_a_gain_and_a_skip(backend):
    q, k, v = (randn(2, 20, 3, 4, dtype=torch.float64, seed=seed) for seed in range(3))
    gain, skip = randn(2, 20, 3, dtype=torch.float64, seed=3).abs(), randn(3, dtype=torch.float64, seed=4)
    out, state = decay_attention(q, k, gain[..., None] * v, gain.log().clamp(max=0), backend="naive")
    expected = out + skip[:, None] * v, state
    assert_close(
        decay_attention(q, k, v, gain.log().clamp(max=0), backend=backend, gain=gain, skip=skip), expected, 1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_silu_of_gated_queries(dtype):
    """Inside the operation as before it, token by token too."""
    example = case("gated logits", 2, 20, dtype)
    outside, given = (silu_of_queries(example, given) for given in (False, True))
    for backend in ("naive", "chunk", "tokens"):
        actual, expected = (x.run(x.inputs(), backend) for x in (given, outside))
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("backend", ["naive", "chunk"])
@pytest.mark.parametrize("name", ["delta none", "delta head", "delta channel"])
def test_the_delta_rule_of_the_papers(name, backend):
    """Gated DeltaNet's eq. 10, with a decay for each key channel as in Kimi Linear, in their layout: S [d_v, d_k]."""
    example = case(name, 2, 40, torch.float64)
    out, last = example.run(example.inputs(), backend)
    q, k, v, beta, *log_decay = example.sequences
    k = k / k.norm(dim=-1, keepdim=True)
    for row, head in ((0, 0), (1, 1)):
        state = example.state[row, head].T
        for t in range(40):
            decay = torch.ones(6, dtype=torch.float64)
            if log_decay:
                decay = decay * log_decay[0][row, t, head].exp()
            key, share = k[row, t, head], beta[row, t, head]
            state = state @ torch.diag(decay) @ (torch.eye(6, dtype=torch.float64) - share * torch.outer(key, key))
            state = state + share * torch.outer(v[row, t, head], key)
            torch.testing.assert_close(out[row, t, head], state @ q[row, t, head], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(last[row, head], state.T, rtol=1e-10, atol=1e-12)


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
