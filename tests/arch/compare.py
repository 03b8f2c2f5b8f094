"""Two forms of a sequence operation against each other: outputs, final states and all gradients."""

import torch

LENGTHS = [1, 2, 7, 16, 33, 50, 129]
# relative error of a tensor's norm; float32's covers sums over a few hundred terms
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6}
DECAYS = [0.0, 1e-6, 0.5, 1 - 1e-6, 1.0]


def randn(*shape, dtype, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def picked(*shape, values, dtype, seed):
    """A tensor whose numbers are drawn from `values`."""
    index = torch.randint(len(values), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(values, dtype=torch.float64)[index].to(dtype)


def compare(run, inputs, dtype, forms=("naive", "chunk"), tolerance=None):
    """Outputs, state and gradients of `run(form, *inputs)`, the second form against the first, the reference."""
    tolerance = tolerance or TOLERANCE[dtype]
    results = {}
    for form in forms:
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, state = run(form, *leaves)
        weight = randn(*out.shape, dtype=dtype, seed=99)
        weight_state = randn(*state.shape, dtype=dtype, seed=98)
        grads = torch.autograd.grad((out * weight).sum() + (state * weight_state).sum(), leaves)
        results[form] = [out.detach(), state.detach(), *grads]
    for index, (reference, other) in enumerate(zip(*results.values(), strict=True)):
        assert reference.shape == other.shape and reference.dtype == other.dtype
        assert torch.isfinite(other).all(), f"tensor {index} is not finite"
        scale = reference.norm().clamp(min=1e-30)
        error = ((other - reference).norm() / scale).item()
        assert error < tolerance or (other - reference).norm() < 1e-12, f"tensor {index}: {error:.2e}"
