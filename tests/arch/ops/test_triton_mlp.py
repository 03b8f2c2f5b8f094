"""The gated MLP with the gate inside its products: the kernels in gluon_emulator.py and, in bf16, on a GPU; the
autograd node around them; where it is taken."""

import importlib.util
import random

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from arch.kernel_config import mlp_config, override
from arch.ops.fused import gated_mlp as module
from arch.ops.fused import linear
from arch.ops.fused.gated_mlp import gated_mlp

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.fused.triton import mlp
from arch.ops.triton import device_config

from . import gluon_emulator as emulator
from .hopper import HOPPER, launch_emulated, pass_for_hopper, randn

KERNELS = [f"arch.ops.fused.triton.mlp_{name}" for name in ("parts", "forward", "backward")]


@pytest.fixture
def emulated(monkeypatch):
    """The launches of mlp.py run the emulated kernels, two programs at most."""
    _, forward, backward = modules = emulator.emulated(*KERNELS)
    for one in modules:
        monkeypatch.setattr(one, "sigmoid", torch.sigmoid)
    launch_emulated(monkeypatch, mlp, {"up_gate": forward.up_gate, "gate_gradients": backward.gate_gradients})
    random.seed(0)


def operands(count, width, hidden, **kind):
    return (
        randn(count, width, seed=0, **kind),
        randn(2 * hidden, width, seed=1, **kind) / width**0.5,
        randn(width, hidden, seed=2, **kind) / hidden**0.5,
        randn(count, width, seed=3, **kind),
    )


def reference(x, weights, down, d_out, h, gate):
    """h, act and the gradient of `h` in float64; act and that of the given h."""
    exact = x.double() @ weights.double().T
    given = h.double().requires_grad_()
    u, v = given.chunk(2, 1)
    act = u * (v * v.sigmoid() if gate else v)
    (d_h,) = torch.autograd.grad(act, given, d_out.double() @ down.double())
    return exact, act.detach(), d_h


SIZES = [
    (300, 48, 104),
    (130, 64, 88),
    (270, 128, 352),
    (300, 192, 200),
    (140, 256, 136),
    (150, 384, 200),
    (130, 640, 136),
]


