"""The kernels of attention in bf16 against float64: as exact as the chunk backend whose products are rounded alike. On
a GPU; and `decay_attention` in Triton's interpreter, whose own bf16 is wrong, with a GPU's roundings put in."""

import threading

import pytest
import torch

from arch.architectures.tnl.mixer import log_decays
from arch.bench.measure import RoundedProducts, gradients, relative
from arch.kernel_config import override
from arch.ops import decay_attention, gated_attention
from arch.ops.triton.device_config import rotary_for_device

from .compare import assert_close, picked, randn, with_gradients
from .kernels import DEVICE, GPU, Decay

HEADS = 4
STRONG = (0.0, -1e-6, -0.02, -0.7, -14.0, -float("inf"))
INTERPRETED = pytest.mark.skipif(GPU, reason="for the interpreter; a GPU rounds by itself")
ON_A_GPU = pytest.mark.gpu("the interpreter's bf16 products are wrong")


def as_exact_as_the_chunk_backend(call, leaves, names, sizes, amplified=False):
    """The kernels' output, state and gradients: at most 1.5 times the error of the chunk backend whose products are
    rounded alike, what is bf16 at most 2.5 times that of the chunk backend in fp32, and twice the same.

    call(backend, leaves): output and state; names: of the leaves; amplified: roundings inside a chunk are, by the
    operation itself, so that those of the inputs alone are no measure.
    """
    with torch.no_grad():
        numbers = sum(x.numel() for x in call("chunk", leaves))
    weights = randn(numbers, dtype=torch.float64, seed=6).to(leaves[0].device)

    def run(backend, leaves):
        with override(**sizes):
            return gradients(lambda x: torch.cat([y.double().flatten() for y in call(backend, x)]), leaves, weights)

    expected = run("chunk", [x.double() for x in leaves])
    actual, again, plain = run("triton", leaves), run("triton", leaves), run("chunk", leaves)
    with RoundedProducts():
        rounded = run("chunk", leaves)
    assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))
    errors = zip(*(relative(x, expected) for x in (actual, rounded, plain)), strict=True)
    for name, leaf, (error, its, best) in zip(["out", *names], [None, *leaves], errors, strict=True):
        assert error < max(1.5 * its, 1e-6), f"{name}: {error:.1e}, the chunk backend {its:.1e}"
        if leaf is not None and leaf.dtype == torch.bfloat16 and not amplified:  # fp32 has no rounding in PyTorch
            assert error < 2.5 * best, f"{name}: {error:.1e}, the fp32 chunk backend {best:.1e}"


def check_decay(call, **sizes):
    leaves = [x.to(DEVICE, torch.bfloat16 if i < 3 else x.dtype) for i, x in enumerate(call.leaves())]
    names = ["q", "k", "v", *(["decays"] if call.decays is not None else []), "state"]
    names += [] if call.positions is None else ["theta"]
    names += ["gain", "skip"] if call.gain is not None else []
    as_exact_as_the_chunk_backend(call.run, leaves, names, sizes)


