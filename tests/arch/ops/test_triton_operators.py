"""What surrounds the kernels: the GPU that is the current one, what torch.compile and torch's counter of FLOPs are
given, memory that is not initialised."""

from contextlib import contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime.interpreter import GridExecutor

from arch.kernel_config import override
from arch.ops import causal_filter, decay_attention, gated_attention, gated_delta, scan, selective_scan
from arch.ops.decay_attention.triton import rotary_operator
from arch.ops.fused.cross_entropy import linear_cross_entropy
from arch.ops.fused.triton import rows, ssm
from arch.ops.fused.triton import short_conv as conv

from .compare import case, fewer_heads, randn, with_gradients
from .kernels import DEVICE, GPU, Decay

GPUS = torch.cuda.device_count()
RUNS = [] if GPU else ["runs of angles"]  # whose rows in fp32 are too narrow for a GPU's copy engine
OPERATIONS = (
    *("decay step", "gated tied", "gated logits", "delta none", "delta head", "delta channel"),
    *("filter", "scan real", "scan constant", "selective", "angles"),
)


def operation(name, length):
    """run(backend, leaves), leaves, sizes."""
    if name.endswith("angles"):
        runs = name in RUNS

        def rotary(backend, x):
            q, k, v, *state, theta = x
            angles = theta, torch.arange(q.shape[1], device=q.device)
            return decay_attention(q, k, v, None, *state, backend=backend, angles=angles)

        call = Decay(length, (1, 1), (32, 16) if runs else (16, 16), positions=torch.arange(length), state=not runs)
        return rotary, call.leaves(), {"sequential": True, "chunk": 16} if runs else {}
    example = case(name, 1, length, torch.float32)
    if name == "filter":  # whose decays have no gradient in the kernels
        x, mix, decays, state = example.inputs()
        return lambda backend, x: example.run([*x[:2], decays.to(x[0]), x[2]], backend), [x, mix, state], {}
    example = fewer_heads(example) if name.startswith(("decay", "gated")) else example
    return lambda backend, x: example.run(x, backend), example.inputs(), {}


def launch_functions(device):
    """Every kernel that is no operator, forward."""
    x, y = (randn(1, 5, 6, dtype=torch.float32, seed=seed).to(device) for seed in (0, 1))
    heads, steps = x[:, :, None], torch.zeros(5, 3, device=device)
    rows.Norm.apply(x, None, None, 1e-6), rows.AddNorm.apply(x, y, None, 1e-6), rows.Product.apply(x, y, "silu")
    rows.Rotate.apply(heads, heads, steps, steps), conv.ShortConv.apply(x, None, y[0, :4].T, x[0, 0], None)
    ssm.Softplus.apply(x, y[0, 0]), ssm.Skip.apply(x, y, x, y[0, 0])
    return linear_cross_entropy(x[0], y[0], torch.arange(5, device=device), backend="triton")


def launch(name, device):
    """Every kernel of a forward pass, and those of the operators' backward passes."""
    if name == "functions":
        return launch_functions(device)
    run, leaves, sizes = operation(name, 3)
    with override(**sizes):
        out = sum(x.sum() for x in run("triton", [x.to(device).requires_grad_() for x in leaves]))
        out.backward()
    return out


@pytest.mark.skipif(GPU, reason="for a machine without GPU: there the launches are watched")
@pytest.mark.parametrize("name", [*OPERATIONS, *RUNS, "functions"])
def test_launches_stand_inside_a_choice_of_the_device(name, monkeypatch):
    chosen, launched = [], []

    @contextmanager
    def device_of(x):
        chosen.append(x)
        yield
        chosen.pop()

    run = GridExecutor.__call__
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(GridExecutor, "__call__", lambda *a, **k: (launched.append(len(chosen)), run(*a, **k))[1])
    launch(name, "cpu")
    assert launched and all(depth == 1 for depth in launched)


@pytest.mark.gpu(n=2)
@pytest.mark.parametrize("name", [*OPERATIONS, "functions"])
def test_another_gpu_than_the_current_one(name):
    out = launch(name, "cuda:1")
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0 and torch.isfinite(out)


