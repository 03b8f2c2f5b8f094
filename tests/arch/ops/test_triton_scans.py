"""The Triton kernels of the scans and of the causal filter against the recurrences in float64, as in test_triton."""

import importlib.util

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arch.kernel_config import ScanConfig, SelectiveScanConfig
from arch.ops import causal_filter, scan, selective_scan

from .compare import assert_close, case, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.causal_filter.triton import operator as filter_module
from arch.ops.scan.triton import operator as scan_module
from arch.ops.selective_scan.triton import operator as selective_module

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5
LOG_DECAYS = [0.0, -1e-6, -0.7, -14.0, -100.0, -float("inf")]
CASES = ("scan real", "scan pairs", "scan constant", "scan step", "filter", "selective")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that a short sequence is many tiles, and a few channels are more than one."""
    monkeypatch.setattr(scan_module, "scan_config", lambda *shape: ScanConfig(4, 4, (4, 2), 1))
    monkeypatch.setattr(filter_module, "tiles", lambda *shape: filter_module.Tiles(32, 16, 1, (32, 2)))
    monkeypatch.setattr(selective_module, "SELECTIVE_SCAN", SelectiveScanConfig((4, 4), (1, 1), 4, 2))


def both_backends(run, inputs):
    """Outputs, states and gradients of the kernels against the recurrence on the same numbers; run(inputs, backend)."""
    expected = with_gradients(lambda x: run(x, "naive"), [x.double() for x in inputs])
    result = with_gradients(lambda x: run(x, "triton"), [x.to(DEVICE) for x in inputs])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def compare(name, length, document_starts=None, log_decays=None):
    example = case(name, 1 if document_starts is None else 2, length, torch.float32, log_decays)

    def run(inputs, backend):
        moved = None if document_starts is None else document_starts.to(inputs[0].device)
        if name != "filter":
            return example.run(inputs, backend, moved)
        x, mix, log_decay, state = inputs  # whose decays have no gradient in the kernels
        return causal_filter(x, mix, log_decay.detach(), state, backend=backend, document_starts=moved)

    if name != "filter":
        both_backends(run, example.inputs())
        return
    x, mix, log_decay, state = example.inputs()

    def without_decays(leaves, backend):
        return run([leaves[0], leaves[1], log_decay.to(leaves[0]), leaves[2]], backend)

    both_backends(without_decays, [x, mix, state])


@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_recurrence(name, length):
    compare(name, length)


def test_filter_over_segments():
    """A second segment, shorter than a chunk."""
    compare("filter", 37)


@pytest.mark.parametrize("name", ["scan real", "scan step"])
def test_any_decay(name):
    """From none to one of 0, in one chunk."""
    compare(name, 21, log_decays=LOG_DECAYS)


@pytest.mark.parametrize("name", CASES)
def test_packed_documents(name):
    length = 37 if name == "filter" else 21
    document_starts = torch.zeros(2, length, dtype=torch.bool)
    document_starts[0, [1, 15, 16, 19]] = True
    document_starts[1, [0, 5, length - 1]] = True
    compare(name, length, document_starts)


@pytest.mark.parametrize("numbers", ["real", "pairs", "rotating"])
def test_gate_from_logits(numbers):
    """Gates of 0 and 1 to fp32's last bit and beyond; a bound of 0 is a constant to the decay."""
    logits = torch.tensor([-200.0, -95.0, -40.0, -9.0, 0.0, 9.0, 40.0, 200.0])
    logits = logits[torch.randint(8, (1, 21, 6), generator=torch.Generator().manual_seed(0))]
    bound = torch.tensor([0.0, 0.0, 0.3, 0.3, 0.9, 1 - 2.0**-23])
    parts = [] if numbers == "real" else [2]
    c, state = (randn(*shape, *parts, dtype=torch.float32, seed=1) for shape in ((1, 21, 6), (1, 6)))
    theta = [3 * randn(6, dtype=torch.float32, seed=2)] if numbers == "rotating" else []

    def run(x, backend):
        return scan((x[0], x[1]), x[2], *x[4:], initial_state=x[3], backend=backend)

    both_backends(run, [logits, bound, c, state, *theta])


