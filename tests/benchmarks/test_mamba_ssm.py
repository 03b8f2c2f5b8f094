"""The benchmark's mamba_ssm backends: what they are given, and what their errors are against."""

import torch

from benchmarks.kernel_peers import CASES_WITH_PEERS as CASES
from benchmarks.kernel_peers import steps_inside


def test_the_scaled_recurrence_is_ours_of_scaled_values():
    """dt v = v where the decay is 1/e; and every other backend is held against the plain one."""
    case = CASES["mamba2"]
    (q, k, v, log_decay), _ = case.inputs(1, 50, 2, 4, dtype=torch.float64, device="cpu")
    inputs = [q, k, v, torch.full_like(log_decay, -1.0)]
    plain, scaled = (case.reference("naive", backend)() for backend in ("triton", "mamba_ssm"))
    torch.testing.assert_close(scaled(inputs), plain(inputs))
    assert all(
        case.reference("naive", backend) is case.runs["naive"] for backend in ("triton", "chunk", "rounded", "fla")
    )


def test_mamba1_is_laid_out_as_its_kernels_take_it():
    """The same numbers in bf16, each channel's steps side by side: what its interface would copy passes as a view."""
    case = CASES["mamba1"]
    ours, _ = case.inputs(2, 6, 3, 4, dtype=torch.bfloat16, device="cpu")
    theirs, weight = case.inputs(2, 6, 3, 4, dtype=torch.bfloat16, device="cpu", backend="mamba_ssm")
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(b, a.bfloat16() if a.dim() > 2 else a)
    for x in (theirs[0], theirs[2][:, :, 0], theirs[3][:, :, 0], theirs[4].flatten(2), weight.flatten(2)):
        assert x.transpose(1, 2).is_contiguous() and x.dtype == torch.bfloat16
    assert theirs[4].flatten(2).data_ptr() == theirs[4].data_ptr() and torch.equal(steps_inside(ours[1]), ours[1])