class Compared(TorchDispatchMode):
    """Shapes, dtypes and strides of our operators' results against those of their fake kernels."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "arch":
            with FakeTensorMode() as mode:
                fake = func(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args))
            for a, b in zip(result, fake, strict=True):
                assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), func
            self.calls.append((func, args))
        return result


@pytest.mark.parametrize("name", [*OPERATIONS, *RUNS])
def test_operators_are_sound(name):
    """What torch.compile relies on: fake kernels, by which it lays out what reads the results, and schemas."""
    with Compared() as compared:
        launch(name, DEVICE)
    assert len(compared.calls) >= 2
    for func, args in compared.calls:
        torch.library.opcheck(func, args, test_utils="test_schema")


def test_fake_kernels_of_silu():
    """Whose results have one tensor more, and the angles' parts."""
    x = [randn(1, 20, 1, 32, dtype=torch.float32, seed=seed).to(DEVICE) for seed in range(3)]
    with Compared() as compared:
        with override(chunk=16, tma=True):
            decay_attention(*x, torch.tensor([-0.1], device=DEVICE), backend="triton", activation="silu")
        angles = torch.ones(1, 32, device=DEVICE), torch.arange(20, device=DEVICE)
        for sequential in (False, *(True for _ in RUNS)):
            with override(chunk=16, sequential=sequential):
                decay_attention(*x, backend="triton", angles=angles, activation="silu")
    assert rotary_operator._parts._opoverload in {func for func, _ in compared.calls}


@pytest.mark.parametrize(
    "name", ["decay step", *RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in ("delta head", "angles"))]
)
def test_compiled_for_any_length(name):
    """One graph, whose operators' sizes follow from symbolic shapes."""
    torch._dynamo.reset()
    run, leaves, sizes = operation(name, 40 if name in RUNS else 20)
    leaves = [x.to(DEVICE).requires_grad_() for x in leaves]

    def gradients(function):
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    def outputs(*x):
        return run("triton", x)[0]

    compiled = torch.compile(outputs, fullgraph=True, backend="aot_eager", dynamic=True)
    with override(**sizes):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled), gradients(outputs), strict=True))


@pytest.mark.parametrize("name", [x for x in OPERATIONS if x not in ("gated tied", "scan real")])
def test_every_element_is_written_and_twice_the_same(name, monkeypatch):
    run, leaves, _ = operation(name, 40 if name in ("decay step", "gated logits") else 17)
    leaves = [x.to(DEVICE) for x in leaves]
    first = with_gradients(lambda x: run("triton", x), leaves)
    new, like = torch.Tensor.new_empty, torch.empty_like

    def spoiled(x):
        return x.fill_(float("nan") if x.is_floating_point() else -99)

    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: spoiled(new(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: spoiled(like(*a, **k)))
    second = with_gradients(lambda x: run("triton", x), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "operation", [decay_attention, gated_attention, gated_delta, "by channel", causal_filter, selective_scan, scan]
)
def test_flops_are_the_chunk_backends(operation, packed):
    """As torch's counter has them, forward and backward, at the chunk size asked for."""
    a, b, c, d = (randn(1, 41, 6, dtype=torch.float32, seed=seed).to(DEVICE).requires_grad_() for seed in range(4))
    q, k, v = (randn(1, 41, 1, w, dtype=torch.float32, seed=w).to(DEVICE).requires_grad_() for w in (16, 16, 32))
    rates = -torch.rand(6, 6, device=DEVICE)
    inputs = {
        decay_attention: lambda: (q, k, v),
        gated_attention: lambda: (q, k, v, -k.abs()),
        gated_delta: lambda: (q, k, v, k[..., 0].abs(), -q[..., 0].abs()),
        "by channel": lambda: (q, k, v, k[..., 0].abs(), -q.abs()),
        causal_filter: lambda: (a, b[0, :6], rates[0]),
        selective_scan: lambda: (a.abs(), rates.clone().requires_grad_(), b, c, d),
        scan: lambda: (-a.abs(), b),
    }[operation]
    operation = gated_delta if operation == "by channel" else operation
    options = {"chunk_size": 16, "document_starts": (torch.arange(41, device=DEVICE) == 9)[None] if packed else None}

    def count(backend):
        operation(*inputs(), backend=backend, **options)  # whose operators are registered by the first call
        with FlopCounterMode(display=False) as counter:
            out, state = operation(*inputs(), backend=backend, **options)
            (out.sum() + state.sum()).backward()
        return counter.get_total_flops()

    assert count("triton") == count("chunk")
    assert count("chunk") > 0 or operation is scan


def test_learned_poles_take_the_chunk_backend(monkeypatch):
    monkeypatch.setattr("arch.ops.common._WARNED", set())  # another test of this process may have warned already
    x, mix = (randn(*shape, dtype=torch.float32, seed=0).to(DEVICE) for shape in ((1, 5, 4), (4, 3)))
    rates = -torch.rand(3, device=DEVICE).requires_grad_()
    with pytest.warns(UserWarning, match="the decays are learned; the chunk backend runs instead"):
        result = causal_filter(x, mix, rates, backend="triton")[0]
    assert torch.equal(result, causal_filter(x, mix, rates, backend="chunk")[0])
