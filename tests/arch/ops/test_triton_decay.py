"""The kernels of `decay_attention` cut into segments and tiles, against the recurrence in float64."""

import importlib.util

import pytest
import torch

from arch.ops import decay_attention

from .compare import assert_close, case, fewer_heads, picked, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.kernel_config import decay_config, decay_segments, override
from arch.ops.decay_attention.triton import operator as decay
from arch.ops.triton import device_config
from arch.ops.triton.device_config import decay_by_hopper_here, gated_for_device, rotary_for_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("name", ["decay none", "decay head", "decay step"])
def test_segments(name, tma):
    """Three segments, the last one shorter and its last chunk too; both directions in time. tma: Hopper's kernels."""
    example = fewer_heads(case(name, 1, 70, torch.float32))
    expected = with_gradients(lambda x: example.run(x, "naive"), [x.double() for x in example.inputs()])
    with override(segments=3, chunk=16, tma=tma):
        result = with_gradients(lambda x: example.run(x, "triton"), [x.to(DEVICE) for x in example.inputs()])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("tma", [False, True])
def test_constant_decays_without_gradients(tma):
    """The same at every step, a head's own; 0, none and others. Three segments, the last chunk ragged."""
    decays = torch.tensor([-float("inf"), 0.0, -0.03, -2.0])
    leaves = [randn(1, 70, heads, 16, dtype=torch.float32, seed=seed) for seed, heads in enumerate((2, 2, 4))]
    leaves.append(randn(1, 4, 16, 16, dtype=torch.float32, seed=3))

    def run(backend, constant):
        return lambda x: decay_attention(*x[:3], constant, initial_state=x[3], backend=backend)

    expected = with_gradients(run("naive", decays.double()), [x.double() for x in leaves])
    with override(segments=3, chunk=16, tma=tma):
        result = with_gradients(run("triton", decays.to(DEVICE)), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def test_silu_in_the_kernels():
    """Constant decays, strong ones too, three segments, two tiles of keys that heads share, an initial state."""
    decays = torch.tensor([-float("inf"), -0.03])
    leaves = [2 * randn(1, 37, heads, 32, dtype=torch.float32, seed=seed) for seed, heads in enumerate((1, 1, 2))]
    leaves.append(randn(1, 2, 32, 32, dtype=torch.float32, seed=3))

    def run(backend, constant):
        return lambda x: decay_attention(*x[:3], constant, x[3], backend=backend, activation="silu")

    expected = with_gradients(run("naive", decays.double()), [x.double() for x in leaves])
    with override(segments=3, chunk=16, tma=True, key_tile=16):
        result = with_gradients(run("triton", decays.to(DEVICE)), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)
    arguments = (*(x.to(DEVICE) for x in (*leaves[:3], decays)), None, 16, 1, 64, True)
    with override(chunk=16, tma=True):
        torch.library.opcheck(decay._forward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_tma_kernels_in_tiles():
    """Learned decays, 0 and 1 among them, and resets, two tiles of either width, three heads sharing their keys."""
    leaves = [randn(2, 37, heads, 32, dtype=torch.float32, seed=seed) for seed, heads in enumerate((1, 1, 3))]
    decays = picked(2, 37, 3, values=[0.0, -1e-6, -0.1, -5.0, -float("inf")], dtype=torch.float32, seed=4)
    leaves += [decays, randn(2, 3, 32, 32, dtype=torch.float32, seed=5)]
    document_starts = torch.arange(37).expand(2, 37) % 20 == 9

    def run(backend, device):
        return lambda x: decay_attention(*x, backend=backend, document_starts=document_starts.to(device))

    expected = with_gradients(run("naive", torch.device("cpu")), [x.double() for x in leaves])
    with override(tma=True, segments=2, chunk=16, tile=16, key_tile=16):
        result = with_gradients(run("triton", DEVICE), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


def test_learned_decays_with_angles_in_tiles():
    """Everything at once: decays with gradients, a reset, angles, an initial state, shared keys, tiles and segments."""
    length = 37
    q, k = (randn(1, length, 1, 32, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v, state = randn(1, length, 2, 32, dtype=torch.float32, seed=2), randn(1, 2, 64, 32, dtype=torch.float32, seed=3)
    decays, theta = -randn(1, length, 2, dtype=torch.float32, seed=4).abs(), torch.rand(1, 32)
    positions = torch.cat([torch.arange(9, 30), torch.arange(length - 21)])[None]
    document_starts = positions == 0

    def run(backend, device):
        def call(x):
            angles = (x[5], positions.to(device))
            return decay_attention(*x[:5], backend=backend, document_starts=document_starts.to(device), angles=angles)

        return call

    leaves = [q, k, v, decays, state, theta]
    expected = with_gradients(run("naive", torch.device("cpu")), [x.double() for x in leaves])
    with override(segments=2, chunk=16, state_tile=(16, 16), output_tile=16, key_tile=16):
        result = with_gradients(run("triton", DEVICE), [x.to(DEVICE) for x in leaves])
    assert_close([x.cpu().double() for x in result], expected, TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "heads", "width"), [(1, 8, 128), (2, 6, 16), (3, 9, 64)])
def test_shares_of_heads_are_added_where_the_gradients_lie(groups, heads, width, dtype):
    """Columns of one tensor, and nothing beside them."""
    whole = torch.full((2, 41, 2 * groups * width + 24), 7.0, dtype=dtype, device=DEVICE)
    before, d_q, between, d_k, behind = whole.split([8, groups * width, 8, groups * width, 8], -1)
    d_q, d_k = (x.unflatten(-1, (groups, width)) for x in (d_q, d_k))
    shares = decay.head_shares(d_q, d_k, heads)
    for seed, share in enumerate(shares):
        assert share.shape == (2, 41, heads, width) and share.dtype == dtype
        share.copy_(randn(*share.shape, dtype=torch.float32, seed=seed))
    decay.add_shares(d_q, d_k, shares)
    for x, share in zip((d_q, d_k), shares, strict=True):
        expected = share.double().unflatten(2, (groups, -1)).sum(3)
        assert_close([x.double()], [expected], 1e-6 if dtype == torch.float32 else 2**-8)
    assert all(bool((x == 7).all()) for x in (before, between, behind))
    assert decay.head_shares(d_q, d_k, groups) == (d_q, d_k)


def test_segments_by_the_rules():
    """Many sequences are not cut, few are; no segment is empty."""
    rules = decay_config(128, 128, exact=False)
    assert decay_segments(rules, 1024, 128, 128) == 1
    assert decay_segments(rules, 8, 128, 128) > 1
    for rows in (1, 12, 32, 80):
        for chunks in (1, 7, 16, 100, 1000):
            count = decay_segments(rules, rows, 128, chunks)
            assert (count - 1) * -(-chunks // count) < chunks


@pytest.mark.parametrize(
    ("widths", "exact", "gpu", "assembler", "expected"),
    [
        ((128, 128), False, True, True, True),
        ((64, 128), False, True, True, True),
        ((128, 128), True, True, True, False),  # fp32
        ((128, 32), False, True, True, False),  # widths at which they were not checked
        ((256, 128), False, True, True, False),
        ((128, 128), False, False, True, False),  # an A100, which has no such copies
        ((128, 128), False, True, False, False),  # Triton's own assembler
    ],
)
def test_where_the_tma_kernels_run(widths, exact, gpu, assembler, expected, monkeypatch):
    monkeypatch.setattr(device_config, "hopper", lambda: gpu)
    monkeypatch.setattr(device_config, "trusted_assembler", lambda: assembler)
    assert decay_by_hopper_here(decay_config(*widths, exact), *widths, exact) is expected


@pytest.mark.parametrize(("gpu", "assembler"), [(True, True), (True, False), (False, True)])
def test_whose_instructions_the_rules_choose(gpu, assembler, monkeypatch):
    """sm80's, which every GPU has, unless all is known to be right."""
    monkeypatch.setattr(device_config, "hopper", lambda: gpu)
    monkeypatch.setattr(device_config, "trusted_assembler", lambda: assembler)
    own = None if gpu and assembler else "sm80"
    assert gated_for_device(128, 128, False).arch == rotary_for_device(128, 128, False).arch == own
    assert rotary_for_device(64, 128, False).arch == decay_config(128, 128, False).arch == "sm80"
    assert gated_for_device(128, 128, True).arch == rotary_for_device(128, 128, True).arch == "sm80"


def test_compiled_for_any_length():
    """One graph, whose operators' sizes follow from symbolic shapes."""
    torch._dynamo.reset()

    def run(*x):
        return decay_attention(*x, backend="triton")[0]

    def gradients(function, inputs):
        return torch.autograd.grad(function(*inputs).square().sum(), inputs)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v, decays = (randn(1, 20, 1, 16, dtype=torch.float32, seed=seed).to(DEVICE) for seed in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v, -decays[..., 0].abs())]
    assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, inputs), gradients(run, inputs), strict=True))
