"""The Triton kernels of the scans and of the causal filter against the recurrences in float64."""

import pytest
import torch

from arch.kernel_config import ScanConfig, SelectiveScanConfig
from arch.ops import causal_filter, scan, selective_scan
from arch.ops.causal_filter.triton import operator as filter_module
from arch.ops.scan.triton import operator as scan_module
from arch.ops.selective_scan.triton import operator as selective_module

from .compare import assert_close, case, picked, randn, with_gradients
from .kernels import DEVICE, equals_the_recurrence, moved, starts

LOG_DECAYS = [0.0, -1e-6, -0.7, -14.0, -100.0, -float("inf")]
CASES = ("scan real", "scan pairs", "scan constant", "scan step", "filter", "selective")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that a short sequence is many tiles, and a few channels are more than one."""
    monkeypatch.setattr(scan_module, "scan_config", lambda *shape: ScanConfig(4, 4, (4, 2), 1))
    monkeypatch.setattr(filter_module, "tiles", lambda *shape: filter_module.Tiles(32, 16, 1, (32, 2)))
    monkeypatch.setattr(selective_module, "SELECTIVE_SCAN", SelectiveScanConfig((4, 4), (1, 1), 4, 2))


def compare(name, length, document_starts=None, log_decays=None):
    example = case(name, 1 if document_starts is None else 2, length, torch.float32, log_decays)
    leaves, fixed = example.inputs(), []
    if name == "filter":  # whose decays have no gradient in the kernels
        fixed = [leaves.pop(2)]

    def run(backend, x):
        x = [*x[:-1], *(decays.to(x[0]) for decays in fixed), x[-1]]
        return example.run(x, backend, moved(document_starts, x[0].device))

    equals_the_recurrence(run, leaves)


@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_recurrence(name, length):
    compare(name, 37 if name == "filter" and length > 1 else length)  # a second segment, shorter than a chunk


@pytest.mark.parametrize("name", ["scan real", "scan step"])
def test_any_decay(name):
    """From none to one of 0, in one chunk."""
    compare(name, 21, log_decays=LOG_DECAYS)


@pytest.mark.parametrize("name", CASES)
def test_packed_documents(name):
    length = 37 if name == "filter" else 21
    compare(name, length, starts(length, [1, 15, 16, 19], [0, 5, length - 1]))


@pytest.mark.parametrize("numbers", ["real", "pairs", "rotating"])
def test_gate_from_logits(numbers):
    """Gates of 0 and 1 to fp32's last bit and beyond; a bound of 0 is a constant to the decay."""
    values = [-200.0, -95.0, -40.0, -9.0, 0.0, 9.0, 40.0, 200.0]
    logits = picked(1, 21, 6, values=values, dtype=torch.float32, seed=0)
    bound = torch.tensor([0.0, 0.0, 0.3, 0.3, 0.9, 1 - 2.0**-23])
    parts = [] if numbers == "real" else [2]
    c, state = (randn(*shape, *parts, dtype=torch.float32, seed=1) for shape in ((1, 21, 6), (1, 6)))
    theta = [3 * randn(6, dtype=torch.float32, seed=2)] if numbers == "rotating" else []

    def run(backend, x):
        return scan((x[0], x[1]), x[2], *x[4:], initial_state=x[3], backend=backend)

    equals_the_recurrence(run, [logits, bound, c, state, *theta])


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
    expected, result = (
        with_gradients(lambda x, kind=kind: call(*x, backend=kind, document_starts=document_starts), given)
        for kind, given in (("naive", [x.double() for x in inputs]), ("triton", inputs))
    )
    assert_close([x.double() for x in result], expected, 2**-8)
