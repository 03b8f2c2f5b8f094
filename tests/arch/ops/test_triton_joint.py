"""The kernels on tensors that are columns of one (joint_rows.py), against the same tensors each by itself: outputs and
gradients bit for bit, and the gradients beside each other. In the interpreter, and on a GPU in bf16; whole models."""

import pytest
import torch

from arch.errors import InputError
from arch.kernel_config import override
from arch.model.lm import build_model
from arch.model.positions import rotation
from arch.ops import decay_attention, gated_attention
from arch.ops.fused import linear
from arch.ops.fused.triton.rows import Rotate
from arch.ops.joint_rows import joint_width, mark_joint
from arch.presets import preset

from .compare import assert_close, randn
from .kernels import DEVICE, GPU

B, T, H = 2, 41, 2
D, WIDE = (64, 128) if GPU else (16, 32)  # channels of keys, and of values where they are others


def starts(documents):
    return (torch.arange(T, device=DEVICE) % 17 == 9).expand(B, T) if documents else None


def gated(activation="", key=False, strong=False, documents=False):
    bound = torch.linspace(0, 0.0 if strong else 0.9, H * D).reshape(H, D).to(DEVICE)

    def call(q, *others):
        k, v, logits = others if key else (None, *others)
        return gated_attention(q, k, v, (logits, bound), backend="triton", activation=activation,
                               document_starts=starts(documents))  # fmt: skip

    return call


def log_gates(q, k, v, f):
    return gated_attention(q, k, v, -f.float().exp(), backend="triton")


def decay(activation="", kind="head", documents=False):
    decays = torch.tensor([-0.3, -0.01]).to(DEVICE)
    steps = decays * (1 + torch.arange(T, device=DEVICE) % 3)[None, :, None]
    given = {"head": decays, "step": steps.expand(B, T, H), "none": None}.get(kind)

    def call(q, k, v):
        # learned: their gradient needs what q and k were
        own = -v.float().square().mean(-1) if kind == "learned" else given
        return decay_attention(q, k, v, own, backend="triton", activation=activation, document_starts=starts(documents))

    return call


def rotary(kind="none", documents=False):
    generator = torch.Generator().manual_seed(0)
    positions, decays = torch.arange(T, device=DEVICE), torch.tensor([-0.3, -0.01]).to(DEVICE)

    def call(q, k, v):
        theta = torch.rand(*q.shape[2:], generator=generator.manual_seed(0)).to(DEVICE)
        given = {"head": decays, "learned": -v.float().square().mean(-1), "none": None}[kind]
        return decay_attention(q, k, v, given, backend="triton", angles=(theta, positions), activation="silu",
                               document_starts=starts(documents))  # fmt: skip

    return call


