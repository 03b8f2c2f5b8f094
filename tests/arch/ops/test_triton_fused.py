"""What runs around the sequence operations on a GPU, against plain PyTorch: outputs and all gradients. The kernels run
on a GPU where there is one, else in Triton's interpreter; the loss by rows also without them."""

import itertools

import pytest
import torch

from arch.architectures.common.delta import plain_unit
from arch.architectures.common.ssm import causal_conv
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.model.mixer import Stream
from arch.model.norms import Norm, normalise
from arch.model.positions import rotate_pairs, rotation
from arch.ops.fused import linear
from arch.ops.fused.cross_entropy import linear_cross_entropy
from arch.ops.fused.embedding import _Rows, embed
from arch.ops.fused.linear import _FusedLinear, fused_gated_linear, fused_linear, joined
from arch.ops.fused.pointwise import gated_product, skip_gated, softplus
from arch.ops.fused.triton import rows, ssm
from arch.ops.fused.triton import short_conv as conv
from arch.ops.joint_rows import gradients_of, joint_width
from arch.ops.triton.column_sums import column_sums
from arch.presets import preset

from .compare import assert_close, randn
from .kernels import DEVICE

TOLERANCE = 2e-6  # of fp32: relative error of a tensor's norm
EPS = 1e-6


def both(function, reference, *inputs):
    """Outputs and gradients of the outputs' products with random tensors, of both functions; inputs in fp32."""
    results = []
    for call, dtype, device in ((function, torch.float32, DEVICE), (reference, torch.float64, "cpu")):
        leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs]
        outputs = call(*leaves)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs.reshape(-1)]
        total = sum((out * randn(*out.shape, dtype=dtype, seed=i).to(device)).sum() for i, out in enumerate(outputs))
        results.append([*outputs, *torch.autograd.grad(total, leaves)])
    result, expected = ([x.detach().cpu().double() for x in tensors] for tensors in results)
    assert_close(result, expected, TOLERANCE)


def inputs(*shapes):
    return [randn(*shape, dtype=torch.float32, seed=10 + i) for i, shape in enumerate(shapes)]


def plain(x, gate=None, weight=None):
    out = normalise(x, weight, None, "srms" if weight is None else "rms", EPS)
    return out if gate is None else out * gate.sigmoid()


def norm(width, gated, weighted):
    def split(x):
        return x[0], x[1] if gated else None, x[-1] if weighted else None

    shapes = [(3, 5, width), *([(3, 5, width)] if gated else []), *([(width,)] if weighted else [])]
    return lambda *x: rows.Norm.apply(*split(x), EPS), lambda *x: plain(*split(x)), shapes


def sum_and_norm(used, weighted):
    """used: which of the two results are read."""

    def by_kernel(x, y, weight=None):
        results = rows.AddNorm.apply(x, y, weight, EPS)
        return [results[i] for i in used]

    def reference(x, y, weight=None):
        results = x + y, plain(x + y, weight=weight)
        return [results[i] for i in used]

    return by_kernel, reference, [(2, 40, 48), (2, 40, 48), *([(48,)] if weighted and 1 in used else [])]


def rotary(half, own, key_heads=3):
    """The rows' positions the same, or each their own."""
    positions = torch.arange(6) + (torch.tensor([[0], [100]]) if own else 0)
    cos, sin = rotation(10_000.0 ** -torch.linspace(0, 1, half), positions)
    shapes = [(2, 6, heads, 2 * half) for heads in (3, key_heads)]
    return (
        lambda q, k: rows.Rotate.apply(q, k, cos.to(DEVICE), sin.to(DEVICE)),
        lambda q, k: rotate_pairs(q, k, cos.double(), sin.double()),
        shapes,
    )


def unit(width):
    """Heads in columns of wider rows, which the kernel reads, and leaves gradients in, where they lie; one of zeros."""

    def cut(x, columns):
        return columns(x * (torch.arange(7) != 2).to(x)[:, None], (4, 3 * width))[1].unflatten(-1, (3, width))

    return (
        lambda x: rows.Unit.apply(cut(x, linear._Columns.apply), 0.3, EPS),
        lambda x: plain_unit(cut(x, lambda x, widths: x.split(widths, -1)), 0.3),
        [(2, 7, 4 + 3 * width)],
    )


def embedding(words):
    """Of small vocabularies and larger ones, some of whose words come often and most never."""
    ids = torch.randint(0, words, (3, 40), generator=torch.Generator().manual_seed(0)) % 7
    return (
        lambda w: _Rows.apply(ids.to(w.device), w, w.dtype),
        lambda w: torch.nn.functional.embedding(ids, w),
        [(words, 6)],
    )


