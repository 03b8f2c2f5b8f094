"""The kernels of `decay_attention` with angles, cut into segments and tiles, against the recurrence in float64."""

import importlib.util
import math

import pytest
import torch

from arch.bench import relative
from arch.errors import InputError
from arch.ops import decay_attention

from .compare import assert_close, randn, with_gradients

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.triton import decay_turned, knobs
from arch.ops.triton.knobs import override, turned_knobs, turned_segments

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5


def inputs(length, groups, heads, key_dim, value_dim):
    """q, k, v, the initial state and theta."""
    q, k = (randn(1, length, groups, key_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    v = randn(1, length, heads, value_dim, dtype=torch.float32, seed=2)
    state = randn(1, heads, 2 * key_dim, value_dim, dtype=torch.float32, seed=3)
    return [q, k, v, state, torch.rand(groups, key_dim, generator=torch.Generator().manual_seed(0))]


def gradients(leaves, positions, form, decays=None, **sizes):
    def run(x):
        rates = None if decays is None else decays.to(x[2])
        return decay_attention(*x[:3], rates, x[3], form=form, angles=(x[4], positions.to(x[2].device)))

    with override(**sizes):
        return with_gradients(run, leaves)


@pytest.mark.parametrize("decays", [None, [-1e-3, -3.0]])
@pytest.mark.parametrize(("segments", "length"), [(1, 20), (3, 66)])
def test_segments_and_tiles(segments, length, decays):
    """The last segment and its last chunk are shorter; keys and values are several tiles."""
    leaves, positions = inputs(length, 1, 1 if decays is None else 2, 32, 32), torch.arange(length) + 5
    rates = None if decays is None else torch.tensor(decays)
    expected = gradients([x.double() for x in leaves], positions, "naive", rates)
    tiles = {"state_tile": (16, 16), "output_tile": 16, "key_tile": 16, "value_tile": 32}
    found = gradients([x.to(DEVICE) for x in leaves], positions, "triton", rates, segments=segments, chunk=16, **tiles)
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


INTERVAL = {"interval": 2, "shared_weights": True}


KEPT = {"kept": True, "segments": 2}


@pytest.mark.parametrize(
    ("length", "more"),
    [*((length, {}) for length in (1, 15, 16, 25, 32)), *((length, KEPT) for length in (17, 33, 50))],
)
def test_states_every_two_chunks(length, more):
    """A sequence that ends in either half of a block; unequal widths, shared keys, several tiles, any positions."""
    leaves, positions = inputs(length, 1, 2, 32, 16), torch.arange(length) * 7 % 64 + 3
    expected = gradients([x.double() for x in leaves], positions, "naive")
    tiles = {"chunk": 16, "output_tile": 16, "key_tile": 16, "value_tile": 16}
    found = gradients([x.to(DEVICE) for x in leaves], positions, "triton", **tiles, **INTERVAL, **more)
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


def test_states_every_two_chunks_of_the_default_size():
    leaves, positions = inputs(75, 2, 2, 16, 32), torch.arange(75)
    expected = gradients([x.double() for x in leaves], positions, "naive")
    found = gradients([x.to(DEVICE) for x in leaves], positions, "triton", **INTERVAL)
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ({"kept": True, "prepared": True}, ("none", "per step")),
        ({"shared_weights": True, "interval": 2, "timewise": True}, ("none", "constant")),
        ({"overlap": "dq", "kept": True, "timewise": True}, ("constant", "per step")),
        ({"overlap": "states", "shared_weights": True, "units": True}, ("constant",)),
        ({"pieces": 2, "timewise": True, "interval": 2}, ("none", "per step")),
        ({"activation": "gradient"}, ("constant",)),
        ({"activation": "inside", "interval": 2, "kept": True}, ("none",)),
    ],
    ids=lambda x: "-".join(x),
)
def test_variants_equal_the_recurrence(variant, kinds):
    """Without decays, with constant ones, with gradients of them, which leave `interval` aside."""
    for kind in kinds:
        check(kind, **variant)


