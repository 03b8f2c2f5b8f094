"""The kernels of `decay_attention` and `gated_attention` against the recurrences in float64: on a GPU where there is
one, else in Triton's interpreter."""

import math
import warnings

import pytest
import torch

from arch.errors import InputError
from arch.ops import decay_attention, gated_attention
from arch.ops.decay_attention.triton import operator, rotary_operator

from .compare import CASES, assert_close, case, fewer_heads, picked, randn, silu_of_queries
from .kernels import DEVICE, GPU, TOLERANCE, Decay, case_equals_the_recurrence, equals_the_recurrence, moved, starts

INF = float("inf")
LOG_DECAYS = [0.0, -1e-6, -0.7, -14.0, -100.0, -INF]
GATED = ("gated tied", "gated log", "gated logits")
# of channels whose exponents are sums of their own terms alone; a GPU's fp32 products and powers have fewer digits
FAR = TOLERANCE if GPU else 3e-6
# `gated_attention` by kernels of states and of outputs, or by one for both, Hopper's
sequential = pytest.mark.parametrize("sequential", [False, True])
EXACT = pytest.mark.skipif(
    GPU, reason="for the interpreter: the copy engine asks for wider rows than small fp32 tiles have"
)


@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [*((name, {}) for name in CASES[:6]), *((name, {"sequential": True}) for name in GATED)],
)
def test_kernels_equal_the_recurrence(name, sizes, length):
    case_equals_the_recurrence(name, length, all_heads=not sizes, **sizes)


@pytest.mark.parametrize(
    ("name", "length", "tolerance", "sizes"),
    [("decay step", 35, TOLERANCE, {}), ("gated log", 35, TOLERANCE, {}),
     *((name, 70, FAR, {"sequential": x}) for name in ("gated tied", "gated log") for x in (False, True))],
)  # fmt: skip
def test_any_decay(name, length, tolerance, sizes):
    """From none to one of 0. Of 70 rows, chunks whose log2 f sum to a thousand, and rows from which little is lost."""
    decays = LOG_DECAYS if length == 35 else [x for x in LOG_DECAYS if x != -100]
    case_equals_the_recurrence(name, length, log_decays=decays, tolerance=tolerance, **sizes)


@pytest.mark.parametrize(
    "name", ["decay head", "decay step", *(pytest.param(x, marks=pytest.mark.slow) for x in ("decay none", *GATED[:2]))]
)
def test_packed_documents(name):
    case_equals_the_recurrence(name, 40, starts(40, [1, 32, 33], [0, 5, 31, 39]))


@sequential
def test_packed_documents_of_gated_attention(sequential):
    """No decay stands for a reset: what would cross it is left out."""
    case_equals_the_recurrence("gated logits", 70, starts(70, [1, 33], [0, 69]), sequential=sequential)


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("name", ["decay none", "decay head", "decay step"])
def test_segments(name, tma):
    """Three segments, the last one shorter and its last chunk too; both directions in time. tma: Hopper's kernels."""
    case_equals_the_recurrence(name, 70, segments=3, chunk=16, tma=tma)


def test_saturated_logits():
    """Gates of 0 and 1 to fp32's last bit and beyond, in two segments; a bound of 0 is a constant to log f."""
    values = [-200.0, -95.0, -40.0, -9.0, 0.0, 9.0, 40.0, 200.0]
    logits = picked(1, 40, 2, 16, values=values, dtype=torch.float32, seed=0)
    bound = torch.tensor([0.0, 0.3])[:, None].expand(2, 16).contiguous()
    q, v = (randn(1, 40, 2, 16, dtype=torch.float32, seed=seed) for seed in (1, 2))

    def run(backend, x):
        return gated_attention(x[0], None, x[1], (x[2], x[3]), backend=backend)

    equals_the_recurrence(run, [q, v, logits, bound])
    equals_the_recurrence(run, [q, v, logits, bound], segments=2, chunk=16)