def slices(kernel, reference, cut, *shapes):
    """Both of what `cut` makes of the inputs: slices of wider tensors, as they come from one product."""
    return lambda *x: kernel(*cut(*x)), lambda *x: reference(*cut(*x)), shapes


def skip_norm(weighted, alone=False):
    """In one kernel; of rows whose sizes are apart by a thousand. alone: without v."""
    size = torch.tensor([1000.0, 1, 1000, 1, 1000, 1, 1000])[:, None]

    def parts(o, z, *rest):
        v, skip, *weight = (None, None, *rest) if alone else rest
        return (o * size.to(o), v, z, skip), weight

    def by_kernel(*leaves):
        inputs, weight = parts(*leaves)
        return ssm.Skip.apply(*inputs, *(weight or (None,)), 1e-5)

    def reference(*leaves):
        inputs, weight = parts(*leaves)
        out = skip_gated(*inputs)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)
        return out * weight[0] if weight else out

    return by_kernel, reference, [(2, 7, 21)] * (2 if alone else 3) + [(21,)] * (weighted + (not alone))


GATES = ("", "silu", "sigmoid")
KERNELS = {  # kernel, the same in plain PyTorch, shapes of the inputs
    **{f"norm {case}": norm(*case) for case in itertools.product((8, 48, 6000), (False, True), (False, True))},
    **{f"sum {case}": sum_and_norm(*case) for case in itertools.product(((0, 1), (0,), (1,)), (False, True))},
    **{f"product {gate}": (lambda a, b, gate=gate: rows.Product.apply(a, b, gate),
                           lambda a, b, gate=gate: gated_product(a, b, gate), [(3, 7, 500)] * 2) for gate in GATES},
    # rows of odd width, more than a program takes, and none
    **{f"halves {gate} {shape}": (lambda x, gate=gate: rows.HalvesProduct.apply(x, gate),
                                  lambda x, gate=gate: gated_product(*x.chunk(2, -1), gate), [shape])
       for gate in GATES for shape in ((3, 500, 14), (0, 6))},
    **{f"rotary {case}": rotary(*case) for case in itertools.product((4, 20), (False, True))},
    **{f"unit {width}": unit(width) for width in (3, 20, 128)},
    "rotary grouped": rotary(20, True, 1),
    **{f"embedding {words}": embedding(words) for words in (5, 512, 513)},
    "softplus": (ssm.Softplus.apply, softplus, [(2, 7, 29), (29,)]),
    "softplus of a slice": slices(ssm.Softplus.apply, softplus, lambda x, b: (x[..., 3:24], b), (2, 7, 29), (21,)),
    # of [1, B, C] and its first two axes exchanged: the strides of a lone token may be anything
    "softplus of a token": slices(ssm.Softplus.apply, softplus, lambda x, b: (x.transpose(0, 1), b), (1, 5, 29), (29,)),
    **{f"skip {shape}": slices(ssm.Skip.apply, skip_gated, lambda o, v, z, skip: (o, v[..., 2:23], z[..., 5:26], skip),
                               (*shape, 21), (*shape, 30), (*shape, 30), (21,)) for shape in ((1, 9), (2, 7))},
    **{f"skip and norm {case}": skip_norm(*case) for case in itertools.product((False, True), (False, True))},
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, monkeypatch):
    """Sizes are no multiples of a tile's, and programs take several tiles."""
    for what, size in {"TILE": 64, "CHANNELS": 16, "SHARES": 2}.items():
        monkeypatch.setattr(ssm, what, size)
    function, reference, shapes = KERNELS[name]
    both(function, reference, *inputs(*shapes))


def test_many_rows_share_a_weights_gradient(monkeypatch):
    """Programs take several tiles each."""
    monkeypatch.setattr(rows, "SHARES", 3)
    monkeypatch.setattr(rows, "TILE", 128)
    both(lambda x, w: rows.Norm.apply(x, None, w, EPS), lambda x, w: plain(x, weight=w), *inputs((21, 40), (40,)))


def test_softplus_of_large_and_small():
    """Each result for itself, down to 1e-35, of which a GPU's power of 2 takes a rounded exponent."""
    x = torch.linspace(-80, 80, 2001).view(1, -1, 3)
    result = ssm.Softplus.apply(x.to(DEVICE), torch.zeros(3, device=DEVICE)).cpu().double()
    expected = torch.nn.functional.softplus(x.double(), threshold=1000)
    assert ((result / expected - 1).abs() < 2e-6 + 7.5e-8 * x.double().neg().clamp(min=0)).all()


