"""How silu of a product's first columns (test_triton_products.py) reaches `decay_attention`, what becomes of it then,
and where it is not made."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime.interpreter import InterpretedFunction

from arch.kernel_config import override
from arch.model.lm import build_model
from arch.model.mixer import Stream
from arch.ops import decay_attention
from arch.ops.decay_attention.triton import operator
from arch.ops.fused import linear
from arch.ops.fused.linear import fused_linear
from arch.ops.fused.triton import projections
from arch.ops.joint_rows import leave_silu, mark_joint, silu_of
from arch.ops.triton import device_config
from arch.presets import preset

from .hopper import HOPPER, ON_A_CPU, randn


def modules_of(width, *widths, bias=False):
    torch.manual_seed(0)
    return tuple(nn.Linear(width, wide, bias=bias) for wide in widths)


def heads(x):
    return x.unflatten(-1, (-1, 32))


def test_silu_is_left_with_the_columns(emulated, on_hopper):
    """bf16: outputs and gradients as without it; silu of the rounded numbers, once, for the columns themselves."""
    modules, x = modules_of(64, 64, 128, 64, 16, 3), randn(2, 70, 64, seed=0).requires_grad_()
    weights = [module.weight for module in modules]
    results, flops = [], []
    for silu in (False, True):
        with FlopCounterMode(display=False) as counter:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = fused_linear(x, modules, silu=silu)
            total = sum((y.float() * randn(*y.shape, seed=9)).sum() for y in outputs)
            results.append([*outputs, *torch.autograd.grad(total, [x, *weights])])
        flops.append(counter.get_total_flops())
        assert ("arch.project_silu" in str(counter.get_flop_counts())) is silu
        q, k, v, *_ = outputs
        assert (silu_of(q) is None) is not silu
    assert flops[0] == flops[1] > 0
    for a, b in zip(*results, strict=True):
        assert (a.float() - b.float()).norm() < 0.01 * a.float().norm()
    assert silu_of(q) is None and silu_of(q, k) is None  # that of q is gone
    for other in (v, k[..., :64], k.flatten()[None, None], k.clone(), k.masked_fill(k > 0, 0), k[:, 1:], k[1:]):
        assert silu_of(other) is None
    (result,) = silu_of(heads(k))
    assert result.shape == (2, 70, 4, 32) and result.is_contiguous()
    assert torch.equal(result.flatten(2), (k.float() * k.float().sigmoid()).bfloat16())


def test_all_or_none_are_given():
    """And none of what was changed since."""
    x = mark_joint(randn(2, 5, 192, seed=0))
    q, k, v = x.chunk(3, -1)
    leave_silu(x, *(torch.full((10, 64), float(n)) for n in range(2)))
    assert silu_of(q, v) is None and silu_of(q, k.clone()) is None
    assert [y.mean().item() for y in silu_of(k, q)] == [1, 0]
    assert silu_of(q, k) is None
    leave_silu(x, randn(10, 64, seed=1))
    q.mul_(2)
    assert silu_of(q) is None


@pytest.mark.parametrize(
    ("width", "widths", "changes"),
    [
        (1032, (64, 64, 64), {}),  # wider than was measured
        (60, (64, 64, 64), {}),  # rows that the copy engine cannot read
        (64, (64, 64), {}),  # one tile of columns
        (64, (96, 96, 64), {}),  # half a tile has columns of both
        (64, (64, 72, 64), {}),  # not columns of one tensor
        (64, (64, 64, 64), {"silu": False}),
        (64, (64, 64, 64), {"apart": True}),
        (64, (64, 64, 64), {"bias": True}),
        (64, (64, 64, 64), {"autocast": False}),
        (64, (64, 64, 64), {"grad": False}),
        (64, (64, 64, 64), {"GLUON": False}),
        (64, (64, 64, 64), {"hopper_instructions": lambda exact: False}),
    ],
)
def test_where_the_product_is_a_plain_one(width, widths, changes, on_hopper, monkeypatch):
    """Or none at all: the outputs are those of before, to the bit."""
    given = {"silu": True, "apart": False, "bias": False, "autocast": True, "grad": True} | changes
    for name in changes.keys() & {"GLUON", "hopper_instructions"}:
        monkeypatch.setattr(device_config, name, changes[name])
    monkeypatch.setattr(projections, "project_silu", None)
    modules, x = modules_of(width, *widths, bias=given["bias"]), randn(1, 3, width, seed=0)
    with torch.autocast("cpu", torch.bfloat16, enabled=given["autocast"]), torch.set_grad_enabled(given["grad"]):
        groups = modules if given["apart"] else (modules,)
        result, plain = fused_linear(x, *groups, silu=given["silu"]), fused_linear(x, *groups)
    assert all(torch.equal(a, b) and silu_of(a) is None for a, b in zip(result, plain, strict=True))


@pytest.fixture
def activated(monkeypatch):
    """Launches of the kernel that makes silu by itself."""
    launches, kernel = [], operator.activate

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(operator, "activate", Counted())
    return launches


def rotary(q, k, v):
    angles = torch.linspace(0, 1, 64).view(2, 32), torch.arange(q.shape[1])
    return decay_attention(q, k, v, backend="triton", angles=angles, activation="silu")


def fading(q, k, v):
    return decay_attention(q, k, v, torch.tensor([-0.3, -0.01]), backend="triton", activation="silu")


CALLS = {  # call, sizes
    "decays": (fading, {"tma": True}),
    "angles": (rotary, {"sequential": False}),
    "angles by runs": (rotary, {"sequential": True}),
}


def joint_of(values, left=True):
    """Heads of q, k and v, columns of one tensor, and silu of the first two left with it; weak references to the
    storages of all three."""
    whole, storages = mark_joint(values.clone()), []
    if left:
        storages = [nn.functional.silu(x).flatten(0, 1).contiguous() for x in whole.chunk(3, -1)[:2]]
        leave_silu(whole, *storages)
    seen = [weakref.ref(x.untyped_storage()) for x in (whole, *storages)]
    return [heads(x).detach().requires_grad_() for x in whole.chunk(3, -1)], seen


@ON_A_CPU
@pytest.mark.parametrize("name", CALLS)
def test_silu_reaches_the_attention(name, activated):
    """Outputs and gradients as without; a graph that is kept gives them twice."""
    call, sizes = CALLS[name]
    values, results = randn(2, 18, 3 * 64, seed=0), []
    for left in (False, True):
        leaves, _ = joint_of(values, left)
        activated.clear()
        with override(chunk=16, **sizes):
            out, state = call(*leaves)
            assert len(activated) == 1 - left
            total = (out * randn(*out.shape, seed=1)).sum() + (state * randn(*state.shape, seed=2)).sum()
            first = torch.autograd.grad(total, leaves, retain_graph=True)
            again = torch.autograd.grad(total, leaves)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        results.append([out, state, *first])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


@ON_A_CPU
@pytest.mark.parametrize("other", ["masked", "cloned", "no gradients"])
def test_other_tensors_are_put_behind_silu(other, activated):
    (q, k, v), _ = joint_of(randn(2, 18, 3 * 64, seed=0))
    k = {"masked": k.masked_fill(k > 2, 0), "cloned": k.clone()}.get(other, k)
    with override(chunk=16, tma=True), torch.set_grad_enabled(other != "no gradients"):
        out, _ = fading(q, k, v)
        launches = len(activated)
        expected, _ = fading(*(x.detach().clone() for x in (q, k, v)))
    assert launches == (other != "no gradients")
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@ON_A_CPU
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("end", ["backward", "no backward", "not read"])
def test_silu_lives_no_longer_than_its_columns(name, end, monkeypatch):
    """Nor do they keep one another, without Python's collector of cycles; the interpreter, which does, runs nothing."""
    call, sizes = CALLS[name]
    monkeypatch.setattr(InterpretedFunction, "__getitem__", lambda kernel, grid: lambda *args, **constants: None)
    values = randn(2, 18, 3 * 64, seed=0)
    with override(chunk=16, **sizes):  # what PyTorch imports the first time keeps the frames that it was called from
        call(*joint_of(values)[0])[0].sum().backward()
    gc.collect()
    gc.disable()
    try:
        leaves, seen = joint_of(values)
        with override(chunk=16, **sizes):
            if end != "not read":
                out = call(*leaves)
                assert not any(x() is None for x in seen)
            if end == "backward":
                out[0].sum().backward()
                out = None
                assert [x() is None for x in seen] == [False, True, True]
            out = None
        del leaves
        assert all(x() is None for x in seen)
    finally:
        gc.enable()