def check(kind, **variant):
    leaves = inputs(36, 1, 2, 16, 16)
    rates = torch.tensor([-1e-3, -3.0]) if kind == "constant" else -torch.rand(1, 36, 2)
    leaves += [rates] if kind == "per step" else []

    def run(form, leaves, **sizes):
        def call(x):
            given = None if kind == "none" else x[5] if kind == "per step" else rates.to(x[2])
            angles = (x[4], torch.arange(36, device=x[2].device) + 5)
            activation = "silu" if "activation" in variant else ""
            return decay_attention(*x[:3], given, x[3], form=form, angles=angles, activation=activation)

        with override(**sizes):
            return with_gradients(call, leaves)

    expected = run("naive", [x.double() for x in leaves])
    found = run("triton", [x.to(DEVICE) for x in leaves], chunk=16, **variant)
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


@pytest.mark.parametrize("interval", [1, 2])
def test_scores_are_kept_for_gradients_alone(interval, monkeypatch):
    """So many as the fake kernel says."""
    q, k, v, _, theta = (x.to(DEVICE) for x in inputs(50, 1, 2, 16, 16))
    steps = torch.arange(50, device=DEVICE)
    arguments = (q, k, v, None, theta, theta / 6.2832, torch.zeros_like(theta), steps.int(), None, 16, interval)
    assert decay_turned._forward(*arguments, False, 1, 64)[3].numel() == 0
    assert decay_turned._forward(*arguments, True, 1, 64)[3].shape == (2, 4 if interval == 1 else 6, 16, 16)
    asked, count = [], decay_turned.score_count
    monkeypatch.setattr(decay_turned, "score_count", lambda *sizes: (asked.append(sizes[-1]), count(*sizes))[1])
    with override(kept=True, chunk=16):
        with torch.no_grad():
            decay_attention(q, k, v, form="triton", angles=(theta, steps))
        decay_attention(q, k, v, form="triton", angles=(theta, steps))
    assert asked == [False, True]


@pytest.mark.parametrize("prepared", [False, True])
def test_angles_in_any_layout(prepared):
    """theta as a transposed view."""
    leaves, positions = inputs(20, 2, 2, 16, 16), torch.arange(20)
    leaves[4] = leaves[4].T.contiguous().T
    expected = gradients([x.double() for x in leaves], positions, "naive")
    found = gradients([x.to(DEVICE) for x in leaves], positions, "triton", prepared=prepared)
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)


def test_turns_in_two_parts():
    """theta / 2 pi to 2^-46, in several programs of unequal shares, and the positions, of either integer dtype."""
    theta = torch.rand(128, 5, generator=torch.Generator().manual_seed(1)).T.to(DEVICE)
    for positions in (torch.arange(513, device=DEVICE).view(171, 3).T + (1 << 22), torch.arange(7, device=DEVICE)):
        high, low, steps = decay_turned._parts(theta, positions)
        assert torch.equal(decay_turned._parts(theta, positions.int())[2], steps)
        assert torch.equal(steps, positions.float()) and low.abs().max() > 0
        turn = theta.double() / (2 * math.pi)
        assert ((high.double() + low.double() - turn).abs() <= 2**-46 * turn).all()
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(decay_turned._parts, (theta, torch.arange(7, device=DEVICE)), test_utils=tests)


@pytest.mark.parametrize("form", ["chunk", "triton"])
def test_wide_decays_do_not_leave_the_angles_out(form):
    """Decays in float64, which the kernels do not take, beside keys and values in fp32."""
    q, k, v, state, theta = (x.to(DEVICE) for x in inputs(20, 1, 2, 16, 16))
    rates, angles = torch.tensor([-0.1, -3.0], dtype=torch.float64, device=DEVICE), (theta, torch.arange(20).to(DEVICE))
    found = decay_attention(q, k, v, rates, state, form=form, angles=angles)
    expected = decay_attention(q, k, v, rates, state, form="naive", angles=angles)
    assert_close([x.double() for x in found], [x.double() for x in expected], TOLERANCE)


@pytest.mark.parametrize("form", ["chunk", "triton"])
def test_what_does_not_fit_is_one_line(form):
    """The kernels would read past the end of it."""
    q, k, v, state, theta = (x.to(DEVICE) for x in inputs(20, 1, 2, 16, 16))
    steps = torch.arange(20, device=DEVICE)
    with pytest.raises(InputError, match="initial_state has shape"):
        decay_attention(q, k, v, None, state[:, :, :16], form=form, angles=(theta, steps))
    for positions in (steps[:19], steps.expand(3, -1), steps.float()):
        with pytest.raises(InputError, match=r"expected int \[T = 20\] or \[B = 1, T = 20\]"):
            decay_attention(q, k, v, form=form, angles=(theta, positions))