@pytest.mark.parametrize(("width", "apart"), [(16, 48), (40, 64), (48, 48)])
def test_rows_are_copied_to_columns(width, apart):
    """Rows that a program does not fill, and nothing beside them."""
    (x,) = inputs((1000, 2 * width))
    x, out = x.to(DEVICE)[:, :width], torch.full((1000, apart), 7.0, device=DEVICE)
    rows.copy_rows(x, out[:, :width])
    assert torch.equal(out[:, :width], x) and (out[:, width:] == 7).all()


@pytest.mark.parametrize("case", ["alone", "after others", "packed", "one tap"])
def test_short_convolution(case, monkeypatch):
    """The widths of tiles and of what a program adds up do not divide the sizes."""
    monkeypatch.setattr(conv, "ROWS", (8, 8))
    monkeypatch.setattr(conv, "CHANNELS", 32)

    taps = 1 if case == "one tap" else 4
    document_starts = torch.zeros(2, 21, dtype=torch.bool)
    document_starts[0, [1, 2, 17]] = True
    steps = torch.arange(21)
    positions = steps - torch.where(document_starts, steps, 0).cummax(1).values
    stream = Stream(positions, document_starts=document_starts if case == "packed" else None)
    (past,) = inputs((2, taps - 1, 40)) if case == "after others" else [torch.zeros(2, taps - 1, 40)]

    def by_kernel(x, w, b):
        before = past.to(DEVICE) if case == "after others" else None
        ages = positions.to(DEVICE) if case == "packed" else None
        return conv.ShortConv.apply(x[..., 3:43], before, w, b, ages)

    def reference(x, w, b):
        return torch.nn.functional.silu(causal_conv(torch.cat([past.to(x), x[..., 3:43]], 1), w, b, stream))

    both(by_kernel, reference, *inputs((2, 21, 50), (40, taps), (40,)))


LOSSES = [  # backend, rows of logits at a time, targets of a vocabulary, its size
    *((backend, part, [-100, 48, 3, 50, 0, -100, 44, 7, 12, -100], 51)
      for backend in ("chunk", "triton") for part in (4, 100)),
    # what a program reads at a time twice, thrice and some, and once less than it; the first and the last of them
    *(("triton", 2, [0, width - 1, 31 % width, 32 % width, -100], width) for width in (64, 100, 17)),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "part", "targets", "width"), LOSSES)
def test_loss_of_a_vocabulary(backend, part, targets, width, monkeypatch):
    """In parts, and in one; with targets that do not count, and logits of +-100."""
    if width != 51:
        monkeypatch.setattr(rows, "BLOCK", 32)

    def loss(kind, device):
        given = torch.tensor(targets, device=device)
        return lambda h, w: linear_cross_entropy(30 * h, w, given, part, kind)

    both(loss(backend, DEVICE), loss("naive", "cpu"), *inputs((len(targets), 6), (width, 6)))


@pytest.mark.parametrize("backend", ["naive", "chunk", "triton"])
def test_negative_targets_do_not_count(backend):
    """Whichever number they are; where all are, the mean of none is nan and moves nothing, as torch has it."""
    h, w = (x.to(DEVICE).requires_grad_() for x in inputs((4, 6), (11, 6)))
    targets = torch.tensor([3, -1, 7, -100], device=DEVICE)
    alone = linear_cross_entropy(h[[0, 2]], w, targets[[0, 2]], backend="naive")
    torch.testing.assert_close(linear_cross_entropy(h, w, targets, backend=backend), alone)
    loss = linear_cross_entropy(h, w, targets.clamp(max=-1), backend=backend)
    assert loss.isnan() and not any(x.any() for x in torch.autograd.grad(loss, (h, w)))


@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_loss_of_what_does_not_fit(backend):
    h, w, targets = *inputs((4, 6), (11, 6)), torch.zeros(4, dtype=torch.int64)
    for bad in ((h[:0], w, targets[:0]), (h, w, targets, 0)):
        with pytest.raises(InputError, match="a mean needs a row"):
            linear_cross_entropy(*bad, backend=backend)
    for bad in ((h, w[:, :5], targets), (h, w, targets[:3]), (h[None], w, targets[None])):
        with pytest.raises(InputError, match="do not fit: pass hidden"):
            linear_cross_entropy(*bad, backend=backend)


