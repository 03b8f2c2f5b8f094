"""The gated MLP and a layer's end as one autograd node each, around the products of test_triton_products.py: results
and gradients, which of them are wanted, where they are taken, in whole models too."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from arch.bench.whole_model import config_of
from arch.model import layers
from arch.model.lm import build_model
from arch.model.norms import Norm
from arch.ops.fused import gated_mlp as mlp_module
from arch.ops.fused import layer_end as module
from arch.ops.fused import linear
from arch.ops.fused.gated_mlp import gated_mlp
from arch.ops.fused.layer_end import Scale, layer_end, takes_layer_end
from arch.ops.fused.triton import rows
from arch.ops.triton import device_config

from .hopper import HOPPER, ON_A_CPU, randn

EPS = 1e-6
pytestmark = pytest.mark.usefixtures("own_rounding")


def norm_gradients(d_out, x, gate, weight, eps, d_total):
    """In the place of the kernel that the interpreter runs: where it rounds to bf16, it cuts off."""
    leaves = [x.float().requires_grad_(), *([] if weight is None else [weight.detach().requires_grad_()])]
    with torch.enable_grad():
        out = normed(leaves[0], None if weight is None else leaves[1], eps)
        d_x, *d_weight = torch.autograd.grad(out, leaves, d_out.float())
    d_x = d_x if d_total is None else d_x + d_total.float()
    return d_x.to(x.dtype), None, d_weight[0] if d_weight else None


@pytest.fixture
def own_rounding(monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(rows, "norm_gradients", norm_gradients)


@pytest.fixture
def few_rows(on_hopper, monkeypatch):
    """What passes for a Hopper GPU, where the fewest rows are enough."""
    monkeypatch.setattr(module, "SUM_NORM_ROWS", 1)


def normed(x, weight, eps=EPS):
    out = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return out if weight is None else out * weight


def modules_of(width, hidden, bias=False):
    torch.manual_seed(0)
    return [nn.Linear(*shape, bias=bias) for shape in ((width, hidden), (width, hidden), (hidden, width))]


@ON_A_CPU
@pytest.mark.parametrize("frozen", [(), ("x",), ("up",), ("gate", "up"), ("down",), ("x", "up", "gate")])
@pytest.mark.parametrize("kind", ["", "silu"])
def test_the_mlp_is_one_node(kind, frozen, emulated, on_hopper):
    """Output and gradients in bf16, beside the modules' own; parts that are frozen; its FLOPs."""
    up, gate, down = modules_of(64, 88)
    x = randn(2, 70, 64, seed=0).requires_grad_()
    leaves = {"x": x, "up": up.weight, "gate": gate.weight, "down": down.weight}
    for name in frozen:
        leaves.pop(name).requires_grad_(False)
    weight = randn(2, 70, 64, seed=1)
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", torch.bfloat16):
            out = gated_mlp(x, up, gate, down, kind)
        result = torch.autograd.grad(out, list(leaves.values()), weight.bfloat16())
    assert frozen or counter.get_total_flops() == 3 * 3 * 2 * 140 * 64 * 88
    assert out.dtype == torch.bfloat16 and type(out.grad_fn).__name__ == "_GatedMLPBackward"
    exact = down(up(x) * (nn.functional.silu(gate(x)) if kind else gate(x)))
    expected = torch.autograd.grad(exact, list(leaves.values()), weight)
    for a, b in zip((out, *result), (exact, *expected), strict=True):
        assert (a.float() - b).norm() < 0.02 * b.norm()
    assert [x.dtype for x in result] == [torch.float32] * len(result)


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
def test_where_the_products_of_the_mlp_stay_apart(width, hidden, kind, autocast, changes, on_hopper, monkeypatch):
    biased = "bias" in changes
    for name, value in changes.items():
        if name != "bias":
            monkeypatch.setattr(device_config, name, value)
    monkeypatch.setattr(mlp_module, "_GatedMLP", None)
    monkeypatch.setattr(linear, "uses_kernels", lambda x: False)
    monkeypatch.setattr(mlp_module, "weights_of", lambda x, modules: [] if biased else [m.weight for m in modules])
    up, gate, down = modules_of(width, hidden, biased)
    x = randn(3, width, seed=0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        factor = {"": gate(x), "sigmoid": gate(x).sigmoid()}[kind]
        torch.testing.assert_close(gated_mlp(x, up, gate, down, kind), down(up(x) * factor))


EPSILONS = 0.1, 0.5  # of the two norms, which tell them apart
NAMES = ("x", "mixed", "out", "norm", "up", "gate", "down", "next")


def leaves_of(weighted, width=64, inner=48, hidden=88, rows=(2, 70), device="cpu", stream=torch.bfloat16):
    """x, mixed, the weights and norms of `layer_end`, by NAMES; and the weights as modules."""
    made = [randn(*rows, width, seed=0, dtype=stream, device=device), randn(*rows, inner, seed=1, device=device)]
    widths = {"out": (width, inner), "up": (hidden, width), "gate": (hidden, width), "down": (width, hidden)}
    leaves, matrices = dict(zip(("x", "mixed"), made, strict=True)), []
    for seed, (name, shape) in enumerate(widths.items(), 2):
        matrices.append(nn.Linear(*shape[::-1], bias=False, device="meta"))
        weight = nn.Parameter(randn(*shape, seed=seed, device=device) / shape[1] ** 0.5)
        matrices[-1].weight = leaves[name] = weight
    for seed, name in enumerate(("norm", "next"), 8):
        leaves[name] = randn(width, seed=seed, device=device).mul(0.3).add(1) if weighted else None
    return {name: None if leaves[name] is None else leaves[name].requires_grad_() for name in NAMES}, matrices


def plain_end(kind, x, mixed, out, norm, up, gate, down, after):
    total = x + mixed @ out.T
    n = normed(total, norm, EPSILONS[0])
    factor = n @ gate.T
    y = total + ((n @ up.T) * (factor * factor.sigmoid() if kind else factor)) @ down.T
    return y, normed(y, after, EPSILONS[1])


def check_node(kind, weighted, frozen, used, tolerance, **sizes):
    """The node's results and gradients in bf16 beside float64's; `used`: which of the results are read."""
    leaves, matrices = leaves_of(weighted, **sizes)
    for name in frozen:
        leaves[name].requires_grad_(False)
    scales = Scale(leaves["norm"], EPSILONS[0]), Scale(leaves["next"], EPSILONS[1])
    with torch.autocast(leaves["x"].device.type, torch.bfloat16):
        assert takes_layer_end(leaves["x"], matrices, kind, scales)
        results = layer_end(leaves["x"], leaves["mixed"], matrices, kind, *scales)
    assert {type(y.grad_fn).__name__ for y in results} == {"_LayerEndBackward"}
    wanted = [name for name in NAMES if leaves[name] is not None and leaves[name].requires_grad]
    wanted = [name for name in wanted if used != (0,) or name != "next"]  # whose gradient nothing reads then
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


ENDS = [  # gate, whether the norms have weights, what is frozen, which results are read
    *((kind, True, frozen, (0, 1)) for kind in ("", "silu") for frozen in
      ((), ("x",), ("mixed", "out"), ("up",), ("gate", "up"), ("down", "norm"))),
    *(("silu", False, (), used) for used in ((0,), (1,), (0, 1))),
]  # fmt: skip


@ON_A_CPU
@pytest.mark.parametrize(("kind", "weighted", "frozen", "used"), ENDS)
def test_a_layers_end_is_one_node(kind, weighted, frozen, used, emulated, few_rows):
    check_node(kind, weighted, frozen, used, 0.03)


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.float().sum()

    @staticmethod
    def backward(ctx, *grads):
        return None


@ON_A_CPU
def test_flops_and_no_gradient_at_all(emulated, few_rows):
    leaves, matrices = leaves_of(False)
    for wanted in (False, True):
        with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
            results = layer_end(leaves["x"], leaves["mixed"], matrices, "", Scale(None, EPS), Scale(None, EPS))
            sum(y.float().sum() if wanted else Stop.apply(y) for y in results).backward()
        assert (leaves["x"].grad is not None) is (leaves["up"].grad is not None) is wanted
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
def test_where_a_layers_end_is_taken(changes, taken, on_hopper, monkeypatch):
    changes = dict(changes)
    given = {"kind": "", "autocast": True, "grad": True, "bias": False, "emptied": False, "elsewhere": False}
    given |= {name: changes.pop(name) for name in given if name in changes}
    for name in ("GLUON", "hopper_instructions"):
        if name in changes:
            monkeypatch.setattr(device_config, name, changes.pop(name))
    leaves, matrices = leaves_of(True, **changes)
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
def test_models(arch, emulated, few_rows, monkeypatch):
    check_models(arch, "2x64", 70, monkeypatch)


def small_model(**changes):
    return build_model(config_of("llama", "2x64", 257, 70).replace(**changes), 0)


class OtherMLP(layers.GatedMLP):
    pass


class OtherNorm(Norm):
    pass


class Wrapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inside = layer

    def forward(self, *given):
        return self.inside(*given)


def replace_forward(module):
    module.forward = module.forward


def wrap_layers(decoder):
    for index, layer in enumerate(decoder.layers):
        decoder.layers[index] = Wrapped(layer)


CHANGES = {  # what somebody does to a model; in how many of its two layers the node is still taken
    "nothing": (lambda d: None, 2),
    "activations that are computed again": (lambda d: setattr(d, "gradient_checkpointing", True), 0),
    "wrapped layers": (wrap_layers, 0),
    "a mixer's hook": (lambda d: d.layers[0].mixer.register_forward_hook(lambda *a: None), 1),
    "a hook before an MLP": (lambda d: d.layers[1].channel.register_full_backward_pre_hook(lambda *a: None), 1),
    "a mixer's forward": (lambda d: replace_forward(d.layers[1].mixer), 1),
    "another MLP": (lambda d: setattr(d.layers[0].channel, "__class__", OtherMLP), 1),
    "another norm": (lambda d: setattr(d.layers[0].channel_norm, "__class__", OtherNorm), 1),
    "another last norm": (lambda d: setattr(d.norm, "__class__", OtherNorm), 1),
    "a layer's hook, as sharding has": (lambda d: d.layers[1].register_forward_pre_hook(lambda *a: None), 0),
    "a hook of all modules": (lambda d: nn.modules.module.register_module_forward_hook(lambda *a: None), 0),
}


@pytest.fixture
def taken_in(emulated, few_rows, monkeypatch):
    """In how many of a model's layers the node is taken."""
    calls, whole = [], layers.layer_end
    monkeypatch.setattr(layers, "layer_end", lambda *a: (calls.append(a), whole(*a))[1])

    def count(model):
        calls.clear()
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.arange(70).expand(2, 70))
        return len(calls)

    return count


@ON_A_CPU
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_called(name, taken_in):
    change, taken = CHANGES[name]
    model = small_model()
    handle = change(model.decoder)
    try:
        assert taken_in(model) == taken
    finally:
        if hasattr(handle, "remove"):
            handle.remove()


@ON_A_CPU
def test_which_models_take_it(taken_in, monkeypatch):
    """Not without gradients, nor where the norm is LayerNorm; a mixer that defines `forward` alone is called whole."""
    model = small_model()
    mixer = type(model.decoder.layers[0].mixer)
    with monkeypatch.context() as patched:
        patched.setattr(mixer, "forward", lambda self, *a: super(mixer, self).forward(*a), raising=False)
        assert taken_in(model) == 0
    with torch.no_grad():
        assert taken_in(model) == 0
    assert taken_in(small_model(norm="layer")) == 0
    assert Norm("layer", 8, EPS).scale() is None and Norm("srms", 8, EPS).scale() == Scale(None, EPS)


def test_an_mlp_of_another_kind_has_a_layer_to_itself():
    model = small_model()
    model.decoder.layers[0].channel = nn.Linear(64, 64)
    model(torch.arange(70)[None])


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
