"""What only `gated_attention`'s kernels have: rows referred to a chunk's middle, beside chunks where that cannot be."""

import importlib.util
import math

import pytest
import torch

from arch.bench.measure import gradients
from arch.ops import gated_attention

from .compare import (
    assert_as_exact_as_the_chunk_backend,
    assert_close,
    case,
    fewer_heads,
    randn,
    silu_of_queries,
    with_gradients,
)
from .test_triton import DEVICE, GPU, TOLERANCE, compare

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import override

# of channels whose exponents are sums of their own terms alone; a GPU's fp32 products and powers have fewer digits
FAR = TOLERANCE if GPU else 3e-6

# by kernels of states and of outputs, or by one for both, Hopper's
sequential = pytest.mark.parametrize("sequential", [False, True])


@sequential
@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize("name", ["gated tied", "gated log", "gated logits"])
def test_rows_referred_to_the_middle(name, length, sequential):
    compare(name, length, sequential=sequential)


@sequential
@pytest.mark.parametrize("name", ["gated tied", "gated log"])
def test_any_decay(name, sequential):
    """Chunks whose log2 f sum to a thousand, and rows in them from which little is forgotten."""
    log_decays = [0.0, -1e-6, -0.7, -14.0, -float("inf")]
    compare(name, 70, log_decays=log_decays, tolerance=FAR, sequential=sequential)


@sequential
def test_packed_documents(sequential):
    """No decay stands for a reset: what would cross it is left out."""
    document_starts = torch.zeros(2, 70, dtype=torch.bool)
    document_starts[0, [1, 33]] = True
    compare("gated logits", 70, document_starts, sequential=sequential)


@sequential
@pytest.mark.parametrize("logits", [False, True])
def test_documents_of_a_few_rows(logits, sequential):
    """Chunks with many resets, without any, with strong decays of some channels, and with both of these."""
    length, width = 118, 16
    q, k, v, gate = (randn(2, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(4))
    state = randn(2, 1, width, width, dtype=torch.float32, seed=4)
    gate[:, 64:, :, ::2] *= 40
    gate = gate if logits else -gate.abs()
    bound = torch.linspace(0.0, 0.9, width)[None]
    document_starts = torch.zeros(2, length, dtype=torch.bool)
    document_starts[:, 5:32:5] = document_starts[:, 96::7] = True
    document_starts[1] = document_starts[1].roll(2)

    def run(backend):
        def call(x):
            given = (x[1], (x[3], x[5])) if logits else (x[1], x[3])
            return gated_attention(
                x[0], given[0], x[2], given[1], x[4], backend=backend, document_starts=document_starts.to(x[0].device)
            )

        return call

    leaves = [q, k, v, gate, state, *([bound] if logits else [])]
    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    with override(sequential=sequential):
        result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, FAR)