@pytest.mark.parametrize("gate", ["", "silu"])
@pytest.mark.parametrize(("count", "width", "hidden"), SIZES)
def test_emulated_kernels(count, width, hidden, gate, emulated):
    """Rows, widths and hidden widths that no tile divides; neither half of h is written over by the other."""
    x, weights, down, d_out = operands(count, width, hidden)
    h, act = mlp.up_and_gate(x, weights, gate)
    expected = reference(x, weights, down, d_out, h, gate)
    d_h = mlp.gradients_of_gate(d_out, down, h, gate)
    for result, wanted in zip((h, act, d_h), expected, strict=True):
        assert (result.double() - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("width", [128, 640])
def test_emulated_kernels_round_as_those_apart(width, emulated):
    """bf16: act is that of the u and v beside it, which are rounded, to the bit."""
    x, weights, *_ = operands(140, width, 136, dtype=torch.bfloat16)
    h, act = mlp.up_and_gate(x, weights, "silu")
    u, v = h.float().chunk(2, 1)
    assert torch.equal(act, (u * (v * v.sigmoid())).bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_emulated_kernels_at_random_speeds(seed, emulated, monkeypatch):
    random.seed(seed)
    monkeypatch.setattr(mlp, "grid_of", lambda x, tiles: (1 + seed % 2,))
    for width, hidden in ((64, 330), (128, 200), (256, 200), (200, 392), (512, 200), (1024, 264)):
        test_emulated_kernels(700, width, hidden - hidden % 8, "silu", None)


def modules_of(width, hidden, bias=False, device="cpu"):
    torch.manual_seed(0)
    shapes = (width, hidden), (width, hidden), (hidden, width)
    return [nn.Linear(*shape, bias=bias, device=device) for shape in shapes]


@pytest.fixture
def on_hopper(monkeypatch):
    """What passes for a Hopper GPU."""
    pass_for_hopper(monkeypatch)


@pytest.mark.parametrize("frozen", [(), ("x",), ("up",), ("gate", "up"), ("down",), ("x", "up", "gate")])
@pytest.mark.parametrize("kind", ["", "silu"])
def test_one_node(kind, frozen, emulated, on_hopper):
    """Output and gradients in bf16, beside the modules' own; parts that are frozen."""
    up, gate, down = modules_of(64, 88)
    x = randn(2, 70, 64, seed=0).requires_grad_()
    leaves = {"x": x, "up": up.weight, "gate": gate.weight, "down": down.weight}
    for name in frozen:
        leaves.pop(name).requires_grad_(False)
    weight = randn(2, 70, 64, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        out = gated_mlp(x, up, gate, down, kind)
    assert out.dtype == torch.bfloat16 and type(out.grad_fn).__name__ == "_GatedMLPBackward"
    exact = down(up(x) * (nn.functional.silu(gate(x)) if kind else gate(x)))
    result = torch.autograd.grad(out, list(leaves.values()), weight.bfloat16())
    expected = torch.autograd.grad(exact, list(leaves.values()), weight)
    for a, b in zip((out, *result), (exact, *expected), strict=True):
        assert (a.float() - b).norm() < 0.02 * b.norm()
    assert [x.dtype for x in result] == [torch.float32] * len(result)


def test_its_products_are_counted(emulated, on_hopper):
    up, gate, down = modules_of(64, 88)
    x = randn(1, 70, 64, seed=0).requires_grad_()
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        gated_mlp(x, up, gate, down, "silu").float().sum().backward()
    assert counter.get_total_flops() == 3 * 3 * 2 * 70 * 64 * 88


@pytest.mark.parametrize(
    ("width", "hidden", "kind", "autocast", "changes"),
    [
        (1032, 88, "", True, {}),  # wider than was measured
        (64, 64, "", True, {}),  # one tile of columns
        (60, 88, "", True, {}),  # rows that the copy engine cannot read
        (64, 92, "", True, {}),
        (64, 88, "sigmoid", True, {}),
        (64, 88, "", False, {}),
        (64, 88, "", True, {"GLUON": False}),
        (64, 88, "", True, {"hopper_instructions": lambda exact: False}),
        (64, 88, "", True, {"bias": True}),
    ],
)
def test_where_the_products_stay_apart(width, hidden, kind, autocast, changes, on_hopper, monkeypatch):
    biased = changes.pop("bias", False)
    for name, value in changes.items():
        monkeypatch.setattr(device_config, name, value)
    monkeypatch.setattr(module, "_GatedMLP", None)
    monkeypatch.setattr(linear, "uses_kernels", lambda x: False)
    monkeypatch.setattr(module, "weights_of", lambda x, modules: [] if biased else [m.weight for m in modules])
    up, gate, down = modules_of(width, hidden, biased)
    x = randn(3, width, seed=0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        factor = {"": gate(x), "sigmoid": gate(x).sigmoid()}[kind]
        torch.testing.assert_close(gated_mlp(x, up, gate, down, kind), down(up(x) * factor))


def test_sizes_fit_a_multiprocessor(emulated):
    """The emulator counts a program's memory: the widest of every rule, and one that takes too much."""
    for width in (64, 128, 256, 512, 1024):
        assert mlp_config(width) is not None
        mlp.up_and_gate(*operands(10, width, 136)[:2], "")
    with override(up_stages=9), pytest.raises(AssertionError, match="bytes of shared memory"):
        mlp.up_and_gate(*operands(10, 256, 136)[:2], "")


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("gate", ["", "silu"])
@pytest.mark.parametrize(
    ("count", "width", "hidden"),
    [*SIZES, (20_000, 128, 352), (20_000, 256, 688), (20_000, 384, 1024), (20_000, 512, 1376), (9000, 832, 2160),
     (9000, 1024, 2816)],
)  # fmt: skip
def test_kernels_on_a_gpu(count, width, hidden, gate):
    """bf16 against float64 of the same operands; ten times to the same bits."""
    given = operands(count, width, hidden, dtype=torch.bfloat16, device="cuda")
    x, weights, down, d_out = given
    first = None
    for _ in range(10):
        poison = torch.full((count, 4 * hidden), float("nan"), dtype=torch.bfloat16, device="cuda")
        del poison  # which is where the outputs will lie
        h, act = mlp.up_and_gate(x, weights, gate)
        d_h = mlp.gradients_of_gate(d_out, down, h, gate)
        first = first or (h, act, d_h)
        assert all(torch.equal(a, b) for a, b in zip((h, act, d_h), first, strict=True))
    for result, wanted in zip(first, reference(*given, first[0], gate), strict=True):
        assert (result.double() - wanted).norm() < 3e-3 * wanted.norm()
        assert (result.double() - wanted).abs().max() < 0.02 * wanted.abs().max()
