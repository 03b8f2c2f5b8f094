"""The kernels of `decay_attention` with angles, cut into segments and tiles, against the recurrence in float64."""

import importlib.util
import math

import pytest
import torch

from arch.errors import InputError
from arch.ops import decay_attention

from .compare import assert_close, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override, rotary_segments
from arch.ops.decay_attention.triton import rotary_operator
from arch.ops.triton import device_config
from arch.ops.triton.device_config import rotary_for_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5


def inputs(length, groups, heads, key_dim, value_dim):
    """q, k, v, the initial state and theta."""
    q, k = (randn(1, length, groups, key_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v = randn(1, length, heads, value_dim, dtype=torch.float32, seed=2)
    state = randn(1, heads, 2 * key_dim, value_dim, dtype=torch.float32, seed=3)
    return [q, k, v, state, torch.rand(groups, key_dim, generator=torch.Generator().manual_seed(0))]


def gradients(leaves, positions, backend, decays=None, activation="", **sizes):
    def run(x):
        rates, angles = None if decays is None else decays.to(x[2]), (x[4], positions.to(x[2].device))
        return decay_attention(*x[:3], rates, x[3], backend=backend, angles=angles, activation=activation)

    with override(**sizes):
        return with_gradients(run, leaves)


@pytest.mark.parametrize("decays", [None, [-1e-3, -3.0]])
@pytest.mark.parametrize(("segments", "length"), [(1, 20), (3, 66)])
def test_segments_and_tiles(segments, length, decays):
    """The last segment and its last chunk are shorter; keys and values are several tiles."""
    leaves, positions = inputs(length, 1, 1 if decays is None else 2, 32, 32), torch.arange(length) + 5
    rates = None if decays is None else torch.tensor(decays)
    expected = gradients([x.double() for x in leaves], positions, "naive", rates)
    tiles = {"state_tile": (16, 16), "output_tile": 16, "key_tile": 16, "value_tile": 32}
    result = gradients([x.to(DEVICE) for x in leaves], positions, "triton", rates, segments=segments, chunk=16, **tiles)
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def test_angles_in_any_layout():
    """theta as a transposed view."""
    leaves, positions = inputs(20, 2, 2, 16, 16), torch.arange(20)
    leaves[4] = leaves[4].T.contiguous().T
    expected = gradients([x.double() for x in leaves], positions, "naive")
    result = gradients([x.to(DEVICE) for x in leaves], positions, "triton")
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def test_revolutions_in_two_parts():
    """theta / 2 pi to 2^-46, in several programs of unequal shares, and the positions, of either integer dtype."""
    theta = torch.rand(128, 5, generator=torch.Generator().manual_seed(1)).T.to(DEVICE)
    for positions in (torch.arange(513, device=DEVICE).view(171, 3).T + (1 << 22), torch.arange(7, device=DEVICE)):
        high, low, steps = rotary_operator._parts(theta, positions)
        assert torch.equal(rotary_operator._parts(theta, positions.int())[2], steps)
        assert torch.equal(steps, positions.float()) and low.abs().max() > 0
        rotation = theta.double() / (2 * math.pi)
        assert ((high.double() + low.double() - rotation).abs() <= 2**-46 * rotation).all()
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(rotary_operator._parts, (theta, torch.arange(7, device=DEVICE)), test_utils=tests)


@pytest.mark.parametrize("decays", [None, [-1e-3, -3.0]])
def test_silu_of_queries_and_keys(decays):
    """Two heads share theirs, in two tiles; their gradients are of what they are before silu."""
    leaves, positions = inputs(36, 1, 2, 32, 16), torch.arange(36) + 5
    leaves[:2] = (3 * x for x in leaves[:2])
    rates = None if decays is None else torch.tensor(decays)
    expected = gradients([x.double() for x in leaves], positions, "naive", rates, activation="silu")
    moved = [x.to(DEVICE) for x in leaves]
    result = gradients(moved, positions, "triton", rates, activation="silu", chunk=16, key_tile=16)
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("backend", ["chunk", "triton"])
def test_wide_decays_do_not_leave_the_angles_out(backend):
    """Decays in float64, which the kernels do not take, beside keys and values in fp32."""
    q, k, v, state, theta = (x.to(DEVICE) for x in inputs(20, 1, 2, 16, 16))
    rates, angles = torch.tensor([-0.1, -3.0], dtype=torch.float64, device=DEVICE), (theta, torch.arange(20).to(DEVICE))
    result = decay_attention(q, k, v, rates, state, backend=backend, angles=angles)
    expected = decay_attention(q, k, v, rates, state, backend="naive", angles=angles)
    assert_close([x.double() for x in result], [x.double() for x in expected], TOLERANCE)


@pytest.mark.parametrize("backend", ["chunk", "triton"])
def test_what_does_not_fit_is_one_line(backend):
    """The kernels would read past the end of it."""
    q, k, v, state, theta = (x.to(DEVICE) for x in inputs(20, 1, 2, 16, 16))
    steps = torch.arange(20, device=DEVICE)
    with pytest.raises(InputError, match="initial_state has shape"):
        decay_attention(q, k, v, None, state[:, :, :16], backend=backend, angles=(theta, steps))
    for positions in (steps[:19], steps.expand(3, -1), steps.float()):
        with pytest.raises(InputError, match=r"expected int \[T = 20\] or \[B = 1, T = 20\]"):
            decay_attention(q, k, v, backend=backend, angles=(theta, positions))


def test_without_a_final_states_gradient():
    """As in training: only the outputs are used, from no state; every element is written, and twice the same."""
    q, k, v, _, theta = (x.to(DEVICE).requires_grad_() for x in inputs(33, 2, 2, 16, 16))

    def run(backend, *x):
        out, _ = decay_attention(*x[:3], backend=backend, angles=(x[3], torch.arange(33, device=x[0].device)))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    expected = run("naive", *(x.detach().cpu().double().requires_grad_() for x in (q, k, v, theta)))
    result, again = (run("triton", q, k, v, theta) for _ in range(2))
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))


