"""The element-wise scan, real and complex: chunk against naive and against torch's complex numbers."""

import math

import pytest
import torch

from arch.errors import InputError
from arch.ops import scan, scan_step

from .compare import DECAYS, compare, picked, randn


@pytest.mark.parametrize("backend", ["naive", "chunk"])
@pytest.mark.parametrize("from_logits", [False, True])
def test_pairs_share_a_gate(from_logits, backend):
    """Without angles they are two real recurrences, and complex ones whose angles are 0; with all gradients."""
    gate, b = randn(2, 33, 6, dtype=torch.float64, seed=0), randn(2, 33, 6, 2, dtype=torch.float64, seed=1)
    bound, state = torch.linspace(0, 0.9, 6, dtype=torch.float64), randn(2, 6, 2, dtype=torch.float64, seed=2)
    gate = 4 * gate if from_logits else -gate.abs()
    options = {"chunk_size": 8, "backend": backend}

    def shared(gate, bound, b, state, *theta):
        return scan((gate, bound) if from_logits else gate, b, *theta, initial_state=state, **options)

    def one_by_one(gate, bound, b, state):
        gate, bound = (x.repeat_interleave(2, -1) for x in (gate, bound))
        out, last = scan((gate, bound) if from_logits else gate, b.flatten(2), None, state.flatten(1), **options)
        return out.unflatten(-1, (6, 2)), last.unflatten(-1, (6, 2))

    def results(function, *more):
        leaves = [x.clone().requires_grad_() for x in (gate, bound, b, state)]
        out, last = function(*leaves, *more)
        used = leaves if from_logits else [leaves[0], *leaves[2:]]
        total = (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum() + last.sin().sum()
        return [out, last, *torch.autograd.grad(total, used)]

    actual, zero = results(shared), torch.zeros(6, dtype=torch.float64)
    for expected in (results(one_by_one), results(shared, zero)):
        for a, b_ in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b_, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("parts", [(), (2,)])
def test_gate_from_logits_is_that_of_its_logarithm(parts):
    """lam = bound + (1 - bound) sigmoid(logits) and (1 - lam) b, in all backends and token by token."""
    logits, b = 4 * randn(2, 33, 6, dtype=torch.float64, seed=0), randn(2, 33, 6, *parts, dtype=torch.float64, seed=1)
    bound = torch.linspace(0, 0.9, 6, dtype=torch.float64)
    theta = [randn(6, dtype=torch.float64, seed=2)] if parts else []
    lam = bound + (1 - bound) * torch.sigmoid(logits)
    expected = scan(lam.log(), (1 - lam)[(..., *[None] * len(parts))] * b, *theta, backend="naive")[0]
    state, steps = None, []
    for t in range(33):
        out, state = scan_step((logits[:, t], bound), b[:, t], *theta, state=state)
        steps.append(out)
    for actual in (
        *(scan((logits, bound), b, *theta, backend=backend)[0] for backend in ("naive", "chunk")),
        torch.stack(steps, 1),
    ):
        assert torch.allclose(actual, expected, rtol=1e-10, atol=1e-12)
    compare(
        lambda backend, x, low, b, *theta: scan((x, low), b, *theta, backend=backend),
        [logits, bound, b, *theta],
        b.dtype,
    )


def test_complex_recurrence_is_that_of_complex_numbers():
    log_a, theta = -randn(1, 40, 3, dtype=torch.float64, seed=0).abs(), randn(3, dtype=torch.float64, seed=1)
    b = randn(1, 40, 3, 2, dtype=torch.float64, seed=2)
    h, last = scan(log_a, b, theta, chunk_size=8)
    a = torch.polar(log_a.exp(), theta.expand(1, 40, 3))
    state = torch.zeros(1, 3, dtype=torch.complex128)
    for t in range(40):
        state = a[:, t] * state + torch.view_as_complex(b)[:, t]
        torch.testing.assert_close(h[:, t], torch.view_as_real(state), rtol=1e-12, atol=1e-12)
    assert torch.equal(last, h[:, -1])


def test_decay_of_zero_forgets_exactly_and_has_no_gradient():
    b = randn(1, 12, 3, dtype=torch.float64, seed=0)
    log_a = torch.full((1, 12, 3), -0.2, dtype=torch.float64)
    log_a[:, 5] = -math.inf
    log_a.requires_grad_()
    h, _ = scan(log_a, b, chunk_size=8)
    assert torch.equal(h[:, 5], b[:, 5])
    (grad,) = torch.autograd.grad(h.sum(), log_a)
    assert (grad[:, 5] == 0).all() and (grad[:, 4] != 0).any() and (grad[:, 6] != 0).any()


@pytest.mark.parametrize("decay", DECAYS)
def test_gradients_of_small_decays_do_not_cancel(decay):
    """A tensor's norm hides the small elements: those of decays and angles at one decay among larger ones."""
    modulus = picked(1, 60, 4, values=[decay, 0.9], dtype=torch.float64, seed=0)
    b, theta = randn(1, 60, 4, 2, dtype=torch.float32, seed=1), randn(1, 60, 4, dtype=torch.float32, seed=2)
    grads = {}
    for backend, dtype in (("naive", torch.float64), ("chunk", torch.float32)):
        leaves = [x.float().to(dtype).requires_grad_() for x in (modulus.log(), theta)]
        h, _ = scan(leaves[0], b, leaves[1], chunk_size=16, backend=backend)
        grads[backend] = torch.autograd.grad((h * randn(*h.shape, dtype=torch.float32, seed=3)).sum(), leaves)
    for exact, fast in zip(grads["naive"], grads["chunk"], strict=True):
        exact, fast = exact[modulus == decay], fast[modulus == decay]
        assert (fast - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_angle_holds_at_a_million_steps():
    steps = 1_000_000
    theta = torch.tensor([1.0, 0.1, 3.0])
    b = torch.zeros(1, steps, 3, 2)
    start = torch.tensor([1.0, 0.0]).expand(1, 3, 2)
    h, _ = scan(torch.zeros(1, steps, 3), b, theta, initial_state=start)
    angle = steps * theta.double()
    torch.testing.assert_close(h[0, -1].double(), torch.stack([angle.cos(), angle.sin()], -1), rtol=0, atol=1e-6)


def test_wrong_shapes_and_backends_are_named():
    with pytest.raises(InputError, match=r"scan with theta: b has shape \[1, 4, 3\], expected .*D = 3, 2\]"):
        scan(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), torch.zeros(3))
    with pytest.raises(InputError, match="unknown backend 'chunks'"):
        scan(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), backend="chunks")