RATES = {"rates": torch.tensor([-1e-3, -3.0])}
CONSTANT = Decay(70, (2, 4), rates=torch.tensor([-INF, 0.0, -0.03, -2.0]))
STRONG = torch.tensor([-INF, -0.03])
AFTER_9, ROWS = (
    torch.arange(40) + 9,
    torch.stack([torch.arange(57) * 7 % 64 + 3, torch.arange(57).flip(0) * 7 % 64 + 3]),
)
TWO_DOCUMENTS = torch.cat([torch.arange(9, 30), torch.arange(16)])[None]
PACKED = torch.stack([AFTER_9, torch.cat([AFTER_9[:13], torch.arange(27)])])
LEARNED = picked(2, 37, 3, values=[0.0, -1e-6, -0.1, -5.0, -INF], dtype=torch.float32, seed=4)
GAINS = randn(2, 37, 3, dtype=torch.float32, seed=6).mul(4).exp()
FADING = -randn(1, 37, 2, dtype=torch.float32, seed=4).abs()
TILES = {"state_tile": (16, 16), "output_tile": 16, "key_tile": 16}
DECAYS = {  # a call, sizes
    # the same decay at every step, a head's own: three segments, the last chunk ragged
    "constant": (CONSTANT, {"segments": 3, "chunk": 16, "tma": False}),
    "constant, tma": (CONSTANT, {"segments": 3, "chunk": 16, "tma": True}),
    "silu in tiles, tma": (
        Decay(37, widths=(32, 32), rates=STRONG, activation="silu", scale=2),
        {"segments": 3, "chunk": 16, "tma": True, "key_tile": 16},
    ),
    # two tiles of either width, three heads sharing their keys
    "learned in tiles, tma": (
        Decay(37, (1, 3), (32, 32), 2, decays=LEARNED, document_starts=torch.arange(37).expand(2, 37) % 20 == 9),
        {"tma": True, "segments": 2, "chunk": 16, "tile": 16, "key_tile": 16},
    ),
    # gains of every size and at document starts, with decays or alone; a decay of each head is read by step beside them
    **{
        f"{what}, {kind}": (
            Decay(
                37, (1, 3), (32, 32), 2, gain=GAINS, document_starts=torch.arange(37).expand(2, 37) % 20 == 9, **more
            ),
            {"tma": kind == "tma", "segments": 2, "chunk": 16, "tile": 16, "key_tile": 16},
        )
        for what, more in {
            "gain and skip": {"decays": LEARNED, "skip": torch.tensor([1.0, -2.0, 0.0])},
            "gain alone": {},
            "gain and rates": {"rates": torch.tensor([-INF, 0.0, -0.3])},
        }.items()
        for kind in ("tma", "portable")
    },
    "skip and rates": (Decay(70, (2, 4), rates=CONSTANT.rates, skip=torch.ones(4)), {"segments": 3, "chunk": 16}),
    "angles": (Decay(40, (2, 4), (6, 3), 2, positions=AFTER_9), {}),
    "angles, packed": (Decay(40, (2, 4), (6, 3), 2, positions=PACKED, document_starts=PACKED == 0), {}),
    "angles, learned, a reset, in tiles": (
        Decay(37, widths=(32, 32), decays=FADING, positions=TWO_DOCUMENTS, document_starts=TWO_DOCUMENTS == 0),
        {"segments": 2, "chunk": 16} | TILES,
    ),
    "angles in tiles": (
        Decay(66, (1, 1), (32, 32), positions=torch.arange(66) + 5),
        {"segments": 3, "chunk": 16, "value_tile": 32} | TILES,
    ),
    "angles and rates in tiles": (
        Decay(66, widths=(32, 32), positions=torch.arange(66) + 5, **RATES),
        {"segments": 3, "chunk": 16, "value_tile": 32} | TILES,
    ),
    # two heads share their keys, in two tiles; gradients are of what they are before silu
    "angles and silu": (
        Decay(36, widths=(32, 16), positions=torch.arange(36) + 5, activation="silu", scale=3),
        {"chunk": 16, "key_tile": 16},
    ),
    "angles, rates and silu": (
        Decay(36, widths=(32, 16), positions=torch.arange(36) + 5, activation="silu", scale=3, **RATES),
        {"chunk": 16, "key_tile": 16},
    ),
}
# with states in registers: ragged lengths, segments of unequal length, shared keys, tiles of channels, unequal widths
RUNS = {
    "everything": (Decay(57, widths=(32, 32), batch=2, positions=ROWS, activation="silu"), 3),
    "two tiles": (Decay(40, (1, 1), (64, 32), 2, positions=torch.arange(40) * 7 % 64 + 3), 2),
    "one token": (Decay(1, (1, 1), (32, 32), 2, positions=torch.tensor([3])), 0),
}


