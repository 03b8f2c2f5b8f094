"""The element-wise scan, real and complex: chunk against naive and against torch's complex numbers."""

import math

import pytest
import torch

from arch.ops import scan

from .compare import DECAYS, picked, randn


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
