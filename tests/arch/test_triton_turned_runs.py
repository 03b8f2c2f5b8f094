"""The kernels of `decay_attention` with angles that keep their states in registers, against the recurrence."""

import importlib.util

import pytest
import torch

from arch.ops import decay_attention

from .compare import assert_close, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.triton.knobs import override

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
        (57, (1, 2), "silu", "rows", {"segments": 3, "activation": "gradient"}),
        (40, (2, 2), "", "all", {"segments": 1}),
        (50, (1, 1), "silu", "all", {"segments": 2, "run_tile": 16}),
        (1, (1, 1), "", "all", {}),
    ],
)
def test_runs_equal_the_recurrence(length, heads, activation, positions, sizes):
    """Ragged lengths, segments of unequal length, shared keys, unequal widths, tiles, silu inside and before."""
    leaves = inputs(2, length, *heads, 16, 32)
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