@pytest.mark.gpu("what it looks for are atomics")
@pytest.mark.parametrize("words", [257, 5000, 100_280])
def test_the_embeddings_gradient_repeats_on_a_gpu(words):
    """PyTorch's own does not, where a word comes often."""
    generator = torch.Generator().manual_seed(0)
    ids = (torch.rand(32, 2048, generator=generator) ** 3 * words).long().to(DEVICE)
    rows = torch.randn(32, 2048, 256, generator=generator).to(DEVICE, torch.bfloat16)
    table = torch.nn.Embedding(words, 256, device=DEVICE)
    result = []
    for _ in range(20):
        (gradient,) = torch.autograd.grad(embed(ids, table, torch.bfloat16), table.weight, rows)
        result.append(gradient)
    exact = torch.zeros(words, 256, dtype=torch.float64, device=DEVICE)
    exact.index_add_(0, ids.flatten(), rows.flatten(0, 1).double())
    assert result[0].dtype == torch.float32 and all(torch.equal(result[0], other) for other in result)
    assert (result[0].double() - exact).norm() < 1e-6 * exact.norm()


@pytest.mark.parametrize("width", [17, 64, 100, 127])
def test_rows_that_are_filled_up(width, monkeypatch):
    """Logits of a head with rows of zeros behind the vocabulary's: as without them, and theirs stay zero."""
    monkeypatch.setattr(rows, "BLOCK", 32)
    logits = 5 * inputs((6, width))[0].to(DEVICE)
    targets = torch.tensor([0, width - 1, 31 % width, 32 % width, -100, 5], device=DEVICE)
    wide = torch.zeros(6, (width + 31) // 16 * 16, device=DEVICE)
    wide[:, :width] = logits
    scale = torch.tensor(0.3, device=DEVICE)
    losses, result = rows.loss_of_rows(logits, targets, scale), rows.loss_of_rows(wide[:, :width], targets, scale)
    assert_close([result, wide[:, :width]], [losses, logits], TOLERANCE)
    assert not wide[:, width:].any()
    kept = wide.clone()  # a target beyond the vocabulary writes nowhere
    losses = rows.loss_of_rows(wide[:2, :width], torch.tensor([3, width + 5], device=DEVICE), scale)
    assert torch.equal(wide[2:], kept[2:]) and not wide[:, width:].any() and losses.isnan().tolist() == [False, True]


@pytest.mark.parametrize("backend", ["chunk", "triton"])
def test_loss_without_gradients(backend):
    """Of a vocabulary wider than what a program reads at a time."""
    h, w = (x.to(DEVICE) for x in inputs((3, 4), (40_000, 4)))
    targets = torch.tensor([0, 39_999, 8192], device=DEVICE)
    with torch.no_grad():
        result, expected = (linear_cross_entropy(h, w, targets, 2, kind) for kind in (backend, "naive"))
    torch.testing.assert_close(result, expected)


@pytest.mark.gpu("what it looks for are races")
@pytest.mark.parametrize("width", [40_000, 100_280])
def test_rows_by_many_warps(width):
    """Losses and gradients of vocabularies as models have them; the same twice, and of a wrong target nan alone."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(300, width, generator=generator)).to("cuda", torch.bfloat16)
    targets = torch.randint(0, width, (300,), generator=generator).cuda()
    targets[:4] = torch.tensor([0, width - 1, -100, 32_768])
    scale = torch.tensor(0.5, device="cuda")
    exact = logits.double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(exact, targets, reduction="none")
    (expected,) = torch.autograd.grad(losses.sum(), exact)
    result = [(work := logits.clone(), rows.loss_of_rows(work, targets, scale)) for _ in range(2)]
    assert torch.equal(result[0][0], result[1][0]) and torch.equal(result[0][1], result[1][1])
    assert_close([result[0][1].double(), result[0][0].double()], [losses.detach(), 0.5 * expected], 3e-3)
    own = torch.arange(300), targets.clamp(min=0).cpu()
    torch.testing.assert_close(result[0][0][own].double(), 0.5 * expected[own], rtol=0.01, atol=1e-4)
    beyond = rows.loss_of_rows(logits[:2].clone(), torch.tensor([5, width + 7], device="cuda"), scale)
    assert beyond.isnan().tolist() == [False, True]


def test_chunks_of_the_loss_under_autocast():
    """Logits and products in bf16, the sums in fp32: as near to float64 as the plain loss is."""
    h, w = (0.5 * x for x in inputs((300, 32), (77, 32)))
    targets = torch.randint(0, 77, (300,), generator=torch.Generator().manual_seed(0))

    def gradients(backend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in (h, w)]
        with torch.autocast("cpu", torch.bfloat16, enabled=backend != "exact"):
            loss = linear_cross_entropy(*leaves, targets, 64, "naive" if backend == "exact" else backend)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    exact = gradients("exact", torch.float64)
    for result, plainly, expected in zip(
        gradients("chunk", torch.float32), gradients("naive", torch.float32), exact, strict=True
    ):
        assert (result - expected).norm() < 1.5 * (plainly - expected).norm() + 1e-4 * expected.norm()


@pytest.mark.parametrize("norm", ["srms", "rms", "layer"])
def test_norm_of_a_sum(norm):
    module, (x, branch) = Norm(norm, 12, EPS), inputs((2, 3, 12), (2, 3, 12))
    total, out = module.add(x, branch)
    assert torch.equal(total, x + branch) and torch.equal(out, module(x + branch))


def test_a_loss_alone_is_the_loss():
    model = build_model(preset("tnl", "6k"), 0)
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(0))
    whole, alone = (model(input_ids=ids, targets=ids.roll(-1, 1), loss_only=only) for only in (False, True))
    assert torch.equal(whole.loss, alone.loss) and alone.logits.shape == (2, 0, 257)


@pytest.mark.parametrize("groups", [[[0], [1], [2]], [[0, 1, 2]], [[1], [0, 2]]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_linear_maps_are_one_node(dtype, groups):
    """Outputs and gradients of the fused version, as those of the maps one by one; the weights' are not rounded."""
    weights = inputs((5, 12), (7, 12), (1, 12))

    def together(x, *weights):
        return [y.float() for y in _FusedLinear.apply(x, dtype, groups, True, False, *weights)]

    def apart(x, *weights):
        return [x @ weight.T for weight in weights]

    if dtype == torch.float32:
        both(together, apart, *inputs((2, 3, 12)), *weights)
        return
    leaves = [x.requires_grad_() for x in (*inputs((2, 3, 12)), *weights)]
    result = torch.autograd.grad(sum(y.square().sum() for y in together(*leaves)), leaves)
    expected = torch.autograd.grad(sum(y.square().sum() for y in apart(*leaves)), leaves)
    for a, b in zip(result, expected, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.01 * b.norm()


@pytest.mark.parametrize("frozen", ["neither", "up", "gate", "x"])
@pytest.mark.parametrize("kind", ["", "silu", "sigmoid"])
def test_gated_linear_maps_are_one_product(kind, frozen, monkeypatch):
    """the fused version, of weights that are cast, as two maps and their product; widths that fill no vector."""
    up, gate = (torch.nn.Linear(12, 7, bias=False).to(DEVICE) for _ in range(2))
    x, weight = inputs((2, 3, 12), (2, 3, 7))
    leaves = {"x": x.to(DEVICE).bfloat16().requires_grad_(), "up": up.weight, "gate": gate.weight}
    if frozen in leaves:
        leaves.pop(frozen).requires_grad_(False)
    x = leaves.get("x", x.to(DEVICE).bfloat16())
    exact = gated_product(x.float() @ up.weight.T, x.float() @ gate.weight.T, kind)
    expected = [exact.detach(), *torch.autograd.grad(exact, list(leaves.values()), weight.to(DEVICE))]
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    products = []
    fused = linear._FusedLinear.forward
    monkeypatch.setattr(linear._FusedLinear, "forward", lambda *a: (products.append(a), fused(*a))[1])
    out = fused_gated_linear(x, up, gate, kind)
    result = [out.detach(), *torch.autograd.grad(out, list(leaves.values()), weight.to(out))]
    assert len(products) == 1 and [y.dtype for y in result] == [torch.bfloat16, *(y.dtype for y in leaves.values())]
    assert_close([y.double() for y in result], [y.double() for y in expected], 0.02)


@pytest.mark.parametrize("biased", [False, True])
def test_gated_linear_maps_of_modules(biased, monkeypatch):
    """On a CPU, and with biases on what passes for a GPU, the maps and their product as they are."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: biased)
    monkeypatch.setattr(linear, "gated_product", lambda a, b, kind: a * torch.nn.functional.silu(b))
    up, gate = (torch.nn.Linear(12, 7, bias=biased) for _ in range(2))
    (x,) = inputs((2, 3, 12))
    torch.testing.assert_close(fused_gated_linear(x, up, gate, "silu"), up(x) * torch.nn.functional.silu(gate(x)))


@pytest.mark.parametrize("biased", [False, True])
def test_linear_maps_of_modules(biased, monkeypatch):
    """On a CPU, and with a bias, which is not left out, on what passes for a GPU."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: biased)
    modules = [torch.nn.Linear(12, 5, bias=False), torch.nn.Linear(12, 7, bias=biased)]
    (x,) = inputs((2, 3, 12))
    for result, module in zip(fused_linear(x, tuple(modules)), modules, strict=True):
        torch.testing.assert_close(result, module(x), rtol=0 if not biased else 1e-5, atol=0 if not biased else 1e-6)


@pytest.mark.parametrize(
    ("width", "autocast", "joint"),
    [(32, True, [64, 64, 64, 0]), (24, True, [32, 0, 32, 0]), (32, False, [0, 0, 0, 0])],
    ids=str,
)
def test_maps_that_are_given_together_are_one_product(width, autocast, joint, monkeypatch):
    """Where their weights are cast, but those whose outputs would not begin at a vector of a row; else one each."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    modules = [torch.nn.Linear(12, w, bias=False) for w in (16, width, 16, 16)]
    (x,) = inputs((2, 3, 12))
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = fused_linear(x, tuple(modules[:3]), modules[3])
        expected = [module(x) for module in modules]
    leaves = [x, *(module.weight for module in modules)]
    grads = [torch.autograd.grad(sum(y.float().sin().sum() for y in outputs), leaves) for outputs in (result, expected)]
    for a, b in zip((*result, *grads[0]), (*expected, *grads[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    assert [joint_width(y) for y in result] == joint


@pytest.mark.parametrize("frozen", [None, 0, 1])
def test_gradients_beside_each_other_are_read_where_they_lie(frozen, monkeypatch):
    """A reader that leaves the gradients of two outputs in their columns, and one that knows nothing of them."""
    monkeypatch.setattr(linear, "uses_kernels", lambda x: True)
    matrices = []
    monkeypatch.setattr(linear, "joined", lambda given: (matrices.append(joined(given)), matrices[-1])[1])

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.square(), b.square()

        @staticmethod
        def backward(ctx, *grads):
            made = gradients_of(*ctx.saved_tensors)
            for out, x, grad in zip(made, ctx.saved_tensors, grads, strict=True):
                out.copy_(2 * x * grad)
            places.append(made[0].untyped_storage().data_ptr())
            return made

    places = []
    modules = [torch.nn.Linear(12, 16, bias=False) for _ in range(3)]
    leaves = [module.weight for module in modules]
    if frozen is not None:
        leaves.pop(frozen).requires_grad_(False)
    (x,) = inputs((2, 3, 12))
    leaves.append(x.requires_grad_())
    results = []
    for square in (Square.apply, lambda a, b: (a.square(), b.square())):
        with torch.autocast("cpu", torch.bfloat16):
            a, b, c = fused_linear(x, tuple(modules))
        total = sum(y.float().sin().sum() for y in (*square(a, c), b.square()))
        results.append(torch.autograd.grad(total, leaves))
    assert len(matrices) == 2 and matrices[0].untyped_storage().data_ptr() == places[0]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_models_on_a_gpu_are_those_of_the_cpu(arch, packed):
    """In fp32, with all that runs around the sequence operations; on the GPU layers are computed twice."""
    config = preset(arch, "98k", norm="rms") if arch == "hgrn2" else preset(arch, "98k")
    ids = torch.randint(0, 257, (2, 97), generator=torch.Generator().manual_seed(0))
    documents = (torch.arange(96) >= 50).long().expand(2, -1) if packed else None
    results = []
    for device in ("cpu", "cuda"):
        model = build_model(config, 0).to(device)
        model.decoder.gradient_checkpointing = device == "cuda"
        own = None if documents is None else documents.to(device)
        moved = ids.to(device)
        loss = model(input_ids=moved[:, :-1], targets=moved[:, 1:], documents=own, loss_only=True).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        results.append([x.detach().cpu().double() for x in (loss, *gradients)])
    assert_close(results[1], results[0], 1e-4)


@pytest.mark.parametrize("shape", [(1, 16), (1000, 24), (129, 257)])
def test_column_sums(shape):
    (x,) = inputs(shape)
    torch.testing.assert_close(column_sums(x.to(DEVICE)).cpu().double(), x.double().sum(0), rtol=1e-5, atol=1e-5)