PADDING = torch.arange(18).expand(2, 18) < torch.tensor([[3], [0]])
STARTS = (torch.arange(18) == 7).expand(2, 18)
LAYERS = [  # architecture, its options, what the stream has; whether silu comes from the product
    ("tnl", {}, {}, True),
    ("tnl", {}, {"padding_mask": PADDING}, False),
    pytest.param("tnl", {}, {"document_starts": STARTS}, False, marks=pytest.mark.slow),
    pytest.param("tnl", {"decay": "none"}, {}, False, marks=pytest.mark.slow),
    pytest.param("tnl", {"decay": "dependent"}, {}, False, marks=pytest.mark.slow),
    pytest.param("tnl", {"value_activation": True}, {}, False, marks=pytest.mark.slow),
    ("tnl", {}, {"backend": "chunk"}, False),
    ("cosformer2", {}, {}, True),
    pytest.param("cosformer2", {}, {"padding_mask": PADDING}, False, marks=pytest.mark.slow),
    pytest.param("cosformer2", {}, {"document_starts": STARTS}, True, marks=pytest.mark.slow),
    ("cosformer2", {"lrpe": "half"}, {}, False),
]


@ON_A_CPU
@pytest.mark.parametrize(("arch", "options", "given", "taken"), LAYERS)
def test_layers(arch, options, given, taken, emulated, activated, monkeypatch):
    """In fp32, which the interpreter takes: a mixer's output and gradients as those with a product of its own, by one
    launch less; so where it is computed twice, and silu of the first time is gone."""
    config = preset(arch, "14k", d_model=64, n_heads=2, d_ffn=80, n_layers=2, chunk_size=16, **options)
    mixer, x = build_model(config, 0).decoder.layers[0].mixer, randn(2, 18, 64, seed=0).requires_grad_()
    stream = Stream(torch.arange(18), **({"backend": "triton"} | given))
    products, project = [], projections.project_with_silu
    monkeypatch.setattr(projections, "project_with_silu", lambda *a: (products.append(a), project(*a))[1])
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(linear, "casts", lambda x, weights: len(weights) > 1)
    sizes = {"tnl": {"tma": True}, "cosformer2": {"sequential": False}}[arch] if "lrpe" not in options else {}
    results, launches = [], []
    for kernel, twice in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(linear, "hopper_products", lambda x, kernel=kernel: kernel)
        products.clear()
        activated.clear()
        with override(chunk=32, **sizes):
            if twice:
                out = checkpoint(lambda x: mixer(x, stream, {})[0], x, use_reentrant=False)
            else:
                out = mixer(x, stream, {})[0]
            assert len(products) == (kernel and taken)
            total = (out * randn(*out.shape, seed=1)).sum()
            results.append([out, *torch.autograd.grad(total, [x, *mixer.parameters()])])
        assert len(products) == (kernel and taken) * (1 + twice)
        launches.append(len(activated))
    if taken:
        assert launches == [1, 0, 0]
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("arch", ["tnl", "cosformer2"])
def test_layers_on_a_gpu(arch, monkeypatch):
    """bf16 under autocast, heads of 128 channels: no launch of `activate`, and what comes out with it."""
    config = preset(arch, "14k", d_model=256, n_heads=2, d_ffn=80, n_layers=2)
    mixer = build_model(config, 0).decoder.layers[0].mixer.cuda()
    x = randn(2, 1000, 256, seed=0, device="cuda").requires_grad_()
    stream, results = Stream(torch.arange(1000, device="cuda")), []
    for kernel in (False, True):
        with monkeypatch.context() as patched, torch.autocast("cuda", torch.bfloat16):
            if kernel:
                patched.setattr(operator, "activate", None)
            else:
                patched.setattr(linear, "hopper_products", lambda x: False)
            out = mixer(x, stream, {})[0]
        total = (out.float() * randn(*out.shape, seed=1, device="cuda")).sum()
        results.append([out, *torch.autograd.grad(total, [x, *mixer.parameters()])])
    for a, b in zip(*results, strict=True):
        assert (a.float() - b.float()).norm() < 0.01 * a.float().norm()