@sequential
def test_a_chunk_of_both(sequential):
    """Channels referred to the middle beside channels that cannot be, in one tile; in segments of chunks too."""
    length, width = 72, 16
    q, k, v = (randn(1, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(3))
    state = randn(1, 1, width, width, dtype=torch.float32, seed=3)
    log_f = -randn(1, length, 1, width, dtype=torch.float32, seed=4).abs() * torch.tensor([0.1, 30.0]).repeat(
        width // 2
    )

    def run(backend):
        return lambda x: gated_attention(*x[:4], initial_state=x[4], backend=backend)

    leaves = [q, k, v, log_f, state]
    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    for segments in (1, 2):
        with override(segments=segments, chunk=16, sequential=sequential):
            result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
        assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@sequential
@pytest.mark.parametrize(
    ("strengths", "weak_rows"),
    [((6.0,), ()), ((6.0, 0.2), ()), ((6.0, 14.0), ()), ((0.2, 6.0, 14.0), ()), ((9.0,), range(20)),
     ((9.5,), (*range(8), *range(24, 32)))],
)  # fmt: skip
def test_every_way(strengths, weak_rows, sequential):
    """Rows referred to the middle of their half of a chunk (log2 f of -6: -192 over 32 rows, -96 over 16, -48 over 8),
    alone, beside weaker channels, and beside stronger ones, for which neither middle is within reach; where the first
    rows of a chunk forget little; and where the middle rows have more than 2^-150 in all, whose own pairs do not."""
    length, width = 150, 32
    leaves = [randn(1, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(4)]
    strength = torch.tensor(strengths).repeat(width)[:width].flip(0)
    strength = strength.repeat(length, 1)[:, None]
    if weak_rows:  # of every channel but the first
        strength[[row for row in range(length) if row % 32 in weak_rows], :, 1:] *= 0.01
    leaves[3] = -(strength * math.log(2) * (1 + 0.01 * leaves[3]))
    state = randn(1, 1, width, width, dtype=torch.float32, seed=4)

    def run(backend):
        return lambda x: gated_attention(*x[:4], initial_state=x[4], backend=backend)

    expected = with_gradients(run("naive"), [x.double() for x in (*leaves, state)])
    with override(chunk=32, sequential=sequential):
        result = with_gradients(run("triton"), [x.to(DEVICE) for x in (*leaves, state)])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def test_nothing_is_forgotten():
    """Chunks without any decay, which are no exception."""
    leaves = [randn(1, 70, 1, 16, dtype=torch.float32, seed=seed) for seed in range(3)] + [torch.zeros(1, 70, 1, 16)]

    def run(backend):
        return lambda x: gated_attention(*x, backend=backend)

    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize(("segments", "sequential"), [(1, True), (3, True), (1, False)])
def test_strong_decays_far_into_a_sequence(segments, sequential):
    """Far channels in the last chunks alone, of which one is ragged; with segments behind others that have none."""
    length, width = 300, 16
    leaves = [randn(1, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(4)]
    leaves[3] = -0.1 * leaves[3].abs()
    leaves[3][:, 273:] *= 400

    def run(backend):
        return lambda x: gated_attention(*x, backend=backend)

    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    with override(chunk=16, segments=segments, sequential=sequential):
        result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, FAR)


def test_tiles_of_the_values_in_segments():
    """Two tiles and three segments of the pass with outputs, the last segment shorter, its last chunk too; a state
    before, and a gradient of the last one."""
    q, k, log_f = (randn(2, 70, 2, 16, dtype=torch.float32, seed=seed) for seed in range(3))
    v, state = randn(2, 70, 2, 32, dtype=torch.float32, seed=3), randn(2, 2, 16, 32, dtype=torch.float32, seed=4)
    leaves = [q, k, v, -0.1 * log_f.abs(), state]

    def run(backend):
        return lambda x: gated_attention(*x[:4], initial_state=x[4], backend=backend)

    expected = with_gradients(run("naive"), [x.double() for x in leaves])
    with override(sequential=True, run_tile=16, segments=3, chunk=16):
        result = with_gradients(run("triton"), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("gate", [-6.2, -6.3])
def test_the_reach_of_the_middle(gate):
    """Decays just above and just below what 16 rows may have: factors of 2^99, and none above 1. Two exponents of 99
    that cancel leave a rounding of theirs, which REACH limits."""
    length = 64
    q, k, v = (randn(1, length, 1, 16, dtype=torch.float32, seed=seed) for seed in range(3))
    log_f = torch.full((1, length, 1, 16), gate * 0.6931471805599453)

    def run(backend):
        return lambda x: gated_attention(*x, backend=backend)

    expected = with_gradients(run("naive"), [x.double() for x in (q, k, v, log_f)])
    result = with_gradients(run("triton"), [x.to(DEVICE) for x in (q, k, v, log_f)])
    near = 4e-5 if GPU else TOLERANCE
    assert_close([x.cpu().double() for x in result], expected, near if gate > -6.25 else FAR)


@pytest.mark.parametrize(
    ("name", "length", "log_decays", "packed"),
    [
        ("gated logits", 50, None, False),
        ("gated log", 35, [0.0, -1e-6, -0.7, -14.0, -float("inf")], False),
        ("gated tied", 40, None, True),
    ],
)
def test_silu_of_queries(name, length, log_decays, packed):
    """Taken inside the kernels, for sm80's instructions and, with products by another layout, as Hopper's have them."""
    example = fewer_heads(case(name, 1, length, torch.float32, log_decays))
    outside, given = (silu_of_queries(example, given) for given in (False, True))
    document_starts = None
    if packed:
        document_starts = torch.zeros(1, length, dtype=torch.bool)
        document_starts[0, [1, 33]] = True
    moved = None if document_starts is None else document_starts.to(DEVICE)
    inputs = [x.to(DEVICE) for x in given.inputs()]
    expected = with_gradients(lambda x: outside.run(x, "naive", document_starts), [x.double() for x in given.inputs()])
    for arch in ("sm80",) if GPU else ("sm80", None):
        with override(arch=arch):
            result = with_gradients(lambda x: given.run(x, "triton", moved), inputs)
        assert_close([x.cpu().double() for x in result], expected, FAR if log_decays else TOLERANCE)


@pytest.mark.gpu("the interpreter's bf16 products are wrong")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "key_dim, value_dim, length, mean, spread, activation",
    [
        *((width, width, 777, 1, 1, "") for width in (16, 32, 64, 128, 256)),
        (64, 128, 1, 1, 1, ""),
        (128, 128, 1000, -1.5, 1, ""),
        (128, 128, 1000, -1.9, 0.2, ""),  # the strongest decays that are referred to a chunk's middle
        (128, 128, 1000, -3, 0.2, ""),  # pairs of far channels referred to the middles of halves
        (128, 128, 1000, -4, 3, ""),
        (128, 128, 1000, 0, 1e4, ""),
        (64, 64, 70_000, 4, 1, ""),
        *((128, 128, 1000, mean, spread, "silu") for mean, spread in ((1, 1), (-4, 3))),
    ],
)
def test_bf16_is_as_exact_as_the_chunk_backend_with_its_roundings(
    key_dim, value_dim, length, mean, spread, activation, packed
):
    def make(*shape, seed):
        return randn(*shape, dtype=torch.float32, seed=seed).to(DEVICE)

    q, logits = (make(2, length, 2, key_dim, seed=seed) for seed in range(2))
    v, weight = (make(2, length, 2, value_dim, seed=seed) for seed in (2, 3))
    leaves = [q.bfloat16(), v.bfloat16(), (spread * logits + mean).bfloat16()]
    leaves += [torch.linspace(0.0, 0.5, 2 * key_dim, device=DEVICE).view(2, key_dim)]
    leaves += [make(2, 2, key_dim, value_dim, seed=4)]
    document_starts = make(2, length, seed=5) > 2.5 if packed else None

    def run(backend, inputs):
        def call(x):
            options = {
                "initial_state": x[4],
                "backend": backend,
                "document_starts": document_starts,
                "activation": activation,
            }
            return gated_attention(x[0], None, x[1], (x[2], x[3]), **options)

        return gradients(lambda x: torch.cat([y.double().flatten() for y in call(x)]), inputs, ones)

    ones = torch.cat([weight.double().flatten(), make(leaves[4].numel(), seed=6).double()])
    assert_as_exact_as_the_chunk_backend(run, leaves, ("out", "q", "v", "logits", "bound", "state"))