@pytest.mark.parametrize("name", DECAYS)
def test_decay_attention(name):
    call, sizes = DECAYS[name]
    equals_the_recurrence(call.run, call.leaves(), **sizes)


@EXACT
@pytest.mark.parametrize("name", RUNS)
def test_runs_of_angles(name):
    call, segments = RUNS[name]
    equals_the_recurrence(call.run, call.leaves(), sequential=True, chunk=16, segments=segments)


def test_angles_in_any_layout():
    """theta as a transposed view; without a state and its gradient, as in training; twice the same."""
    call = Decay(33, (2, 2), positions=torch.arange(33), state=False)

    def outputs(backend, leaves):
        return call.run(backend, leaves)[0], leaves[0].new_zeros(1)

    leaves = call.leaves()
    leaves[3] = leaves[3].T.contiguous().T
    first, again = (equals_the_recurrence(outputs, leaves) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_revolutions_in_two_parts():
    """theta / 2 pi to 2^-46, in several programs of unequal shares, and the positions, of either integer dtype."""
    theta = torch.rand(128, 5, generator=torch.Generator().manual_seed(1)).T.to(DEVICE)
    for positions in (torch.arange(513, device=DEVICE).view(171, 3).T + (1 << 22), torch.arange(7, device=DEVICE)):
        high, low, steps = rotary_operator._parts(theta, positions)
        assert torch.equal(rotary_operator._parts(theta, positions.int())[2], steps)
        assert torch.equal(steps, positions.float()) and low.abs().max() > 0
        rotation = theta.double() / (2 * math.pi)
        assert ((high.double() + low.double() - rotation).abs() <= 2**-46 * rotation).all()


@pytest.mark.parametrize("backend", ["chunk", "triton"])
def test_angles_beside_what_the_kernels_do_not_take(backend):
    """Decays in float64 do not leave the angles out; what does not fit, whose end kernels would pass, is refused."""
    call = Decay(20, positions=torch.arange(20), rates=torch.tensor([-0.1, -3.0], dtype=torch.float64, device=DEVICE))
    q, k, v, state, theta = (x.to(DEVICE) for x in call.leaves())
    steps = torch.arange(20, device=DEVICE)
    result, expected = (
        decay_attention(q, k, v, call.rates, state, backend=kind, angles=(theta, steps)) for kind in (backend, "naive")
    )
    assert_close([x.double() for x in result], [x.double() for x in expected], TOLERANCE)
    with pytest.raises(InputError, match="initial_state has shape"):
        decay_attention(q, k, v, None, state[:, :, :16], backend=backend, angles=(theta, steps))
    for positions in (steps[:19], steps.expand(3, -1), steps.float()):
        with pytest.raises(InputError, match=r"expected int \[T = 20\] or \[B = 1, T = 20\]"):
            decay_attention(q, k, v, backend=backend, angles=(theta, positions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "heads", "width"), [(1, 8, 128), (3, 9, 64)])
def test_shares_of_heads_are_added_where_the_gradients_lie(groups, heads, width, dtype):
    """Columns of one tensor, and nothing beside them."""
    whole = torch.full((2, 41, 2 * groups * width + 24), 7.0, dtype=dtype, device=DEVICE)
    before, d_q, between, d_k, behind = whole.split([8, groups * width, 8, groups * width, 8], -1)
    d_q, d_k = (x.unflatten(-1, (groups, width)) for x in (d_q, d_k))
    shares = operator.head_shares(d_q, d_k, heads)
    for seed, share in enumerate(shares):
        assert share.shape == (2, 41, heads, width) and share.dtype == dtype
        share.copy_(randn(*share.shape, dtype=torch.float32, seed=seed))
    operator.add_shares(d_q, d_k, shares)
    for x, share in zip((d_q, d_k), shares, strict=True):
        expected = share.double().unflatten(2, (groups, -1)).sum(3)
        assert_close([x.double()], [expected], 1e-6 if dtype == torch.float32 else 2**-8)
    assert all(bool((x == 7).all()) for x in (before, between, behind))
    assert operator.head_shares(d_q, d_k, groups) == (d_q, d_k)


@sequential
@pytest.mark.parametrize("logits", [False, True])
def test_documents_of_a_few_rows(logits, sequential):
    """Chunks with many resets, without any, with strong decays of some channels, and with both of these."""
    length, width = 118, 16
    q, k, v, gate = (randn(2, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(4))
    state = randn(2, 1, width, width, dtype=torch.float32, seed=4)
    gate[:, 64:, :, ::2] *= 40
    bound = torch.linspace(0.0, 0.9, width)[None]
    tokens = torch.tensor([*range(5, 32, 5), *range(96, length, 7)])
    document_starts = starts(length, tokens, tokens + 2 - length)

    def run(backend, x):
        gate = (x[3], x[5]) if logits else x[3]
        return gated_attention(*x[:3], gate, x[4], backend=backend, document_starts=moved(document_starts, x[0].device))

    leaves = [q, k, v, gate, state, bound] if logits else [q, k, v, -gate.abs(), state]
    equals_the_recurrence(run, leaves, FAR, sequential=sequential)


def numbers(length, width=16):
    return randn(1, length, 1, width, dtype=torch.float32, seed=3)


def by_halves(strengths, weak_rows=()):
    """log f of 150 rows of 32 channels: -log2 f of each channel, a hundredth of it in `weak_rows` of every chunk of 32
    but of the first channel."""
    strength = torch.tensor(strengths).repeat(32)[:32].flip(0).repeat(150, 1)[:, None]
    strength[[row for row in range(150) if row % 32 in weak_rows], :, 1:] *= 0.01
    return -(strength * math.log(2) * (1 + 0.01 * numbers(150, 32)))


LATE = -0.1 * numbers(300).abs()
LATE[:, 273:] *= 400
GATES = {  # log f, whether there is an initial state, tolerance, sizes
    "nothing is forgotten": (torch.zeros(1, 70, 1, 16), False, TOLERANCE, {}),
    # channels referred to the middle of a chunk beside channels that cannot be, in one tile
    "both in a tile": (-numbers(72).abs() * torch.tensor([0.1, 30.0] * 8), True, TOLERANCE, {"chunk": 16}),
    "both in segments": (
        -numbers(72).abs() * torch.tensor([0.1, 30.0] * 8), True, TOLERANCE, {"chunk": 16, "segments": 2}),
    # far channels in the last chunks alone, of which one is ragged; with segments behind others that have none
    "strong at the end": (LATE, False, FAR, {"chunk": 16, "segments": 1}),
    "strong at the end, in segments": (LATE, False, FAR, {"chunk": 16, "segments": 3}),
    # just above and just below what 16 rows may have: factors of 2^99, and none above 1. Two exponents of 99 that
    # cancel leave a rounding of theirs, which REACH limits.
    "within reach": (torch.full((1, 64, 1, 16), -6.2 * math.log(2)), False, 4e-5 if GPU else TOLERANCE, {}),
    "out of reach": (torch.full((1, 64, 1, 16), -6.3 * math.log(2)), False, FAR, {}),
    # rows referred to the middle of their half of a chunk (log2 f of -6: -192 over 32 rows, -96 over 16, -48 over 8),
    # alone, beside weaker channels, and beside stronger ones, for which neither middle is within reach
    **{f"strengths {x}": (by_halves(x), True, TOLERANCE, {"chunk": 32})
       for x in ((6.0,), (6.0, 0.2), (6.0, 14.0), (0.2, 6.0, 14.0))},
    "first rows forget little": (by_halves((9.0,), range(20)), True, TOLERANCE, {"chunk": 32}),
    # where the middle rows have more than 2^-150 in all, whose own pairs do not
    "middle rows forget much": (by_halves((9.5,), (*range(8), *range(24, 32))), True, TOLERANCE, {"chunk": 32}),
}  # fmt: skip


# by the kernel of both alone: those of states and of outputs cut a chunk by the same rule
OF_ONE = {"strong at the end, in segments", "first rows forget little", "strengths (6.0, 0.2)", "strengths (6.0, 14.0)"}


@pytest.mark.parametrize(
    ("name", "sequential"),
    [(name, x) for name in GATES for x in (False, True) if x or name not in OF_ONE],
)
def test_gates(name, sequential):
    log_f, has_state, tolerance, sizes = GATES[name]
    _, length, _, width = log_f.shape
    leaves = [randn(1, length, 1, width, dtype=torch.float32, seed=seed) for seed in range(3)] + [log_f]
    leaves += [randn(1, 1, width, width, dtype=torch.float32, seed=4)] if has_state else []

    def run(backend, x):
        return gated_attention(*x, backend=backend)

    equals_the_recurrence(run, leaves, tolerance, sequential=sequential, **sizes)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("widths", [(16, 32), (12, 24)])
def test_keys_of_half_the_values_width(widths, sequential):
    """GLA's; the others have heads that are filled up."""
    shapes = [(2, 70, 2, widths[i]) for i in (0, 0, 1, 0)] + [(2, 2, *widths)]
    leaves = [randn(*shape, dtype=torch.float32, seed=seed) for seed, shape in enumerate(shapes)]
    leaves[3] = -leaves[3].abs()

    def run(backend, x):
        return gated_attention(*x, backend=backend, document_starts=starts(70, [40], []).to(x[0].device))

    equals_the_recurrence(run, leaves, sequential=sequential)


def test_tiles_of_the_values_in_segments():
    """Two tiles and three segments of the pass with outputs, the last segment shorter, its last chunk too; a state
    before, and a gradient of the last one."""
    q, k, log_f = (randn(2, 70, 2, 16, dtype=torch.float32, seed=seed) for seed in range(3))
    v, state = randn(2, 70, 2, 32, dtype=torch.float32, seed=3), randn(2, 2, 16, 32, dtype=torch.float32, seed=4)

    def run(backend, x):
        return gated_attention(*x, backend=backend)

    leaves = [q, k, v, -0.1 * log_f.abs(), state]
    equals_the_recurrence(run, leaves, sequential=True, run_tile=16, segments=3, chunk=16)


@pytest.mark.parametrize(
    ("name", "length", "log_decays", "document_starts"),
    [
        ("gated logits", 50, None, None),
        ("gated log", 35, [0.0, -1e-6, -0.7, -14.0, -INF], None),
        ("gated tied", 40, None, starts(40, [1, 33])),
    ],
)
def test_silu_of_queries(name, length, log_decays, document_starts):
    """Taken inside the kernels, for sm80's instructions and, with products by another layout, as Hopper's have them."""
    example = fewer_heads(case(name, 1, length, torch.float32, log_decays))
    outside, inside = (silu_of_queries(example, given) for given in (False, True))

    def run(backend, x):
        given = outside if backend == "naive" else inside
        return given.run(x, backend, moved(document_starts, x[0].device))

    for arch in ("sm80",) if GPU else ("sm80", None):
        equals_the_recurrence(run, inside.inputs(), FAR if log_decays else TOLERANCE, arch=arch)


@pytest.mark.skipif(GPU, reason="needs a machine without GPU")
def test_falls_back_with_one_warning(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    q = randn(1, 5, 1, 4, dtype=torch.float32, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = [decay_attention(q, q, q, backend="triton")[0] for _ in range(2)]
    assert [str(w.message) for w in caught] == ["no Triton kernel: the device is cpu; the chunk backend runs instead"]
    assert torch.equal(result[0], decay_attention(q, q, q)[0])
