"""The Triton kernels against the recurrences in float64: on a GPU where there is one, else in Triton's interpreter."""

import importlib.util
import warnings

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arch.ops import decay_attention, gated_attention

from .compare import assert_close, case, fewer_heads, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TOLERANCE = 1e-5
LOG_DECAYS = [0.0, -1e-6, -0.7, -14.0, -100.0, -float("inf")]
ALIKE = ("decay none", "gated tied", "gated log")  # to others, for what is packed
CASES = ("decay none", "decay head", "decay step", "gated tied", "gated log", "gated logits")


def compare(name, length, document_starts=None, log_decays=None, tolerance=TOLERANCE, all_heads=False, **config):
    """Outputs, states and gradients of the kernels against the recurrence on the same numbers."""
    example = case(name, 1 if document_starts is None else 2, length, torch.float32, log_decays)
    example = example if all_heads else fewer_heads(example)
    inputs = [x.to(DEVICE) for x in example.inputs()]
    expected = with_gradients(
        lambda x: example.run(x, "naive", document_starts), [x.double() for x in example.inputs()]
    )
    with override(**config):
        moved = None if document_starts is None else document_starts.to(DEVICE)
        result = with_gradients(lambda x: example.run(x, "triton", moved), inputs)
    assert_close([x.cpu().double() for x in result], expected, tolerance)


@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_recurrence(name, length):
    compare(name, length, all_heads=True)


@pytest.mark.parametrize("name", ["decay step", "gated tied", "gated log"])
def test_any_decay(name):
    """From none to one of 0, in one chunk."""
    compare(name, 35, log_decays=LOG_DECAYS)


@pytest.mark.parametrize(
    "name", ["decay head", "decay step", "gated logits", *(pytest.param(x, marks=pytest.mark.slow) for x in ALIKE)]
)
def test_packed_documents(name):
    document_starts = torch.zeros(2, 40, dtype=torch.bool)
    document_starts[0, [1, 32, 33]] = True
    document_starts[1, [0, 5, 31, 39]] = True
    compare(name, 40, document_starts)


@pytest.mark.parametrize("name", ["decay step", "gated logits"])
def test_segments(name):
    """The pass over the states in pieces, the last of them shorter."""
    compare(name, 40, segments=2, chunk=16)


def test_saturated_logits():
    """Gates of 0 and 1 to fp32's last bit and beyond; a bound of 0 is a constant to log f."""
    logits = torch.tensor([-200.0, -95.0, -40.0, -9.0, 0.0, 9.0, 40.0, 200.0])
    logits = logits[torch.randint(8, (1, 40, 2, 16), generator=torch.Generator().manual_seed(0))]
    bound = torch.tensor([0.0, 0.3])[:, None].expand(2, 16).contiguous()
    q, v = (randn(1, 40, 2, 16, dtype=torch.float32, seed=seed) for seed in (1, 2))

    def run(backend):
        return lambda x: gated_attention(x[0], None, x[1], (x[2], x[3]), backend=backend)

    leaves = [q, v, logits, bound]
    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("packed", [False, True])
def test_angles(packed):
    """LRPE inside the kernels, also its gradient with respect to theta."""
    length = 40
    q, k = (randn(2, length, 2, 6, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v, state = randn(2, length, 4, 3, dtype=torch.float32, seed=2), randn(2, 4, 12, 3, dtype=torch.float32, seed=3)
    theta = torch.rand(2, 6, generator=torch.Generator().manual_seed(0))
    positions, document_starts = torch.arange(length) + 9, None
    if packed:
        positions = torch.stack([positions, torch.cat([positions[:13], torch.arange(length - 13)])])
        document_starts = positions == 0

    def run(backend, device):
        def call(x):
            return decay_attention(
                *x[:3],
                initial_state=x[3],
                backend=backend,
                document_starts=None if document_starts is None else document_starts.to(device),
                angles=(x[4], positions.to(device)),
            )

        return call

    leaves = [q, k, v, state, theta]
    expected = with_gradients(run("naive", torch.device("cpu")), [x.double() for x in leaves])
    result = with_gradients(run("triton", DEVICE), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("name", ["decay step", "gated logits"])
def test_every_element_is_written_and_twice_the_same(name, monkeypatch):
    example = fewer_heads(case(name, 1, 40, torch.float32))
    inputs = [x.to(DEVICE) for x in example.inputs()]
    first = with_gradients(lambda x: example.run(x, "triton"), inputs)
    new, like = torch.Tensor.new_empty, torch.empty_like

    def spoiled(x):
        return x.fill_(float("nan") if x.is_floating_point() else -99)

    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: spoiled(new(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: spoiled(like(*a, **k)))
    second = with_gradients(lambda x: example.run(x, "triton"), inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("operation", [decay_attention, gated_attention])
def test_flops_are_the_chunk_backends(operation):
    """Told to torch's counter, forward and backward, at the chunk size asked for."""
    q, k, g = (randn(1, 41, 1, 16, dtype=torch.float32, seed=seed).to(DEVICE).requires_grad_() for seed in range(3))
    v = randn(1, 41, 2, 32, dtype=torch.float32, seed=3).to(DEVICE).requires_grad_()

    def count(backend):
        inputs = (q, k, v, -g.abs()) if operation is gated_attention else (q, k, v)
        with FlopCounterMode(display=False) as counter:
            out, state = operation(*inputs, chunk_size=16, backend=backend)
            (out.sum() + state.sum()).backward()
        return counter.get_total_flops()

    assert count("triton") == count("chunk") > 0


def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    from arch.ops.decay_attention.triton import operator as decay
    from arch.ops.gated_attention.triton import operator as gated

    x = [randn(1, 20, 1, 16, dtype=torch.float32, seed=seed).to(DEVICE).requires_grad_() for seed in range(3)]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(decay._forward, (*x, None, None, 32, 1, 64), test_utils=tests)
    torch.library.opcheck(gated._forward, (*x, -x[0].detach().abs(), None, None, None, 32, 64, True), test_utils=tests)


@pytest.mark.skipif(GPU, reason="needs a machine without GPU")
def test_falls_back_with_one_warning(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    q = randn(1, 5, 1, 4, dtype=torch.float32, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = [decay_attention(q, q, q, backend="triton")[0] for _ in range(2)]
    assert [str(w.message) for w in caught] == ["no Triton kernel: the device is cpu; the chunk backend runs instead"]
    assert torch.equal(result[0], decay_attention(q, q, q)[0])