def test_without_a_final_states_gradient():
    """As in training: only the outputs are used, from no state; every element is written, and twice the same."""
    q, k, v, _, theta = (x.to(DEVICE).requires_grad_() for x in inputs(33, 2, 2, 16, 16))

    def run(form, *x):
        out, _ = decay_attention(*x[:3], form=form, angles=(x[3], torch.arange(33, device=x[0].device)))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    expected = run("naive", *(x.detach().cpu().double().requires_grad_() for x in (q, k, v, theta)))
    found, again = (run("triton", q, k, v, theta) for _ in range(2))
    assert_close([x.cpu().double() for x in found], expected, TOLERANCE)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_segments_by_the_rules(monkeypatch):
    """Many sequences are not cut, few are, never in two; no segment is empty."""
    monkeypatch.setattr(knobs, "trusted_assembler", lambda: False)  # so that no GPU is asked what it is
    rules = turned_knobs(128, 128, exact=False)
    assert turned_segments(rules, 32, 128, 128, 128) == 1
    assert turned_segments(rules, 4, 128, 128, 128) > 2
    for rows in (1, 4, 12, 80):
        for chunks in (1, 7, 16, 100, 1000):
            count = turned_segments(rules, rows, 128, 128, chunks)
            assert count != 2
            assert (count - 1) * -(-chunks // count) < chunks


def test_the_unit_matrix_twice():
    """A thread's columns of a product's result: eight of the first, the same of the second, the next eight, ..."""
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    first, second = (x @ decay_turned.unit_table(32, torch.device("cpu"))).view(3, 4, 2, 8).unbind(2)
    assert torch.equal(first.flatten(1), x) and torch.equal(second.flatten(1), x)


def test_operators_are_sound():
    """Schemas, fake kernels and gradients as torch.compile relies on them."""
    q, k, v, _, theta = (x.to(DEVICE).requires_grad_() for x in inputs(20, 1, 2, 16, 16))
    positions, turn = torch.arange(20, dtype=torch.int32, device=DEVICE), theta.detach() / 6.2832
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (q, k, v, None, theta, turn, torch.zeros_like(turn), positions, None, 32, 2, True, 1, 64)
    for activation in ("", "gradient"):
        torch.library.opcheck(decay_turned._forward, (*arguments, activation), test_utils=tests)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: streams and graphs")
@pytest.mark.parametrize("variant", [{"overlap": "dq"}, {"overlap": "states"}, {"pieces": 3}], ids=str)
@pytest.mark.parametrize("device", range(2))
def test_two_streams(variant, device):
    """Eagerly, with the memory of one call used by the next, and replayed from a graph: as on one stream."""
    if device >= torch.cuda.device_count():
        pytest.skip("needs two GPUs")
    place = torch.device("cuda", device)
    leaves = [x.to(place).bfloat16().requires_grad_() for x in inputs(1500, 2, 2, 64, 64)[:3]]
    theta = torch.rand(2, 64, device=place).requires_grad_()
    steps = torch.arange(1500, device=place)

    def run():
        out, _ = decay_attention(*leaves, form="triton", angles=(theta, steps))
        return [out, *torch.autograd.grad(out.float().square().sum(), (*leaves, theta))]

    for segments in (1, 3):
        with override(segments=segments):
            expected = run()
        with override(segments=segments, **variant):
            found, *others = (run() for _ in range(10))
            with torch.cuda.device(place):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = run()
        for x in captured:
            x.detach().zero_()
        graph.replay()
        torch.cuda.synchronize(place)
        assert max(relative(found, expected)) < 1e-4  # kernels that are compiled apart may round apart
        for results in (*others, captured):
            assert all(torch.equal(a, b) for a, b in zip(results, found, strict=True))


@pytest.mark.parametrize("variant", [{}, {"interval": 2, "kept": True, "prepared": True}], ids=str)
def test_compiled_for_any_length(variant):
    """One graph, whose operators' sizes follow from symbolic shapes."""
    torch._dynamo.reset()

    def run(q, k, v, theta):
        positions = torch.arange(q.shape[1], device=q.device)
        return decay_attention(q, k, v, form="triton", angles=(theta, positions))[0]

    def gradients(function, leaves):
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs(20, 1, 1, 16, 16)]
    leaves = [*leaves[:3], leaves[4]]
    with override(**variant):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled, leaves), gradients(run, leaves), strict=True))
