"""Products with a gate, silu or a norm inside them: the kernels against float64, in gluon_emulator.py and, in bf16, on
a GPU."""

import random

import pytest
import torch

from arch.kernel_config import mlp_config, override
from arch.ops.fused.triton import mlp, projections, sum_norm

from .hopper import HOPPER, randn, set_programs


def gate(kind, count, width, hidden, dtype=torch.float32, device="cpu"):
    """h = x weights^T, u times act(v) of its halves, and the gradient of h; results and what they are in float64. Only
    what the kernels read is rounded: the last two are of the given h."""
    x, weights = randn(count, width, seed=0, dtype=dtype, device=device), randn(2 * hidden, width, seed=1)
    weights = (weights / width**0.5).to(x)
    down = (randn(width, hidden, seed=2) / hidden**0.5).to(x)
    d_out = randn(count, width, seed=3, dtype=dtype, device=device)
    h, act = mlp.up_and_gate(x, weights, kind)
    d_h = mlp.gradients_of_gate(d_out, down, h, kind)
    given = h.double().requires_grad_()
    u, v = given.chunk(2, 1)
    exact = u * (v * v.sigmoid() if kind else v)
    (exact_h,) = torch.autograd.grad(exact, given, d_out.double() @ down.double())
    return [h, act, d_h], [x.double() @ weights.double().T, exact.detach(), exact_h]


def silu(kind, count, width, parts, wide, dtype=torch.float32, device="cpu"):
    """x weights^T, and silu of its first columns in one tensor each."""
    x = randn(count, width, seed=0, dtype=dtype, device=device)
    weights = (randn(wide, width, seed=1) / width**0.5).to(x)
    out, *active = projections.project_with_silu(x, weights, *parts)
    assert [y.shape[1] for y in (out, *active)] == [wide, *parts]
    columns = out[:, : sum(parts)].float()
    result, wanted = torch.cat(active, 1), columns * columns.sigmoid()
    if device == "cpu":  # on a GPU it is an approximation
        assert torch.equal(result, wanted.to(dtype))
    return [out, result], [x.double() @ weights.double().T, wanted.double()]


def norm(weighted, count, width, inner, dtype=torch.float32, device="cpu", eps=0.1):
    """x + a w^T and its norm, with an eps that shows; the gradient of a norm from a product, added to another's."""
    kind = {"dtype": dtype, "device": device}
    a, x, d_total = (randn(count, n, seed=i, **kind) for i, n in enumerate((inner, width, width)))
    w = (randn(width, inner, seed=3) / inner**0.5).to(x)
    weight = randn(width, seed=4, device=device).add(2) if weighted else None
    total, out = sum_norm.product_with_norm(a, w, x, weight, eps)
    d_x, d_weight = sum_norm.gradients_with_norm(a, w.T.contiguous(), x, d_total, weight, eps)
    leaves = [x.double().requires_grad_(), *([weight.double().requires_grad_()] if weighted else [])]
    product = a.double() @ w.double().T

    def normed(x):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (leaves[1] if weighted else 1)

    d_leaf, *d_exact = torch.autograd.grad(normed(leaves[0]), leaves, product)
    assert weighted or d_weight.numel() == 0
    result = [total, out, d_x, *([d_weight] if weighted else [])]
    return result, [x.double() + product, normed(total.double()).detach(), d_leaf + d_total.double(), *d_exact]


GATES = [
    (300, 48, 104),
    (130, 64, 88),
    (270, 128, 352),
    (300, 192, 200),
    (140, 256, 136),
    (150, 384, 200),
    (130, 640, 136),
]
SILUS = [  # rows, width, columns behind silu, all columns
    (300, 48, (64, 64), 144),  # to a tile's edge
    (130, 64, (64, 128), 200),  # beyond it, and the first tile has columns of both
    (270, 128, (128, 128), 384),
    (140, 256, (192, 192), 448),
    (140, 256, (64, 192), 264),
    (150, 384, (64, 64), 136),
    (130, 640, (128, 64), 304),  # the tile that has the last of them has others too
    (130, 1024, (192, 64), 256),  # all
]
NORMS = [
    (300, 48, 40),
    (130, 64, 200),
    (270, 128, 128),
    (150, 128, 344),
    (140, 192, 264),
    (300, 256, 72),
    (140, 256, 688),
]
CASES = [*((gate, kind, sizes) for kind in ("", "silu") for sizes in GATES), *((silu, None, sizes) for sizes in SILUS),
         *((norm, weighted, sizes) for weighted in (False, True) for sizes in NORMS)]  # fmt: skip
