"""Products that end in a norm, or in one's gradient: the kernels in gluon_emulator.py and, in bf16, on a GPU; the
autograd node of a layer's end around them; where it is taken, in whole models too."""

import importlib.util
import random

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from arch.bench.whole_model import config_of
from arch.model import layers
from arch.model.lm import build_model
from arch.model.norms import Norm
from arch.ops.fused import layer_end as module
from arch.ops.fused.layer_end import Scale, layer_end, takes_layer_end

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.fused.triton import mlp, rows, sum_norm
from arch.ops.triton import device_config

from . import gluon_emulator as emulator
from .hopper import HOPPER, ON_A_CPU, launch_emulated, pass_for_hopper, randn

EPS = 1e-6
KERNELS = [f"arch.ops.fused.triton.{name}" for name in ("mlp_parts", "mlp_forward", "mlp_backward", "sum_norm_kernel")]


@pytest.fixture
def emulated(monkeypatch):
    """The launches of mlp.py and sum_norm.py run the emulated kernels, two programs at most."""
    *gated, own = emulator.emulated(*KERNELS)
    for one in gated:
        monkeypatch.setattr(one, "sigmoid", torch.sigmoid)
    _, forward, backward = gated
    launch_emulated(monkeypatch, mlp, {"up_gate": forward.up_gate, "gate_gradients": backward.gate_gradients})
    names = "product_sum_norm", "product_norm_gradients"
    launch_emulated(monkeypatch, sum_norm, {name: getattr(own, name) for name in names})
    monkeypatch.setattr(rows, "norm_gradients", norm_gradients)
    random.seed(0)


def norm_gradients(d_out, x, gate, weight, eps, d_total):
    """In the place of the kernel that the interpreter runs: where it rounds to bf16, it cuts off."""
    leaves = [x.float().requires_grad_(), *([] if weight is None else [weight.detach().requires_grad_()])]
    with torch.enable_grad():
        out = normed(leaves[0], None if weight is None else leaves[1], eps)
        d_x, *d_weight = torch.autograd.grad(out, leaves, d_out.float())
    d_x = d_x if d_total is None else d_x + d_total.float()
    return d_x.to(x.dtype), None, d_weight[0] if d_weight else None


@pytest.fixture
def on_hopper(monkeypatch):
    """What passes for a Hopper GPU, where the fewest rows are enough."""
    pass_for_hopper(monkeypatch)
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 1)


def normed(x, weight, eps=EPS):
    out = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return out if weight is None else out * weight


SIZES = [  # rows, width, inner dimension of the product
    (300, 48, 40),
    (130, 64, 200),
    (270, 128, 128),
    (150, 128, 344),
    (140, 192, 264),
    (300, 256, 72),
    (140, 256, 688),
]