@pytest.fixture
def poisoned():
    """Memory that is not initialised holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


CASES = [  # widths of keys and values, heads that share their keys, length, decays, angles, packed, activation
    *(
        (*sizes, kind, angles, packed, "")
        for sizes in (
            *((width, width, 1, 777) for width in (16, 32, 64, 128, 256)),
            (128, 64, 4, 1000),
            (64, 128, 2, 65),
            (128, 128, 1, 1),
            (64, 64, 1, 70_001),
        )
        for kind in ("none", "constant", "per step", "strong")
        for angles in (False, True)
        for packed in (False, True)
        if not (angles and sizes[0] > 128)  # which take the chunk backend
    ),
    *(
        (*sizes, kind, kind == "none", False, "silu")
        for sizes in ((128, 128, 1, 777), (64, 128, 2, 65), (128, 64, 4, 1))
        for kind in ("constant", "none")
    ),
    *(
        (*sizes, kind, False, packed, "", True)
        for sizes in ((128, 64, 4, 1000), (128, 64, 2, 65), (128, 128, 1, 777), (32, 32, 2, 777), (128, 64, 1, 1))
        for kind in ("per step", "strong")
        for packed in (False, True)
    ),
    # at the widths at which the runs of angles take place
    *((128, 128, 1, length, "none", True, False, "") for length in (63, 64, 65, 200, 70_001)),
    *((128, 128, 2, length, "none", True, False, "silu") for length in (65, 777)),
]


@ON_A_GPU
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.usefixtures("poisoned")
def test_decay_attention(case):
    """A ninth of a case: with gain and skip."""
    key_dim, value_dim, shared, length, kind, angles, packed, activation, *gained = case
    batch = 2 if length > 1 else 64  # an error of eight numbers would be chance
    steps = randn(batch, length, HEADS, dtype=torch.float32, seed=7)
    call = Decay(
        length, (HEADS // shared, HEADS), (key_dim, value_dim), batch, activation=activation, scale=key_dim**-0.25,
        rates=torch.tensor(log_decays(3, 12, HEADS), dtype=torch.float32) if kind == "constant" else None,
        decays={"strong": picked(batch, length, HEADS, values=STRONG, dtype=torch.float32, seed=7),
                "per step": -torch.nn.functional.softplus(steps - 3)}.get(kind),
        positions=torch.arange(length) if angles else None,
        document_starts=randn(batch, length, dtype=torch.float32, seed=5) > 2.5 if packed else None,
        gain=torch.nn.functional.softplus(3 * steps) if gained else None,
        skip=torch.linspace(0.5, 2, HEADS) if gained else None,
    )  # fmt: skip
    check_decay(call, segments=3 if length > 192 else 0)  # the last of three segments is shorter


@ON_A_GPU
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "key_dim, value_dim, length, mean, spread, activation",
    [
        *((width, width, 777, 1, 1, "") for width in (16, 32, 64, 128, 256)),
        (64, 128, 1, 1, 1, ""),
        (128, 128, 1000, -1.5, 1, ""),
        (128, 128, 1000, -1.9, 0.2, ""),  # the strongest decays that are referred to a chunk's middle
        (128, 128, 1000, -3, 0.2, ""),  # pairs of far channels referred to the middles of halves
        (128, 128, 1000, -4, 3, ""),
        (128, 128, 1000, 0, 1e4, ""),
        (64, 64, 70_000, 4, 1, ""),
        *((128, 128, 1000, mean, spread, "silu") for mean, spread in ((1, 1), (-4, 3))),
    ],
)
def test_gated_attention(key_dim, value_dim, length, mean, spread, activation, packed):
    def made(*shape, seed):
        return randn(*shape, dtype=torch.float32, seed=seed).to(DEVICE)

    q, logits = (made(2, length, 2, key_dim, seed=seed) for seed in range(2))
    leaves = [q, made(2, length, 2, value_dim, seed=2), spread * logits + mean]
    leaves = [x.bfloat16() for x in leaves] + [torch.linspace(0.0, 0.5, 2 * key_dim, device=DEVICE).view(2, key_dim)]
    leaves += [made(2, 2, key_dim, value_dim, seed=4)]
    document_starts = made(2, length, seed=5) > 2.5 if packed else None

    def call(backend, x):
        return gated_attention(
            x[0], None, x[1], (x[2], x[3]), x[4], backend=backend, document_starts=document_starts,
            activation=activation,
        )  # fmt: skip

    as_exact_as_the_chunk_backend(call, leaves, ("q", "v", "logits", "bound", "state"), {})


@pytest.mark.gpu("Gluon has no interpreter")
@pytest.mark.parametrize(
    "length, segments, start, rows",
    [(1, 0, False, True), (64, 0, True, False), (333, 3, True, True), (4100, 0, False, False)],
)
def test_values_by_gluon_equal_triton_s(length, segments, start, rows):
    """Outputs, final states and all gradients; the same twice; also of positions that differ by row."""
    if not rotary_for_device(128, 128, exact=False).gluon:
        pytest.skip("Gluon's kernel is for Hopper, a Triton it ran with and the assembler of the extra gpu")
    steps = torch.arange(length) * 7 % 6000
    steps = torch.stack((steps, steps.flip(0) + 3)) if rows else steps
    call = Decay(length, widths=(128, 128), batch=2, positions=steps, state=start)
    leaves = [x.to("cuda", torch.bfloat16 if i < 3 else x.dtype) for i, x in enumerate(call.leaves())]

    def run():
        return with_gradients(lambda x: call.run("triton", x), leaves)

    with override(segments=segments):
        result, again = run(), run()
        with override(gluon=False):
            expected = run()
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))
    assert_close([x.double() for x in result], [x.double() for x in expected], 1e-3)


@pytest.mark.gpu("the interpreter makes no descriptors")
def test_a_thread_s_first_request():
    """Of a kernel that is given descriptors, where all memory is at hand: the thread has no CUDA context yet."""
    x = [randn(1, 300, 1, 128, dtype=torch.float32, seed=seed).cuda().bfloat16() for seed in range(3)]
    result = []

    def run():
        result.append(decay_attention(*x, backend="triton")[0])

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(result) == 2 and torch.equal(*result)


@INTERPRETED
@pytest.mark.parametrize("sizes", [{"tma": False}, {"tma": True}, {}])
@pytest.mark.usefixtures("rounding")
def test_decay_attention_with_its_roundings(sizes):
    """One row, between two states that are given in fp32; with angles where nothing is said of tma."""
    decays = picked(6, 1, 2, values=STRONG, dtype=torch.float32, seed=5)
    positions = None if sizes else torch.tensor([1])
    check_decay(Decay(1, (2, 2), (16, 16), 6, decays=decays, positions=positions, scale=0.5), chunk=16, **sizes)