def rotate(q, k):
    cos, sin = rotation(10_000.0 ** -torch.linspace(0, 1, D // 2), torch.arange(T))
    return Rotate.apply(q, k, cos.to(DEVICE), sin.to(DEVICE))


# (call, heads of each input, inputs of another width, sizes, how many gradients lie beside others of inputs all joint)
SAME, SHARED = (H, H, H), (1, 1, H)
CASES = {
    "gated silu": (gated("silu"), SAME, (), {}, 3),
    "gated runs": (gated("silu"), SAME, (), {"sequential": True}, 3),
    "gated keys": (gated(key=True), (H,) * 4, (), {}, 4),
    "gated strong": (gated("silu", strong=True), SAME, (), {}, 3),
    "gated keys strong": (gated(key=True, strong=True), (H,) * 4, (), {}, 4),
    "gated wide values": (gated(), SAME, (1,), {}, 3),
    "gated documents": (gated(documents=True), SAME, (), {}, 3),
    "gated log": (log_gates, (H,) * 4, (), {}, 1),
    "decay": (decay(), SAME, (), {}, 3),
    "decay none shared": (decay(kind="none"), SHARED, (), {}, 3),
    "decay silu": (decay("silu"), SAME, (), {"tma": True}, 3),
    "decay silu shared": (decay("silu"), SHARED, (2,), {"tma": True}, 3),
    "decay silu portable": (decay("silu"), SAME, (), {"tma": False}, 1),
    "decay steps": (decay(kind="step"), SAME, (2,), {"tma": False}, 3),
    "decay learned": (decay(kind="learned"), SHARED, (), {"tma": False}, 2),
    "decay learned tma": (decay(kind="learned"), SHARED, (), {"tma": True}, 2),
    "decay segments": (decay(), SAME, (), {"segments": 2, "tma": False}, 3),
    "decay tma segments": (decay(), SAME, (), {"segments": 2, "tma": True}, 3),
    "decay documents": (decay(documents=True), SAME, (), {}, 3),
    "rotary": (rotary(), SAME, (2,), {}, 3),
    "rotary shared": (rotary(), SHARED, (), {}, 3),
    "rotary runs": (rotary(), SAME, (0, 1, 2), {"sequential": True}, 3),
    "rotary runs shared": (rotary(), SHARED, (0, 1, 2), {"sequential": True}, 3),
    "rotary decays": (rotary("head"), SAME, (), {}, 3),
    "rotary learned": (rotary("learned"), SAME, (), {}, 2),
    "rotate": (rotate, (H, H), (), {}, 2),
}


LONG = {"gated silu", "gated strong", "gated wide values", "gated documents", "decay documents", "decay segments",
        "decay tma segments", "rotary shared", "rotary runs shared", "rotary decays"}  # fmt: skip
OTHERS = ("gated keys", "gated strong", "decay silu", "decay learned", "decay steps", "rotary", "rotary runs", "rotate")


LAYOUTS = [*((name, "one") for name in CASES), *((name, where) for name in OTHERS for where in ("two", "first apart"))]
QUICK = {("gated keys", "two"), ("decay silu", "first apart"), ("rotate", "first apart")}
SLOW = [] if GPU else [x for x in LAYOUTS if x[0] in LONG or (x[1] != "one" and x not in QUICK)]


@pytest.mark.parametrize(
    ("name", "layout"),
    [pytest.param(*case, marks=pytest.mark.slow) if case in SLOW else case for case in LAYOUTS],
)
def test_columns_of_one_tensor(name, layout):
    """Others stand in front of the columns that are read. two: of two tensors of other widths; first apart: the first
    input by itself."""
    call, heads, others, sizes, beside = CASES[name]
    shapes = [(count, WIDE if index in others else D) for index, count in enumerate(heads)]
    owner = {"one": [0] * len(shapes), "two": [0, 1, 0, 1], "first apart": [2, 0, 0, 0]}[layout][: len(shapes)]
    dtype = torch.bfloat16 if GPU else torch.float32
    values = [randn(B, T, *shape, dtype=torch.float32, seed=i).to(DEVICE, dtype) for i, shape in enumerate(shapes)]
    values[-1] *= 8 if "strong" in name else 1
    results = []
    for apart in (False, True):
        leaves = list(values)
        for number in (0, 1) if not apart else ():
            mine = [index for index, tensor in enumerate(owner) if tensor == number]
            front = torch.zeros(B, T, 16 * (1 + number), device=DEVICE, dtype=dtype)
            whole = mark_joint(torch.cat([front, *(values[index].flatten(2) for index in mine)], -1))
            _, *parts = whole.split([front.shape[-1], *(values[index][0, 0].numel() for index in mine)], -1)
            for index, part in zip(mine, parts, strict=True):
                leaves[index] = part.unflatten(-1, shapes[index])
                assert joint_width(leaves[index]) == whole.shape[-1]
        leaves = [x.detach().requires_grad_() for x in leaves]
        with override(**({} if GPU else {"chunk": 16}), **sizes):
            outputs = call(*leaves)
            total = sum((out * randn(*out.shape, dtype=torch.float32, seed=9).to(out)).sum() for out in outputs)
            gradients = torch.autograd.grad(total, leaves)
        results.append([*outputs, *gradients])
        if not apart and layout == "one":
            result = [x for x in gradients if joint_width(x)]
            assert len(result) == beside and len({x.untyped_storage().data_ptr() for x in result}) == 1
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_one_tensor_as_two_inputs():
    """Its gradient is the sum of both, which need two places."""
    values = randn(B, T, 2 * H * D, dtype=torch.float32, seed=0).to(DEVICE)
    results = []
    for joint in (True, False):
        x, v = (y.unflatten(-1, (H, D)) for y in (mark_joint(values.clone()) if joint else values).chunk(2, -1))
        x, v = (y.detach().requires_grad_() for y in ((x, v) if joint else (x.contiguous(), v.contiguous())))
        out = decay()(x, x, v)[0].square().sum() + sum(y.square().sum() for y in rotate(x, x))
        results.append(torch.autograd.grad(out, (x, v)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("call", [decay(), rotary(), rotary("head"), gated()], ids=["decay", "runs", "rotary", "gated"])
def test_a_second_derivative_is_refused(call):
    leaves = [randn(B, T, H, D, dtype=torch.float32, seed=i).to(DEVICE).requires_grad_() for i in range(3)]
    with pytest.raises(InputError, match=r"create_graph=True.* ask for backend='chunk'"):
        torch.autograd.grad(call(*leaves)[0].square().sum(), leaves, create_graph=True)


@pytest.mark.skipif(GPU, reason="for the interpreter, in fp32: a GPU rounds products to bf16")
@pytest.mark.parametrize(
    ("arch", "joint", "documents"),
    [("llama", [0, 1], True), ("tnl", [0, 1, 2, 3], True),
     pytest.param("tnl", [0, 1, 2, 3], False, marks=pytest.mark.slow),
     pytest.param("hgrn2", [0, 1, 2], True, marks=pytest.mark.slow),
     ("cosformer2", [0, 1, 2, 3], False)],
)  # fmt: skip
def test_models_with_joint_products(arch, joint, documents, monkeypatch):
    """Loss and gradients with what runs on a GPU, in fp32, layers computed twice, as those of plain modules."""
    config = preset(arch, "14k", d_model=32, n_heads=2, d_ffn=80, n_layers=2, chunk_size=16)
    ids = torch.randint(0, 257, (2, 34), generator=torch.Generator().manual_seed(0))
    groups, results = [], []
    fused = linear._FusedLinear.apply
    monkeypatch.setattr(linear._FusedLinear, "apply", lambda *a: (groups.append(a[2]), fused(*a))[1])
    for fast in (True, False):
        model = build_model(config, 0)
        model.decoder.gradient_checkpointing, model.decoder.document_start_id = True, 7 if documents else None
        with monkeypatch.context() as patched:
            if fast:
                patched.setattr(linear, "uses_kernels", lambda x: True)
                patched.setattr(linear, "casts", lambda x, weights: len(weights) > 1)
            loss = model(ids[:, :-1], ids[:, 1:], loss_only=True, backend="triton" if fast else "chunk").loss
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        results.append([x.double() for x in (loss.detach(), *gradients)])
    assert any(joint in call for call in groups)
    assert_close(*results, 1e-5)