def check_kernels(count, width, inner, weighted, tolerance, eps=0.1, **kind):
    """Both kernels against float64 of what they are given, with an eps that shows; returns what they gave."""
    a, x, d_total = (randn(count, n, seed=i, **kind) for i, n in enumerate((inner, width, width)))
    w = randn(width, inner, seed=3, **kind) / inner**0.5
    weight = randn(width, seed=4, device=kind.get("device", "cpu")).add(2) if weighted else None
    total, out = sum_norm.product_with_norm(a, w, x, weight, eps)
    d_x, d_weight = sum_norm.gradients_with_norm(a, w.T.contiguous(), x, d_total, weight, eps)
    exact_weight = None if weight is None else weight.double().requires_grad_()
    leaf, product = x.double().requires_grad_(), a.double() @ w.double().T
    leaves = [leaf] if exact_weight is None else [leaf, exact_weight]
    d_leaf, *d_exact = torch.autograd.grad(normed(leaf, exact_weight, eps), leaves, product)
    expected = [x.double() + product, normed(total.double(), exact_weight, eps), d_leaf + d_total.double(), *d_exact]
    result = [total, out, d_x] if weight is None else [total, out, d_x, d_weight]
    for a, b in zip(result, expected, strict=True):
        assert a.shape == b.shape and (a.double() - b).norm() < tolerance * b.norm()
    assert weighted or d_weight.numel() == 0
    return result


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("count", "width", "inner"), SIZES)
def test_emulated_kernels(count, width, inner, weighted, emulated, monkeypatch):
    """Rows, widths and inner dimensions that no tile divides, and more and fewer chunks than are loaded ahead."""
    monkeypatch.setattr(sum_norm, "column_sums", lambda x: x.sum(0))
    check_kernels(count, width, inner, weighted, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_emulated_kernels_at_random_speeds(seed, emulated, monkeypatch):
    random.seed(seed)
    monkeypatch.setattr(sum_norm, "column_sums", lambda x: x.sum(0))
    monkeypatch.setattr(sum_norm, "grid_of", lambda x, tiles: (1 + seed % 2,))
    for width, inner in ((64, 64), (64, 700), (128, 128), (128, 690), (256, 120), (256, 900)):
        check_kernels(700, width, inner, bool(seed % 3), 1e-6)


def test_sizes_fit_a_multiprocessor(emulated, monkeypatch):
    """The emulator counts a program's memory: every rule, and one that takes too much."""
    for width in (64, 128, 256):
        check_kernels(10, width, 72, False, 1e-6)
    monkeypatch.setattr(sum_norm, "sum_norm_stages", lambda width: 4)
    with pytest.raises(AssertionError, match="bytes of shared memory"):
        check_kernels(10, 256, 72, False, 1e-6)


EPSILONS = 0.1, 0.5  # of the two norms, which tell them apart
NAMES = ("x", "mixed", "out", "norm", "up", "gate", "down", "next")


def leaves_of(weighted, width=64, inner=48, hidden=88, rows=(2, 70), device="cpu", stream=torch.bfloat16):
    """x, mixed, the weights and norms of `layer_end`, by NAMES."""
    made = [randn(*rows, width, seed=0, dtype=stream, device=device), randn(*rows, inner, seed=1, device=device)]
    widths = {"out": (width, inner), "up": (hidden, width), "gate": (hidden, width), "down": (width, hidden)}
    result = dict(zip(("x", "mixed"), made, strict=True))
    for seed, (name, shape) in enumerate(widths.items(), 2):
        result[name] = randn(*shape, seed=seed, device=device) / shape[1] ** 0.5
    for seed, name in enumerate(("norm", "next"), 8):
        result[name] = randn(width, seed=seed, device=device).mul(0.3).add(1) if weighted else None
    return {name: None if result[name] is None else result[name].requires_grad_() for name in NAMES}


def matrices_of(leaves):
    result = []
    for name in ("out", "up", "gate", "down"):
        matrix = nn.Linear(*leaves[name].shape[::-1], bias=False, device="meta")
        matrix.weight = nn.Parameter(leaves[name], leaves[name].requires_grad)
        leaves[name] = matrix.weight
        result.append(matrix)
    return result


def plain_end(kind, x, mixed, out, norm, up, gate, down, after):
    total = x + mixed @ out.T
    n = normed(total, norm, EPSILONS[0])
    factor = n @ gate.T
    y = total + ((n @ up.T) * (factor * factor.sigmoid() if kind else factor)) @ down.T
    return y, normed(y, after, EPSILONS[1])


def check_node(kind, weighted, frozen, used, tolerance, **sizes):
    """The node's results and gradients in bf16 beside float64's; `used`: which of the results are read."""
    leaves = leaves_of(weighted, **sizes)
    for name in frozen:
        leaves[name].requires_grad_(False)
    matrices = matrices_of(leaves)
    scales = Scale(leaves["norm"], EPSILONS[0]), Scale(leaves["next"], EPSILONS[1])
    with torch.autocast(leaves["x"].device.type, torch.bfloat16):
        assert takes_layer_end(leaves["x"], matrices, kind, scales)
        results = layer_end(leaves["x"], leaves["mixed"], matrices, kind, *scales)
    assert {type(y.grad_fn).__name__ for y in results} == {"_LayerEndBackward"}
    wanted = [name for name in NAMES if leaves[name] is not None and leaves[name].requires_grad]
    unread = used == (0,)  # then the next norm's weight has no gradient
    wanted = [name for name in wanted if not (unread and name == "next")]
    exact = {name: None if leaf is None else leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    expected = plain_end(kind, *(exact[name] for name in NAMES))
    weights = [randn(*y.shape, seed=20 + i, device=y.device.type) for i, y in enumerate(results)]

    def gradients(results, leaves):
        total = sum((results[i].double() * weights[i].double()).sum() for i in used)
        return torch.autograd.grad(total, [leaves[name] for name in wanted])

    result = gradients(results, leaves)
    for name, a, b in zip(["y", "normed", *wanted], [*results, *result],
                          [*expected, *gradients(expected, exact)], strict=True):  # fmt: skip
        assert (a.double() - b).norm() < tolerance * b.norm(), name
    assert [d.dtype for d in result] == [leaves[name].dtype for name in wanted]
    return [*results, *result]


@ON_A_CPU
@pytest.mark.parametrize("frozen", [(), ("x",), ("mixed", "out"), ("up",), ("gate", "up"), ("down", "norm")])
@pytest.mark.parametrize("kind", ["", "silu"])
def test_one_node(kind, frozen, emulated, on_hopper):
    check_node(kind, True, frozen, (0, 1), 0.03)


@ON_A_CPU
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_one_result_is_enough(used, emulated, on_hopper):
    check_node("silu", False, (), used, 0.03)


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.float().sum()

    @staticmethod
    def backward(ctx, *grads):
        return None


@ON_A_CPU
def test_no_gradient_at_all_gives_none(emulated, on_hopper):
    leaves = leaves_of(False)
    matrices = matrices_of(leaves)
    with torch.autocast("cpu", torch.bfloat16):
        _, out = layer_end(leaves["x"], leaves["mixed"], matrices, "", Scale(None, EPS), Scale(None, EPS))
    Stop.apply(out).backward()
    assert leaves["x"].grad is None and leaves["up"].grad is None


@ON_A_CPU
def test_its_products_are_counted(emulated, on_hopper):
    leaves = leaves_of(False)
    matrices = matrices_of(leaves)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        results = layer_end(leaves["x"], leaves["mixed"], matrices, "", Scale(None, EPS), Scale(None, EPS))
        sum(y.float().sum() for y in results).backward()
    assert counter.get_total_flops() == 3 * 2 * 140 * 64 * (48 + 3 * 88)


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"width": 264}, False),  # wider than a program's rows
        ({"width": 60}, False),  # rows that the copy engine cannot read
        ({"inner": 44}, False),
        ({"hidden": 64}, False),  # one tile of columns
        ({"stream": torch.float32}, False),  # a residual stream that stays in fp32
        ({"rows": (0, 70)}, False),
        ({"rows": (2, 69)}, False),  # too few
        ({"kind": "sigmoid"}, False),
        ({"autocast": False, "stream": torch.float32}, False),
        ({"grad": False}, False),
        ({"bias": True}, False),
        ({"GLUON": False}, False),
        ({"hopper_instructions": lambda exact: False}, False),
        ({"emptied": True}, False),  # by a library that shards parameters
        ({"elsewhere": True}, False),  # on another device
    ],
)
def test_where_it_is_taken(changes, taken, on_hopper, monkeypatch):
    changes = dict(changes)
    given = {"kind": "", "autocast": True, "grad": True, "bias": False, "emptied": False, "elsewhere": False}
    given |= {name: changes.pop(name) for name in given if name in changes}
    for name in ("GLUON", "hopper_instructions"):
        if name in changes:
            monkeypatch.setattr(device_config, name, changes.pop(name))
    leaves = leaves_of(True, **changes)
    matrices = matrices_of(leaves)
    if given["bias"]:
        matrices[1] = nn.Linear(64, 88)
    next_weight = torch.zeros(0) if given["emptied"] else leaves["next"]
    next_weight = next_weight.to("meta") if given["elsewhere"] else next_weight
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 140)
    with torch.autocast("cpu", torch.bfloat16, enabled=given["autocast"]), torch.set_grad_enabled(given["grad"]):
        scales = Scale(leaves["norm"], EPS), Scale(next_weight, EPS)
        assert takes_layer_end(leaves["x"], matrices, given["kind"], scales) is taken


