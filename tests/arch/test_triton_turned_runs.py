"""The kernels of `decay_attention` with angles that keep their states in registers, against the recurrence."""

import importlib.util

import pytest
import torch

from arch.ops import decay_attention

from .compare import assert_close, randn, with_gradients
from .test_triton import GPU

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.triton import turned_runs
from arch.ops.triton.knobs import override, run_segments, turned_knobs

from .test_triton_decay_bf16 import check

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5


def inputs(batch, length, groups, heads, key_dim, value_dim):
    """q, k, v, the initial state and theta."""
    q, k = (randn(batch, length, groups, key_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v = randn(batch, length, heads, value_dim, dtype=torch.float32, seed=2)
    state = randn(batch, heads, 2 * key_dim, value_dim, dtype=torch.float32, seed=3)
    return [q, k, v, state, torch.rand(groups, key_dim, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize(
    ("length", "heads", "activation", "positions", "sizes"),
    [
        (57, (1, 2), "silu", "rows", {"segments": 3}),
        (40, (2, 2), "", "all", {"segments": 3, "run_sum_tile": 16}),
        (
            50,
            (1, 1),
            "silu",
            "all",
            {"segments": 2, "run_tile": 16, "run_piece": 8, "run_sum_tile": 8, "run_key_late": True},
        ),
        (1, (1, 1), "", "all", {}),
    ],
)
def test_runs_equal_the_recurrence(length, heads, activation, positions, sizes):
    """Ragged lengths, segments of unequal length, shared keys, unequal widths, tiles, silu inside and before."""
    leaves = inputs(2, length, *heads, 32, 32)
    steps = torch.arange(length) * 7 % 64 + 3
    if positions == "rows":
        steps = torch.stack((steps, steps.flip(0)))

    def run(form, x):
        return decay_attention(*x[:3], None, x[3], form=form, angles=(x[4], steps.to(x[4].device)),
                               activation=activation)  # fmt: skip

    expected = with_gradients(lambda x: run("naive", x), [x.double() for x in leaves])
    with override(runs=True, chunk=16, **sizes):
        found = with_gradients(lambda x: run("triton", x), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    q, k, v, state, theta = (x.to(DEVICE).requires_grad_() for x in inputs(1, 40, 1, 2, 16, 16))
    turn, steps = theta.detach() / 6.2832, torch.arange(40.0, device=DEVICE)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for count, silu in ((1, False), (2, True)):
        arguments = (q, k, v, theta, turn, torch.zeros_like(turn), steps, state, count, 64, silu)
        torch.library.opcheck(turned_runs._forward, arguments, test_utils=tests)


def test_compiled_for_any_length():
    """One graph, whose operators' sizes follow from symbolic shapes; without an initial state."""
    torch._dynamo.reset()

    def run(q, k, v, theta):
        return decay_attention(q, k, v, form="triton", angles=(theta, torch.arange(q.shape[1], device=q.device)))[0]

    def gradients(function, leaves):
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v, _, theta = (x.to(DEVICE).requires_grad_() for x in inputs(1, 40, 1, 1, 16, 16))
    leaves = [q, k, v, theta]
    with override(runs=True, chunk=16):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, leaves), gradients(run, leaves), strict=True))


@pytest.mark.parametrize(("rows", "chunks", "sizes", "expected"), [(32, 128, {}, 4), (132, 128, {}, 1), (1, 20, {}, 2),
    (32, 128, {"run_tile": 64, "run_warps": 4}, 4), (32, 128, {"segments": 6}, 6)])  # fmt: skip
def test_segments_by_the_rules(rows, chunks, sizes, expected, monkeypatch):
    monkeypatch.setattr("arch.ops.triton.knobs.trusted_assembler", lambda: False)  # so that no GPU is asked what it is
    with override(**sizes):
        assert run_segments(turned_knobs(128, 128, exact=False), rows, 128, chunks) == expected


@pytest.mark.skipif(not GPU, reason="needs a GPU: the interpreter's bf16 products are wrong")
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"run_tile": 64, "run_piece": 32, "run_warps": 4, "run_key_tile": 32, "run_key_warps": 4},
        {"run_piece": 32, "run_key_late": True, "run_sum_tile": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "key_dim, value_dim, shared, length, activation",
    [
        *((128, 128, 1, length, "") for length in (1, 63, 64, 65, 200, 777, 70_001)),
        *((128, 128, 2, length, "silu") for length in (65, 777)),
        (64, 64, 2, 999, ""),
        (128, 64, 4, 1000, "silu"),
        (64, 128, 2, 65, ""),
    ],
)
def test_bf16_is_as_exact_as_the_chunk_form(key_dim, value_dim, shared, length, activation, sizes):
    with override(runs=True, **sizes):
        check(key_dim, value_dim, shared, length, "none", True, False, activation)