OF_A_MODEL = [
    *((gate, kind, sizes) for kind in ("", "silu") for sizes in
      [(20_000, 128, 352), (20_000, 256, 688), (20_000, 384, 1024), (20_000, 512, 1376), (9000, 832, 2160),
       (9000, 1024, 2816)]),
    *((silu, None, sizes) for sizes in
      [(65_536, 256, (256, 256), 896), (20_000, 512, (512, 512), 1664), (9000, 1024, (1024, 1024), 3200)]),
    *((norm, weighted, sizes) for weighted in (False, True) for sizes in
      [(16_384, 64, 352), (65_536, 128, 688), (65_536, 256, 256), (70_000, 256, 1376)]),
]  # fmt: skip


@pytest.fixture
def plain_sums(emulated, monkeypatch):
    monkeypatch.setattr(sum_norm, "column_sums", lambda x: x.sum(0))


def check(kernel, *sizes, limit=1e-5, **kind):
    results = kernel(*sizes, **kind)
    for result, wanted in zip(*results, strict=True):
        difference = result.double() - wanted
        assert result.shape == wanted.shape
        if kernel is norm:
            assert difference.norm() < 1e-6 * wanted.norm()
        else:
            assert difference.abs().max() < limit * wanted.abs().max()


@pytest.mark.parametrize(("kernel", "kind", "sizes"), CASES)
def test_emulated_kernels(kernel, kind, sizes, plain_sums):
    """Rows, widths and columns that no tile divides, and more and fewer chunks than are loaded ahead."""
    check(kernel, kind, *sizes)


@pytest.mark.parametrize("sizes", SILUS)
def test_silu_of_rounded_columns(sizes, emulated):
    check(silu, None, *sizes, dtype=torch.bfloat16, limit=1e-2)


@pytest.mark.parametrize("width", [128, 640])
def test_the_gate_of_rounded_numbers(width, emulated):
    """bf16: act is that of the u and v beside it, which are rounded, to the bit."""
    (h, act, _), _ = gate("silu", 140, width, 136, dtype=torch.bfloat16)
    u, v = h.float().chunk(2, 1)
    assert torch.equal(act, (u * (v * v.sigmoid())).bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_emulated_kernels_at_random_speeds(seed, plain_sums, monkeypatch):
    random.seed(seed)
    set_programs(monkeypatch, lambda x, tiles: (1 + seed % 2,))
    for width, hidden in ((64, 328), (128, 200), (256, 200), (200, 392), (512, 200), (1024, 264)):
        check(gate, "silu", 700, width, hidden)
    for width in (64, 128, 200, 256, 512, 1024):
        for parts, wide in (((64, 64), 200), ((128, 192), 528)):
            check(silu, None, 700, width, parts, wide)
    for width, inner in ((64, 64), (64, 700), (128, 128), (128, 690), (256, 120), (256, 900)):
        check(norm, bool(seed % 3), 700, width, inner)


def test_sizes_fit_a_multiprocessor(plain_sums, monkeypatch):
    """The emulator counts a program's memory: the widest of every rule, and those that take too much."""
    for width in (64, 128, 256, 512, 1024):
        assert mlp_config(width) is not None
        gate("", 10, width, 136)
        silu(None, 10, width, (64, 64), 136)
    for width in (64, 128, 256):
        norm(False, 10, width, 72)
    monkeypatch.setattr(sum_norm, "sum_norm_stages", lambda width: 4)
    with override(up_stages=9):
        for call in (lambda: gate("", 10, 256, 136), lambda: silu(None, 10, 256, (64, 64), 136),
                     lambda: norm(False, 10, 256, 72)):  # fmt: skip
            with pytest.raises(AssertionError, match="bytes of shared memory"):
                call()


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize(("kernel", "kind", "sizes"), [*CASES, *OF_A_MODEL])
def test_kernels_on_a_gpu(kernel, kind, sizes):
    """bf16 against float64 of the same operands; ten times to the same bits."""
    first = None
    for _ in range(10):
        poison = torch.full((sizes[0], 4 * max(x for x in sizes[1:] if isinstance(x, int))), float("nan"),
                            dtype=torch.bfloat16, device="cuda")  # fmt: skip
        del poison  # which is where the results will lie
        results = kernel(kind, *sizes, dtype=torch.bfloat16, device="cuda")
        first = first or results[0]
        assert all(torch.equal(a, b) for a, b in zip(results[0], first, strict=True))
    for result, wanted in zip(*results, strict=True):
        difference = result.double() - wanted
        assert difference.norm() < (4e-3 if kernel is norm else 3e-3) * wanted.norm()
        if kernel is not norm:
            assert difference.abs().max() < (0.01 if kernel is silu else 0.02) * wanted.abs().max()
