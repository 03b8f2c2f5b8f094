"""Passages that held-out and training text share: all of them are found, and nothing else."""

import numpy as np
import pytest

from data import overlap
from data.overlap import remaining, runs, shared_tokens
from data.shards import ShardedTokens

PASSAGE, END = 16, 9


def shared_by_hand(train, held_out, eot_id, passage):
    there = {tuple(train[i : i + passage].tolist()) for i in range(len(train) - passage + 1)}
    shared = np.zeros(len(held_out), dtype=bool)
    for i in range(len(held_out) - passage + 1):
        window = held_out[i : i + passage]
        if eot_id not in window and tuple(window.tolist()) in there:
            shared[i : i + passage] = True
    return shared


@pytest.mark.parametrize("block", [32, 1 << 15])  # the first: borders of what is hashed at a time lie everywhere
def test_it_finds_what_a_search_by_hand_finds(monkeypatch, block):
    monkeypatch.setattr(overlap, "BLOCK", block)
    monkeypatch.setattr(overlap, "STRETCH", 4 * block)
    overlap._powers.cache_clear()
    draw, n_shared = np.random.default_rng(0), 0
    for _ in range(150):
        letters = draw.integers(1, 6)
        train = draw.integers(0, letters, draw.integers(1, 600)).astype(np.uint16)
        held_out = draw.integers(0, letters, draw.integers(1, 300)).astype(np.uint16)
        for _ in range(draw.integers(0, 4)):
            a, b = draw.integers(0, len(train)), draw.integers(0, len(held_out))
            n = min(draw.integers(10, 60), len(train) - a, len(held_out) - b)
            held_out[b : b + n] = train[a : a + n]
        for text in (train, held_out):
            text[draw.random(len(text)) < 0.02] = END
        expected = shared_by_hand(train, held_out, END, PASSAGE)
        shards = ShardedTokens(np.array_split(train, 3)) if len(train) > 3 else train
        assert np.array_equal(shared_tokens(shards, held_out, END, PASSAGE), expected)
        n_shared += int(expected.sum())
    assert n_shared > 1000
    overlap._powers.cache_clear()


def test_equal_hashes_of_other_text_are_not_believed():
    """The Thue-Morse sequence and its complement have one hash modulo 2^64 under every base."""
    morse = np.array([bin(i).count("1") % 2 for i in range(4096)], dtype=np.uint16)
    half, other = morse[:2048], 1 - morse[:2048]
    assert overlap._hashes(half, 2048) == overlap._hashes(other, 2048) and not np.array_equal(half, other)
    assert not shared_tokens(half, other, 256, 2048).any()
    assert shared_tokens(np.concatenate([half, other]), other, 256, 2048).all()


def test_what_repeats_itself_costs_no_more():
    train, held_out = np.full(3_000_000, 7, np.uint16), np.full(100_000, 7, np.uint16)
    held_out[50_000] = 256
    shared = shared_tokens(train, held_out, 256, 256)
    assert shared.sum() == 99_999 and not shared[50_000]


def test_pieces_that_remain():
    shared = np.zeros(40, dtype=bool)
    shared[8:20] = shared[36:39] = True  # documents: [0, 30), [30, 34), [34, 40), each with its end-of-text
    assert runs(shared) == [(8, 20), (36, 39)]
    starts = np.array([0, 30, 34, 40])
    assert list(remaining(shared, starts, 4)) == [(0, 8), (20, 29), (30, 33)]
    assert list(remaining(shared, starts, 16)) == [(30, 33)]  # a document without a shared passage stays


def test_nothing_to_compare():
    empty, some = np.empty(0, np.uint16), np.arange(100, dtype=np.uint16)
    for train, held_out in ((empty, some), (some, empty), (some[:5], some), (some, some[:5])):
        assert not shared_tokens(train, held_out, 256, PASSAGE).any()
