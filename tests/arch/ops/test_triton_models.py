"""Whole models by the kernels, and when they are chosen: on a GPU where there is one, else in Triton's interpreter."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.ops import common, decay_attention, gated_attention
from arch.presets import preset

from ..model.test_model import tokens
from .kernels import DEVICE

LINEAR = [arch for arch in ARCHS if arch != "llama"]
SLOW = {"tnl", "cosformer2", "mamba1"}  # tested with the long campaigns: the others have most of their operations
FEW = [pytest.param(arch, marks=pytest.mark.slow) if arch in SLOW else arch for arch in LINEAR]
LENGTH = 34


@pytest.fixture
def fresh(monkeypatch):
    """Nothing has been warned of yet."""
    monkeypatch.setattr(common, "_WARNED", set())


def chosen(backend=None, device="cuda", width=64, dtype=torch.float32, length=5, obstacle=None):
    """What is taken, and the warnings on the way, twice."""
    with FakeTensorMode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = torch.empty(1, length, 1, width, device=device)
        backends = {common.choose_backend(backend, x, (width, width), dtype, obstacle) for _ in range(2)}
    assert len(backends) == 1
    return backends.pop(), [str(warning.message) for warning in caught]


def without_kernel(reason):
    return "chunk", [f"no Triton kernel: {reason}; the chunk backend runs instead"]


OLD, NEW = (7, 5), (8, 0)  # compute capabilities
CHOICES = [  # of what is asked for on a GPU of this capability
    *((NEW, {"backend": backend}, ("triton", [])) for backend in (None, "triton")),
    *((NEW, {"backend": backend}, (backend, [])) for backend in ("chunk", "naive")),
    (NEW, {"width": 512}, without_kernel("a head is 512 wide, more than 256")),
    (NEW, {"obstacle": "the decays are learned"}, without_kernel("the decays are learned")),
    *((NEW, more, ("chunk", [])) for more in ({"dtype": torch.float64}, {"length": 0}, {"device": "cpu"})),
    (NEW, {"backend": "triton", "dtype": torch.float64}, without_kernel("an input is float64")),
    (OLD, {}, without_kernel("the GPU is older than compute capability 8.0")),
    (None, {}, without_kernel("triton is not installed")),
    ((9, 4), {}, without_kernel("the GPU is AMD's")),
]


@pytest.mark.parametrize(("capability", "asked", "expected"), CHOICES)
def test_which_backend_is_taken(capability, asked, expected, fresh, monkeypatch):
    """With one warning where it is another than the one by default, or than what is asked for."""
    monkeypatch.setattr(common, "_capability", lambda device: capability or (9, 0))
    monkeypatch.setattr(common, "WITH_TRITON", capability is not None)
    monkeypatch.setattr(torch.version, "hip", "6.4" if capability == (9, 4) else None)
    assert chosen(**asked) == expected
    with pytest.raises(InputError, match="unknown backend 'fast'"):
        chosen("fast")


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((2, 5, 2, 4), "sequences times heads are more than 3"),
        ((1, 97, 1, 4), "a sequence is longer than 96 tokens"),
    ],
)
def test_what_a_grid_does_not_hold(shape, reason, fresh, monkeypatch):
    """Else the launch itself would fail."""
    monkeypatch.setattr(common, "GRID", 3)
    x = torch.rand(shape, device=DEVICE)
    theta, steps = torch.rand(shape[2:], device=DEVICE), torch.arange(shape[1], device=DEVICE)
    calls = (
        lambda backend: decay_attention(x, x, x, backend=backend),
        lambda backend: decay_attention(x, x, x, backend=backend, angles=(theta, steps)),
        lambda backend: gated_attention(x, x, x, -x, backend=backend),
    )
    for call in calls:
        common._WARNED.clear()
        with pytest.warns(UserWarning, match=reason):
            result = call("triton")
        assert all(torch.equal(a, b) for a, b in zip(result, call("chunk"), strict=True))


def moved_model(arch, **changes):
    """In fp32, away from the start, where gates of all tokens are much alike."""
    model = build_model(preset(arch, "14k", n_layers=1, init_std=0.1, chunk_size=32, **changes), seed=1)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return model.to(DEVICE)


def gradients(model, **arguments):
    """The loss, and the gradient of every parameter."""
    loss = model(**arguments).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def close(result, expected):
    for a, b in zip(result, expected, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).norm() <= 2e-5 * b.norm() + 1e-9


@pytest.mark.parametrize("layout", ["padded", pytest.param("packed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("arch", FEW)
def test_layouts(arch, layout):
    """Padding at both ends of rows, and packed documents: the gradients are those of the recurrence."""
    _test_layout(moved_model(arch), layout)


@pytest.mark.parametrize("kind", ["dependent", pytest.param("none", marks=pytest.mark.slow)])
def test_layouts_of_tnls_decays(kind):
    for layout in ("padded", "packed"):
        _test_layout(moved_model("tnl", decay=kind), layout)


def _test_layout(model, layout):
    ids = tokens(model.model_config, rows=2, length=LENGTH, seed=5).to(DEVICE)
    if layout == "padded":
        at = torch.arange(LENGTH, device=DEVICE)
        beside = {"attention_mask": torch.stack([at >= 6, at < 30]).long()}
    else:
        beside = {"documents": torch.tensor([[0] * 17 + [1] * 17, [2] + [3] * 31 + [4] * 2], device=DEVICE)}
    arguments = {"input_ids": ids, "targets": ids.roll(-1, 1), **beside}
    close(gradients(model, backend="triton", **arguments), gradients(model, backend="naive", **arguments))


@pytest.mark.parametrize("arch", FEW)
def test_reading_goes_on_from_a_state(arch):
    model = moved_model(arch)
    ids = tokens(model.model_config, rows=2, length=LENGTH, seed=6).to(DEVICE)
    with torch.no_grad():
        whole = model(input_ids=ids, backend="naive").logits
        first = model(input_ids=ids[:, :20], use_cache=True, backend="triton")
        rest = model(input_ids=ids[:, 20:], cache=first.cache, backend="triton").logits
    close([first.logits, rest], [whole[:, :20], whole[:, 20:]])


@pytest.mark.gpu
@pytest.mark.parametrize("arch", [arch for arch in LINEAR if arch != "transformer"])  # which has no kernel of ours
def test_what_runs_without_being_asked_for(arch):
    model = moved_model(arch)
    ids = tokens(model.model_config, rows=2, length=LENGTH, seed=8).to(DEVICE)
    with torch.no_grad():
        default, by_kernels, plain = (
            model(input_ids=ids, backend=backend).logits for backend in (None, "triton", "chunk")
        )
    assert torch.equal(default, by_kernels) and not torch.equal(default, plain)


@pytest.mark.parametrize(
    ("arch", "packed"),
    [
        ("hgrn2", False),
        pytest.param("cosformer2", True, marks=pytest.mark.slow),
        *(pytest.param(arch, arch != "cosformer2", marks=pytest.mark.slow) for arch in LINEAR),
    ],
)
def test_forward_and_loss_are_one_graph(arch, packed):
    """Under torch.compile, where nothing of a launch is traced: loss and gradients are those of eager mode."""
    torch._dynamo.reset()
    model = moved_model(arch)
    ids = tokens(model.model_config, rows=1, length=20, seed=7).to(DEVICE)
    documents = (torch.arange(20, device=DEVICE) >= 5).long()[None] if packed else None

    def loss_of(ids):
        return model(input_ids=ids, targets=ids.roll(-1, 1), documents=documents, backend="triton").loss

    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    parameters = list(model.parameters())
    results = [[loss := function(ids), *torch.autograd.grad(loss, parameters)] for function in (loss_of, compiled)]
    close(results[1], results[0])
