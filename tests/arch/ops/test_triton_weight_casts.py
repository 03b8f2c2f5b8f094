"""Weights cast once a pass: the same bits as product by product, in every pass after the first, and never old ones."""

import copy
import gc
import weakref

import pytest
import torch

from arch.config import ARCHS
from arch.model import decoder
from arch.model.lm import build_model
from arch.ops.fused import linear, weight_casts
from arch.ops.fused.triton import weight_casts as launches
from arch.ops.fused.weight_casts import WeightCasts
from arch.presets import preset

from .kernels import DEVICE

HALF, OTHER = torch.bfloat16, torch.float16
if DEVICE.type == "cpu":
    HALF, OTHER = OTHER, HALF  # the interpreter cuts bf16 off, and does not round it


def weights(*shapes):
    return [torch.nn.Parameter(torch.randn(*shape, device=DEVICE)) for shape in shapes]


@pytest.fixture
def counted(monkeypatch):
    """How often all weights were cast at once, and how many numbers."""
    calls = []

    def cast(table, numbers, dtype):
        calls.append(numbers)
        return cast_all(table, numbers, dtype)

    cast_all = launches.cast_all
    monkeypatch.setattr(launches, "cast_all", cast)
    return calls


@torch.no_grad()
def beside(group, dtype):
    """As in an autograd node."""
    return linear.cast(group, dtype)[0]


def expected(group):
    return torch.cat([weight.detach().to(HALF) for weight in group])


def test_the_second_pass_finds_what_the_first_asked_for(counted, monkeypatch):
    monkeypatch.setattr(launches, "PIECE", 512)
    casts, (a, b, c) = WeightCasts(), weights((48, 40), (16, 40), (7, 129))
    for index in range(3):
        with casts.once():
            for group in ([a, b], [c], [a, b]):
                actual = beside(group, HALF)
                assert torch.equal(actual, expected(group)) and actual.is_contiguous()
        with torch.no_grad():  # as an optimizer does
            for weight in (a, b, c):
                weight.mul_(1.01)
        assert counted == [48 * 40 + 16 * 40 + 7 * 129] * index


def test_what_changes_is_cast_as_it_is(counted):
    """Another product, another dtype, weights at another place or of another shape, a weight that is computed."""
    casts, (a, b) = WeightCasts(), weights((16, 8), (16, 8))

    def ask(*groups):
        with casts.once():
            for group in groups:
                assert torch.equal(beside(group, HALF), expected(group))

    ask([a])
    ask([a], [b])
    ask([a], [b])
    assert counted == [128, 128 + 128]
    counted.clear()
    with casts.once():
        assert beside([a], OTHER).dtype == OTHER
    assert counted == [256] and casts.dtype == OTHER
    ask([a], [b])
    a.data = a.data.clone()
    ask([a], [b])
    whole, b.data = b.data, b.data.new_empty(0)  # as DeepSpeed's stage 3 does between passes
    counted.clear()
    with casts.once():
        b.data = whole
        assert torch.equal(beside([b], HALF), whole.to(HALF))
    assert not counted
    computed = (2 * a, 2 * b)
    ask([computed[0]], [computed[1]])
    assert all(weight.is_leaf for group in casts.groups for weight in group)


def test_outside_of_a_pass_each_is_cast_by_itself(counted, monkeypatch):
    casts, (a,) = WeightCasts(), weights((16, 8))
    for _ in range(2):
        with casts.once():
            beside([a], HALF)
    assert counted == [128] and torch.equal(beside([a], HALF), expected([a]))
    monkeypatch.setattr(weight_casts, "CAST_AHEAD", 127)  # a model too large
    with casts.once():
        assert torch.equal(beside([a], HALF), expected([a]))
    assert counted == [128]


def test_a_copy_of_a_model_casts_its_own(counted):
    casts, (a,) = WeightCasts(), weights((16, 8))
    holder = {"casts": casts, "weight": a}
    for _ in range(2):
        with casts.once():
            beside([a], HALF)
    other = copy.deepcopy(holder)
    with torch.no_grad():
        a.zero_()
    with other["casts"].once():
        assert torch.equal(beside([other["weight"]], HALF), expected([other["weight"]]))
    assert counted == [128, 128] and other["weight"].abs().sum() > 0


def test_a_model_goes_when_it_is_dropped():
    casts, (a,) = WeightCasts(), weights((16, 8))
    with casts.once():
        beside([a], HALF)
    gone = weakref.ref(a)
    del casts, a
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("arch", ARCHS)
def test_losses_and_gradients_are_those_of_casts_one_by_one(arch, counted, monkeypatch):
    """Of whole models, whose fused products run on a CPU here: the second pass to the bit as the first."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    monkeypatch.setattr(decoder, "uses_kernels", lambda x: True)
    model = build_model(preset(arch, "6k", n_layers=2), 0).to(DEVICE)
    ids = torch.randint(256, (2, 33), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    results = []
    for _ in range(3):
        with torch.autocast(DEVICE.type, HALF):
            loss = model(input_ids=ids[:, :-1], targets=ids[:, 1:], loss_only=True).loss
        results.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    assert len(counted) == 2 and counted[0] > 0
    if arch != "llama" or DEVICE.type == "cpu":
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