def gradients_of_model(model, ids, autocast=True):
    """Hidden states and the gradients of all parameters that have one."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=autocast):
        hidden, _ = model.decoder(ids)
    names, parameters = zip(*model.decoder.named_parameters(), strict=True)
    total = (hidden.float() * randn(*hidden.shape, seed=5, device=ids.device.type)).sum()
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return {"hidden": hidden} | {name: d for name, d in zip(names, gradients, strict=True) if d is not None}


def check_models(arch, size, length, monkeypatch, device="cpu"):
    """As close to fp32 with the node as without it, in every layer; twice to the same bits."""
    model = build_model(config_of(arch, size, 257, length), 0).to(device)
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 1)
    ids = torch.randint(0, 257, (2, length), generator=torch.Generator().manual_seed(0)).to(device)
    calls, whole = [], layers.layer_end
    monkeypatch.setattr(layers, "layer_end", lambda *a: (calls.append(a), whole(*a))[1])
    by_node, again = gradients_of_model(model, ids), gradients_of_model(model, ids)
    assert len(calls) == 2 * len(model.decoder.layers)
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 1 << 40)
    apart = gradients_of_model(model, ids)
    exact = gradients_of_model(model, ids, autocast=False)
    assert len(calls) == 2 * len(model.decoder.layers) and set(by_node) == set(apart)
    for name, value in exact.items():
        assert torch.equal(by_node[name], again[name])
        errors = [(result[name].float() - value.float()).norm() for result in (by_node, apart)]
        assert errors[0] <= 1.25 * errors[1], name


@ON_A_CPU
@pytest.mark.parametrize("arch", ["llama", "hgrn2"])
def test_models(arch, emulated, on_hopper, monkeypatch):
    check_models(arch, "2x64", 70, monkeypatch)


def taken_in(model, monkeypatch, **given):
    calls, whole = [], layers.layer_end
    with monkeypatch.context() as patched, torch.autocast("cpu", torch.bfloat16):
        patched.setattr(layers, "layer_end", lambda *a: (calls.append(a), whole(*a))[1])
        model(torch.arange(70).expand(2, 70), **given)
    return len(calls)


def small_model(**changes):
    return build_model(config_of("llama", "2x64", 257, 70).replace(**changes), 0)


@ON_A_CPU
def test_which_models_take_it(emulated, on_hopper, monkeypatch):
    """All layers or none: not where activations are computed again, without gradients, or where the norm is LayerNorm;
    a mixer that defines `forward` alone is called whole."""
    model = small_model()
    assert taken_in(model, monkeypatch) == 2
    model.decoder.gradient_checkpointing = True
    assert taken_in(model, monkeypatch) == 0
    model.decoder.gradient_checkpointing = False
    mixer = type(model.decoder.layers[0].mixer)
    with monkeypatch.context() as patched:
        patched.setattr(mixer, "forward", lambda self, *a: super(mixer, self).forward(*a), raising=False)
        assert taken_in(model, monkeypatch) == 0
    with torch.no_grad():
        assert taken_in(model, monkeypatch) == 0
    assert taken_in(small_model(norm="layer"), monkeypatch) == 0
    assert Norm("layer", 8, EPS).scale() is None and Norm("srms", 8, EPS).scale() == Scale(None, EPS)


class OtherMLP(layers.GatedMLP):
    pass


class OtherNorm(Norm):
    pass


def replace_forward(module):
    module.forward = module.forward


CHANGES = {  # what somebody does to a model; in how many of its two layers the node is still taken
    "a mixer's hook": (lambda d: d.layers[0].mixer.register_forward_hook(lambda *a: None), 1),
    "a hook before an MLP": (lambda d: d.layers[1].channel.register_full_backward_pre_hook(lambda *a: None), 1),
    "a mixer's forward": (lambda d: replace_forward(d.layers[1].mixer), 1),
    "another MLP": (lambda d: setattr(d.layers[0].channel, "__class__", OtherMLP), 1),
    "another norm": (lambda d: setattr(d.layers[0].channel_norm, "__class__", OtherNorm), 1),
    "another last norm": (lambda d: setattr(d.norm, "__class__", OtherNorm), 1),
    "a layer's hook, as sharding has": (lambda d: d.layers[1].register_forward_pre_hook(lambda *a: None), 0),
    "a hook of all modules": (lambda d: nn.modules.module.register_module_forward_hook(lambda *a: None), 0),
}


@ON_A_CPU
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_called(name, emulated, on_hopper, monkeypatch):
    change, taken = CHANGES[name]
    model = small_model()
    handle = change(model.decoder)
    try:
        assert taken_in(model, monkeypatch) == taken
    finally:
        if hasattr(handle, "remove"):
            handle.remove()


class Wrapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inside = layer

    def forward(self, *given):
        return self.inside(*given)


@ON_A_CPU
def test_wrapped_layers_know_no_norm_of_the_next(emulated, on_hopper, monkeypatch):
    model = small_model()
    for index, layer in enumerate(model.decoder.layers):
        model.decoder.layers[index] = Wrapped(layer)
    assert taken_in(model, monkeypatch) == 0


def test_an_mlp_of_another_kind_has_a_layer_to_itself():
    model = small_model()
    model.decoder.layers[0].channel = nn.Linear(64, 64)
    model(torch.arange(70)[None])


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("count", "width", "inner"),
    [*SIZES, (16_384, 64, 352), (65_536, 128, 688), (65_536, 256, 256), (70_000, 256, 1376)],
)
def test_kernels_on_a_gpu(count, width, inner, weighted):
    """bf16 against float64 of the same operands; ten times to the same bits."""
    first = None
    for _ in range(10):
        poison = torch.full((count, 3 * width), float("nan"), dtype=torch.bfloat16, device="cuda")
        del poison  # which is where the results will lie
        result = check_kernels(count, width, inner, weighted, 4e-3, dtype=torch.bfloat16, device="cuda")
        first = first or result
        assert all(torch.equal(a, b) for a, b in zip(result, first, strict=True))


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["", "silu"])
@pytest.mark.parametrize("sizes", [(64, 48, 88), (128, 128, 344), (192, 192, 520), (256, 512, 688)])
def test_node_on_a_gpu(sizes, kind, weighted, monkeypatch):
    width, inner, hidden = sizes
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 1)
    check_node(kind, weighted, (), (0, 1), 0.02, width=width, inner=inner, hidden=hidden, rows=(3, 777), device="cuda")


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("size", ["2x64", "2x128", "3x256"])
@pytest.mark.parametrize("arch", ["llama", "tnl", "hgrn2", "cosformer2", "hgrn1"])
def test_models_on_a_gpu(arch, size, monkeypatch):
    check_models(arch, size, 1000, monkeypatch, device="cuda")