def test_segments_by_the_rules(monkeypatch):
    """Many sequences are not cut, few are, never in two; no segment is empty."""
    monkeypatch.setattr(device_config, "trusted_assembler", lambda: False)  # so that no GPU is asked what it is
    rules = rotary_for_device(128, 128, exact=False)
    assert rotary_segments(rules, 32, 128, 128, 128) == 1
    assert rotary_segments(rules, 4, 128, 128, 128) > 2
    for rows in (1, 4, 12, 80):
        for chunks in (1, 7, 16, 100, 1000):
            count = rotary_segments(rules, rows, 128, 128, chunks)
            assert count != 2
            assert (count - 1) * -(-chunks // count) < chunks


def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    q, k, v, _, theta = (x.to(DEVICE).requires_grad_() for x in inputs(20, 1, 2, 16, 16))
    positions, rotation = torch.arange(20.0, device=DEVICE), theta.detach() / 6.2832
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (q, k, v, None, theta, rotation, torch.zeros_like(rotation), positions, None, 32, 1, 64)
    for silu in (False, True):
        torch.library.opcheck(rotary_operator._forward, (*arguments, silu), test_utils=tests)


def test_compiled_for_any_length():
    """One graph, whose operators' sizes follow from symbolic shapes."""
    torch._dynamo.reset()

    def run(q, k, v, theta):
        positions = torch.arange(q.shape[1], device=q.device)
        return decay_attention(q, k, v, backend="triton", angles=(theta, positions))[0]

    def gradients(function, leaves):
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs(20, 1, 1, 16, 16)]
    leaves = [*leaves[:3], leaves[4]]
    assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, leaves), gradients(run, leaves), strict=True))
