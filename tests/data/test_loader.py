from itertools import starmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.loader import LOOK_AHEAD, Loader, permute
from data.mixture import Part


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 10))
def test_permutation_is_a_bijection_for_any_size_seed_and_epoch(n: int, seed: int, epoch: int) -> None:
    assert len(np.unique(permute(np.arange(n), n, seed, epoch))) == n


def test_order_never_changes() -> None:
    assert permute(np.arange(12), 12, 0, 0).tolist() == [9, 8, 7, 3, 10, 2, 6, 5, 1, 4, 0, 11]
    assert permute(np.arange(12), 12, 0, 1).tolist() == [0, 11, 3, 6, 9, 7, 1, 10, 5, 4, 8, 2]
    assert permute(np.arange(6), 10**12, 1234, 3).tolist() == [
        760371121643,
        223147558679,
        184114289456,
        595360250785,
        352485880970,
        380324987995,
    ]
    assert Loader(np.zeros(4 * 100 + 1), 4, 6, seed=5, epochs=3).starts(16).tolist() == [
        4 * w for w in (48, 93, 84, 19, 4, 78)
    ]


def test_order_looks_random() -> None:
    n = 50_000
    order = permute(np.arange(n), n, 0, 0)
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.02
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, permute(np.arange(n), n, 0, 1))[0, 1]) < 0.02
    assert abs(np.corrcoef(order, permute(np.arange(n), n, 1, 0))[0, 1]) < 0.02
    counts = np.histogram(order[: n // 10], bins=10, range=(0, n))[0]
    assert counts.min() > 400 and counts.max() < 600  # a uniform sample: 500 +- 20


def test_every_window_once_an_epoch() -> None:
    tokens = np.arange(7 * 30 + 5, dtype=np.uint16)
    loader = Loader(tokens, context_length=7, batch_rows=4, seed=0, epochs=2)
    assert (sum(loader._read), loader.steps_available) == (30, 15)
    batches = np.concatenate([loader.batch(step) for step in range(15)])
    assert batches.dtype == np.int64 and batches.shape == (60, 8)
    assert np.array_equal(batches, batches[:, :1] + np.arange(8))  # inputs and targets run on
    first, second = batches[:30, 0], batches[30:, 0]
    assert sorted(first) == sorted(second) == list(range(0, 210, 7))
    assert not np.array_equal(first, second)


def test_rows_are_the_same_however_the_batch_is_sliced() -> None:
    tokens = np.random.default_rng(0).integers(0, 257, 4990).astype(np.uint16)
    loader = Loader(tokens, 16, 12, seed=3, epochs=2)
    for step in (0, 25, 50):  # 25: the batch that holds the end of one epoch and the start of the next
        whole = loader.batch(step)
        for world in (1, 2, 3, 4, 12):
            per_rank = 12 // world
            parts = [loader.batch(step, slice(r * per_rank, (r + 1) * per_rank)) for r in range(world)]
            assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(loader.batch(step, slice(1, None, 5)), whole[1::5])
        assert loader.batch(step, slice(4, 4)).shape == (0, 17)
    assert 25 * 12 < sum(loader._read) < 26 * 12


def test_steps_are_the_same_in_any_order() -> None:
    """Windows are found for many steps at once; a run that begins anywhere, or ends early, reads the same ones."""
    tokens = np.random.default_rng(0).integers(0, 257, 6 * LOOK_AHEAD).astype(np.uint16)
    parts = [Part("a", 2.0, 0, 4 * LOOK_AHEAD), Part("b", 1.0, 4 * LOOK_AHEAD, 2 * LOOK_AHEAD)]
    rows, context = 700, 1  # five steps at once
    loaders = [Loader(tokens, context, rows, seed=1, epochs=1.25, parts=parts) for _ in range(2)]
    n_steps = loaders[0].steps_available
    assert n_steps > 3 * (LOOK_AHEAD // rows) and n_steps % (LOOK_AHEAD // rows)
    inwards = [step for pair in zip(range(n_steps), reversed(range(n_steps)), strict=True) for step in pair]
    in_order = [loaders[0].starts(step) for step in range(n_steps)]
    for step in inwards:
        assert np.array_equal(loaders[1].starts(step), in_order[step])
        alone = Loader(tokens, context, rows, seed=1, epochs=1.25, parts=parts)
        places = step * rows + np.arange(rows)
        assert np.array_equal(alone._starts(places), in_order[step])
    with pytest.raises(ValueError, match="read-only"):
        in_order[0][0] = 0


def test_a_batch_larger_than_the_corpus_spans_epochs() -> None:
    loader = Loader(np.arange(9), 4, batch_rows=7, seed=0, epochs=3.5)
    assert sorted(loader.starts(0).tolist()) in ([0, 0, 0, 0, 4, 4, 4], [0, 0, 0, 4, 4, 4, 4])


def test_allowance() -> None:
    tokens = np.zeros(10 * 8 + 1, np.uint16)
    assert [Loader(tokens, 8, 5, 0, epochs).steps_available for epochs in (0.5, 0.9, 1.0, 1.5)] == [1, 1, 2, 3]
    loader = Loader(tokens, 8, 5, 0)
    loader.batch(1)
    with pytest.raises(InputError, match=r"batch 2 is beyond the text: 1 epochs hold 2 batches .* raise corpus.epochs"):
        loader.batch(2)
    with pytest.raises(InputError):
        loader.batch(-1)


@pytest.mark.parametrize(
    ("length", "context", "rows", "epochs"), [(8, 8, 1, 1.0), (0, 8, 1, 1.0), (99, 0, 1, 1.0), (99, 8, -1, 1.0),
                                               (99, 8, 1, 0.0), (99, 8, 1, float("nan")), (99, 8, 1, float("inf"))]
)  # fmt: skip
def test_bad_sizes(length: int, context: int, rows: int, epochs: float) -> None:
    with pytest.raises(InputError):
        Loader(np.zeros(length, np.uint16), context, rows, 0, epochs)


def doubled(starts, step, rows):
    """A Draw that tells what it was called with."""
    if step == 22:
        raise InputError("the last step")
    chosen = starts[rows or slice(None)]
    return np.stack([chosen, np.full_like(chosen, step), 2 * chosen], axis=1)


def test_processes_draw_the_same_rows_in_the_same_order(monkeypatch):
    """Steps of all rows, here, as they would be drawn; then others of an odd number of rows, as of a rank, by
    processes, up to one that cannot be drawn."""
    tokens = np.zeros(401, np.uint16)
    alone, several = (Loader(tokens, 4, 9, seed=1, epochs=2.1, draw=doubled, processes=n) for n in (1, 2))
    with monkeypatch.context() as patch:
        patch.setattr("data.loader.ahead", lambda call, arguments, processes: starmap(call, arguments))
        for step in (3, 4):
            assert (several.batch(step) == alone.batch(step)).all()
    for step, rows in ((20, slice(4, 9)), (21, slice(4, 9))):
        assert (several.batch(step, rows) == alone.batch(step, rows)).all()
    with pytest.raises(InputError, match=r"^the last step$"):
        several.batch(22, slice(4, 9))
