"""The kernels of `decay_attention` with angles that keep their states in registers, against the recurrence."""

import importlib.util
import threading

import pytest
import torch

from arch.ops import decay_attention

from .compare import assert_close, randn, with_gradients
from .test_triton import GPU

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override, rotary_hopper_segments
from arch.ops.decay_attention.triton import rotary_hopper
from arch.ops.triton.device_config import GLUON, rotary_for_device

from .test_triton_decay_bf16 import check

TOLERANCE = 1e-5
EXACT = pytest.mark.skipif(
    GPU, reason="for the interpreter: the copy engine asks for wider rows than small fp32 tiles have"
)


def inputs(batch, length, groups, heads, key_dim, value_dim):
    """q, k, v, the initial state and theta."""
    q, k = (randn(batch, length, groups, key_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v = randn(batch, length, heads, value_dim, dtype=torch.float32, seed=2)
    state = randn(batch, heads, 2 * key_dim, value_dim, dtype=torch.float32, seed=3)
    return [q, k, v, state, torch.rand(groups, key_dim, generator=torch.Generator().manual_seed(0))]


@EXACT
@pytest.mark.parametrize(
    ("length", "heads", "key_dim", "activation", "positions", "segments"),
    [(57, (1, 2), 32, "silu", "rows", 3), (40, (1, 1), 64, "", "all", 2), (1, (1, 1), 32, "", "all", 0)],
)
def test_runs_equal_the_recurrence(length, heads, key_dim, activation, positions, segments):
    """Ragged lengths, segments of unequal length, shared keys, two tiles of channels, unequal widths, silu inside."""
    leaves = inputs(2, length, *heads, key_dim, 32)
    steps = torch.arange(length) * 7 % 64 + 3
    if positions == "rows":
        steps = torch.stack((steps, steps.flip(0)))

    def run(backend, x):
        return decay_attention(*x[:3], None, x[3], backend=backend, angles=(x[4], steps), activation=activation)

    expected = with_gradients(lambda x: run("naive", x), [x.double() for x in leaves])
    with override(sequential=True, chunk=16, segments=segments):
        result = with_gradients(lambda x: run("triton", x), leaves)
    assert_close([x.double() for x in result], expected, TOLERANCE)


@EXACT
def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    q, k, v, state, theta = (x.requires_grad_() for x in inputs(1, 40, 1, 2, 32, 16))
    rotation, steps = theta.detach() / 6.2832, torch.arange(40.0)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for count, silu in ((1, False), (2, True)):
        arguments = (q, k, v, theta, rotation, torch.zeros_like(rotation), steps, state, count, 64, silu)
        torch.library.opcheck(rotary_hopper._forward, arguments, test_utils=tests)


@EXACT
def test_compiled_for_any_length():
    """One graph, whose operators' sizes follow from symbolic shapes; without an initial state."""
    torch._dynamo.reset()

    def run(q, k, v, theta):
        return decay_attention(q, k, v, backend="triton", angles=(theta, torch.arange(q.shape[1])))[0]

    def gradients(function, leaves):
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v, _, theta = (x.requires_grad_() for x in inputs(1, 40, 1, 1, 32, 16))
    leaves = [q, k, v, theta]
    with override(sequential=True, chunk=16):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, leaves), gradients(run, leaves), strict=True))


@pytest.mark.parametrize(("width", "exact", "trusted", "expected"), [(128, False, True, True),
    (128, False, False, False), (128, True, True, False), (64, False, True, False)])  # fmt: skip
def test_where_they_run(width, exact, trusted, expected, monkeypatch):
    monkeypatch.setattr("arch.ops.triton.device_config.trusted_assembler", lambda: trusted)
    monkeypatch.setattr("arch.ops.triton.device_config.hopper", lambda: True)
    result = rotary_for_device(width, 128, exact)
    assert result.sequential is expected
    assert result.gluon is (expected and GLUON)


@pytest.mark.parametrize(("rows", "chunks", "sizes", "expected"), [(32, 128, {}, 4), (132, 128, {}, 1), (1, 20, {}, 2),
    (32, 128, {"segments": 6}, 6)])  # fmt: skip
def test_segments_by_the_rules(rows, chunks, sizes, expected, monkeypatch):
    # so that no GPU is asked what it is
    monkeypatch.setattr("arch.ops.triton.device_config.trusted_assembler", lambda: False)
    with override(**sizes):
        assert rotary_hopper_segments(rotary_for_device(128, 128, exact=False), rows, chunks) == expected


@pytest.mark.gpu("the interpreter's bf16 products are wrong")
@pytest.mark.parametrize("shared, length, activation", [*((1, length, "") for length in (1, 63, 64, 65, 200, 70_001)),
    *((2, length, "silu") for length in (65, 777))])  # fmt: skip
def test_bf16_is_as_exact_as_the_chunk_backend(shared, length, activation):
    """At the widths at which they run; test_triton_decay_bf16.py has more."""
    check(128, 128, shared, length, "none", True, False, activation)


@pytest.mark.gpu("the interpreter makes no descriptors")
def test_a_thread_s_first_request():
    """Of a kernel that is given descriptors, where all memory is at hand: the thread has no CUDA context yet."""
    q, k, v = (x.cuda().bfloat16() for x in inputs(1, 300, 1, 1, 128, 128)[:3])

    def run():
        result.append(decay_attention(q, k, v, backend="triton")[0])

    result = []
    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(result) == 2 and torch.equal(*result)


@pytest.mark.gpu("Gluon has no interpreter")
@pytest.mark.parametrize("length, segments, start, rows", [(1, 0, False, True), (64, 0, True, False),
    (333, 3, True, True), (4100, 0, False, False)])  # fmt: skip
def test_values_by_gluon_equal_triton_s(length, segments, start, rows):
    """Outputs, final states and all gradients; the same twice; also of positions that differ by row."""
    if not rotary_for_device(128, 128, exact=False).gluon:
        pytest.skip("Gluon's kernel is for Hopper, a Triton it ran with and the assembler of the extra gpu")
    *leaves, state, theta = (x.cuda() for x in inputs(2, length, 1, 2, 128, 128))
    leaves = [*(x.bfloat16() for x in leaves), *([state] if start else []), theta]
    steps = torch.arange(length, device="cuda") * 7 % 6000
    if rows:
        steps = torch.stack((steps, steps.flip(0) + 3))

    def run(x):
        return decay_attention(*x[:3], None, x[3] if start else None, backend="triton", angles=(x[-1], steps))

    with override(segments=segments):
        result, again = with_gradients(run, leaves), with_gradients(run, leaves)
        with override(gluon=False):
            expected = with_gradients(run, leaves)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))
    assert_close([x.double() for x in result], [x.double() for x in expected], 1e-3)
