"""The benchmark's mamba_ssm backends: its pure torch references in the kernels' place, where it is installed, in fp32
on a CPU. To run it: pip install mamba-ssm, with its compiled extension, or else with an empty mamba_ssm/__init__.py.
"""

import inspect

import pytest
import torch

from arch.bench.measure import gradients
from benchmarks.kernel_peers import CASES_WITH_PEERS as CASES
from benchmarks.kernel_peers import CHUNK, steps_inside
from tests.arch.ops.compare import assert_close

SHAPE = (2, 2 * CHUNK, 3, 8)
TOLERANCE = 1e-5


def imported(name):
    """Or skips, also where it is there and fails to import, as it does without its extension."""
    return pytest.importorskip(name, exc_type=ImportError)


def outcome(case, run, backend=""):
    inputs, weight = case.inputs(*SHAPE, dtype=torch.float32, device="cpu", backend=backend)
    return gradients(run(*SHAPE), inputs, weight)


def test_mamba2_is_the_recurrence_that_errors_are_against(monkeypatch):
    ssd_combined = imported("mamba_ssm.ops.triton.ssd_combined")
    monkeypatch.setattr(ssd_combined, "mamba_chunk_scan_combined", ssd_combined.ssd_chunk_scan_combined_ref)
    case = CASES["mamba2"]
    right = outcome(case, case.reference("naive", "mamba_ssm"))
    assert_close(outcome(case, case.runs["mamba_ssm"]), right, TOLERANCE)


def test_mamba2_is_the_scan_of_its_paper():
    """A second, plainer reference of theirs: decays and values given as they are."""
    minimal = imported("mamba_ssm.modules.ssd_minimal").ssd_minimal_discrete
    case = CASES["mamba2"]

    def theirs(*shape):
        def run(x):
            q, k, v, log_decay = x
            q, k = (y.expand(-1, -1, v.shape[2], -1) for y in (q, k))
            return minimal(-log_decay[..., None] * v, log_decay, k, q, 64)[0]

        return run

    assert_close(outcome(case, theirs), outcome(case, case.reference("naive", "mamba_ssm")), TOLERANCE)


def test_mamba1_is_ours(monkeypatch):
    interface = imported("mamba_ssm.ops.selective_scan_interface")
    monkeypatch.setattr(interface, "selective_scan_fn", interface.selective_scan_ref)
    case = CASES["mamba1"]
    assert_close(outcome(case, case.runs["mamba_ssm"]), outcome(case, case.runs["naive"]), TOLERANCE)


def test_chunks_are_as_long_as_its_layer_takes_them():
    layer = imported("mamba_ssm.modules.mamba2").Mamba2
    assert inspect.signature(layer).parameters["chunk_size"].default == CHUNK


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