@pytest.mark.parametrize("name", ["scan constant", "filter", "selective"])
def test_every_element_is_written_and_twice_the_same(name, monkeypatch):
    example = case(name, 1, 17, torch.float32)
    inputs = [x.to(DEVICE) for x in example.inputs()]

    def run(leaves):
        if name == "filter":
            leaves = [leaves[0], leaves[1], inputs[2], leaves[2]]
        return example.run(leaves, "triton")

    leaves = [inputs[0], inputs[1], inputs[3]] if name == "filter" else inputs
    first = with_gradients(run, leaves)
    new, like = torch.Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: new(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: like(*a, **k).fill_(float("nan")))
    second = with_gradients(run, leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("operation", [causal_filter, selective_scan, scan])
@pytest.mark.parametrize("packed", [False, True])
def test_flops_are_the_chunk_backends(operation, packed):
    """Told to torch's counter, forward and backward, at the chunk size asked for."""
    a, b, c, d = (randn(1, 21, 6, dtype=torch.float32, seed=seed).to(DEVICE).requires_grad_() for seed in range(4))
    rates = -torch.rand(6, 6, device=DEVICE)
    document_starts = (torch.arange(21, device=DEVICE) == 9)[None] if packed else None

    def inputs():
        if operation is causal_filter:
            return a, b[0, :6], rates[0]
        return (a.abs(), rates.clone().requires_grad_(), b, c, d) if operation is selective_scan else (-a.abs(), b)

    def count(backend):
        with FlopCounterMode(display=False) as counter:
            out, state = operation(*inputs(), chunk_size=16, backend=backend, document_starts=document_starts)
            (out.sum() + state.sum()).backward()
        return counter.get_total_flops()

    assert count("triton") == count("chunk")


def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    x = [randn(1, 9, 6, dtype=torch.float32, seed=seed).to(DEVICE).requires_grad_() for seed in range(4)]
    c = randn(1, 9, 6, 2, dtype=torch.float32, seed=4).to(DEVICE).requires_grad_()
    mix, rates = x[1].detach()[0], -x[0].detach()[0, :6].abs()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(scan_module._forward, (x[0], mix[0].abs(), c, mix[1], None, None), test_utils=tests)
    torch.library.opcheck(filter_module._forward, (x[0], mix[:6], rates[0], None, None, 64), test_utils=tests)
    torch.library.opcheck(selective_module._forward, (x[0].abs(), rates, *x[1:], None, None, 16), test_utils=tests)


def test_learned_poles_take_the_chunk_backend(monkeypatch):
    monkeypatch.setattr("arch.ops.common._WARNED", set())  # another test of this process may have been told already
    x, mix = (randn(*shape, dtype=torch.float32, seed=0).to(DEVICE) for shape in ((1, 5, 4), (4, 3)))
    rates = -torch.rand(3, device=DEVICE).requires_grad_()
    with pytest.warns(UserWarning, match="the decays are learned; the chunk backend runs instead"):
        result = causal_filter(x, mix, rates, backend="triton")[0]
    assert torch.equal(result, causal_filter(x, mix, rates, backend="chunk")[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["scan real", "scan constant", "selective", "filter"])
@pytest.mark.parametrize("shape", [(2, 300, 100), (1, 1000, 4096)])
def test_tiles_of_a_model_in_bf16(name, shape, monkeypatch):
    """The rules' own tiles, and uneven sizes: within twice the rounding of bf16 of the recurrence."""
    monkeypatch.undo()
    generator = torch.Generator(DEVICE).manual_seed(0)

    def normal(*size):
        return torch.randn(*size, generator=generator, device=DEVICE)

    batch, length, width = shape
    document_starts = torch.rand(batch, length, generator=generator, device=DEVICE) < 0.01
    if name == "selective":
        inputs = [normal(*shape).abs() / 10, -normal(width, 16).abs(), *(normal(batch, length, 16) for _ in "BC")]
        inputs += [normal(*shape).bfloat16()]
        call = selective_scan
    elif name == "filter":
        rates = -(1000.0 ** -torch.linspace(0, 1, 128, device=DEVICE))
        inputs = [normal(*shape).bfloat16(), normal(width, 128) / 10]
        call = lambda x, mix, **options: causal_filter(x, mix, rates.to(mix.dtype), **options)  # noqa: E731
    else:
        parts = [] if name == "scan real" else [2]
        inputs = [normal(*shape).bfloat16(), torch.rand(width, device=DEVICE), normal(*shape, *parts).bfloat16()]
        inputs += [normal(width)] if parts else []
        call = lambda x, bound, *rest, **options: scan((x, bound), *rest, **options)  # noqa: E731
    expected = with_gradients(
        lambda x: call(*x, backend="naive", document_starts=document_starts), [x.double() for x in inputs]
    )
    result = with_gradients(lambda x: call(*x, backend="triton", document_starts=document_starts), inputs)
    assert_close([x.double() for x in result], expected, 2**-8)
