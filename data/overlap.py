"""Passages of the held-out text that occur word for word in the training text: found, to be cut from the former.

A loss on such a passage measures memory. What counts as one is `passage` tokens (a power of two, about 256 bytes) of
one held-out document. Every such passage holds a block of half that length that begins at a multiple of it: these
blocks' hashes are looked for at every position of the training text, whose surroundings are then compared passage by
passage. The hash is a sum of tokens times powers of an odd number, modulo 2^64: one running sum gives it at every
position. What it finds is compared token by token. Memory holds the held-out text and a table of its blocks; the
training text is read once: of bytes 95 to 130 MB in a second of one EPYC core's time for the quickstart's 11.6 MB, 64
for 200 MB against 6 MB held out; of cl100k_base 39 million tokens for as many (cores that others used too).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from data.shards import Tokens

BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
BLOCK = 1 << 15  # positions hashed at a time: what is in work stays in a core's cache
STRETCH = 1 << 20  # tokens of a region compared at a time
SPARSE = 32  # places of the table for each block: one position in so many is looked up in vain

Regions = list[tuple[int, int]]  # first and last + 1 of stretches, ascending, none touching another


def shared_tokens(
    train: Tokens,
    held_out: np.ndarray,
    eot_id: int,
    passage: int,
    progress: Callable[[int], None] = lambda n_tokens: None,
) -> np.ndarray:
    """bool [len(held_out)]: the tokens that lie in a passage, within one document, that `train` holds too.

    `progress` is called with the number of training tokens read.
    """
    assert passage >= 2 and not passage & (passage - 1)
    shared = np.zeros(len(held_out), dtype=bool)
    half = passage // 2
    blocks = _aligned_blocks(held_out, eot_id, half)
    if not len(blocks):
        return shared
    regions, met = _meetings(train, blocks, half, progress)
    around = _merged((block * half - half, block * half + passage) for block in _blocks_of(held_out, half, met))
    starts, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for first, last in around:
        within = _within_documents(held_out[first:last], eot_id, passage)
        starts.append(first + within)
        hashes.append(_hashes(held_out[first:last], passage)[within])
    for start in _confirmed(train, regions, held_out, np.concatenate(starts), np.concatenate(hashes), passage):
        shared[start : start + passage] = True
    return shared


def remaining(shared: np.ndarray, starts: np.ndarray, passage: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of what is left of the documents tokens[starts[i] : starts[i + 1] - 1] (end-of-text follows
    each) without the shared tokens: a document without any as it is, of the others the pieces of at least `passage`
    tokens."""
    for start, stop in zip(starts[:-1].tolist(), (starts[1:] - 1).tolist(), strict=True):
        cut = shared[start:stop]
        if not cut.any():
            yield start, stop
            continue
        for first, last in runs(~cut):
            if last - first >= passage:
                yield start + first, start + last


def runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """(first, last + 1) of each run of True in a bool array [n]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _hashes(tokens: np.ndarray, length: int) -> np.ndarray:
    """uint64 [n - length + 1]: the hash of tokens[i : i + length] at every i; [0] where there are fewer tokens."""
    n = len(tokens) - length + 1
    if n <= 0:
        return np.empty(0, np.uint64)
    out = np.empty(n, np.uint64)
    for start in range(0, n, BLOCK):
        here = min(BLOCK, n - start)
        _hash_block(tokens[start : start + here + length - 1], length, out[start : start + here])
    return out


def _hash_block(tokens: np.ndarray, length: int, out: np.ndarray) -> None:
    powers, inverse = _powers(length)
    sums = np.empty(len(tokens) + 1, np.uint64)
    sums[0] = 0
    np.cumsum(tokens.astype(np.uint64) * inverse[: len(tokens)], out=sums[1:])
    np.subtract(sums[length:], sums[:-length], out=out)
    np.multiply(out, powers[: len(out)], out=out)


@cache
def _powers(length: int) -> tuple[np.ndarray, np.ndarray]:
    """uint64: BASE^i for i < BLOCK, and BASE^-i for i < BLOCK + length, modulo 2^64."""
    return _geometric(BASE, BLOCK), _geometric(pow(BASE, -1, 1 << 64), BLOCK + length)


def _geometric(factor: int, n: int) -> np.ndarray:
    """uint64 [n]: 1, factor, factor^2, ... modulo 2^64."""
    factors = np.full(n, factor, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _aligned_blocks(held_out: np.ndarray, eot_id: int, half: int) -> np.ndarray:
    """Sorted distinct hashes of the blocks of `half` tokens from a multiple of it on that lie within one document."""
    hashes = [np.empty(0, np.uint64)]
    for _, tokens in _stretches(held_out, half):
        rows = tokens.reshape(-1, half)
        hashes.append(_hashes(tokens, half)[::half][~(rows == eot_id).any(axis=1)])
    return np.unique(np.concatenate(hashes))


def _blocks_of(held_out: np.ndarray, half: int, hashes: np.ndarray) -> Iterator[int]:
    """The numbers of the aligned blocks with one of these (sorted) hashes, ascending."""
    for start, tokens in _stretches(held_out, half):
        here = _hashes(tokens, half)[::half]
        yield from (start // half + np.flatnonzero(_among(here, hashes)[0])).tolist()


def _stretches(held_out: np.ndarray, half: int) -> Iterator[tuple[int, np.ndarray]]:
    """(start, tokens) of whole blocks, in stretches."""
    whole = len(held_out) // half * half
    for start in range(0, whole, STRETCH):
        yield start, held_out[start : min(start + STRETCH, whole)]


def _meetings(
    train: Tokens, blocks: np.ndarray, half: int, progress: Callable[[int], None]
) -> tuple[Regions, np.ndarray]:
    """The regions of `train` around blocks with one of these hashes, and the (sorted) hashes met."""
    bits = max(18, (SPARSE * len(blocks) - 1).bit_length())
    shift = np.uint64(64 - bits)
    table = np.zeros(1 << bits, dtype=bool)
    table[blocks >> shift] = True
    n, met, regions = len(train), np.zeros(len(blocks), dtype=bool), list[tuple[int, int]]()
    hashes = np.empty(BLOCK, np.uint64)
    for start in range(0, n - half + 1, BLOCK):
        tokens = np.asarray(train[start : start + BLOCK + half - 1])
        here = hashes[: len(tokens) - half + 1]
        _hash_block(tokens, half, here)
        near = np.flatnonzero(table[here >> shift])
        among, which = _among(here[near], blocks)
        met[which[among]] = True
        for first, last in _stretched(near[among], half):
            place = (max(0, start + first - half), min(n, start + last + 2 * half))
            if regions and place[0] <= regions[-1][1]:
                place = (regions.pop()[0], place[1])
            regions.append(place)
        if start // BLOCK % 64 == 0:
            progress(start)
    return regions, blocks[met]


def _stretched(positions: np.ndarray, reach: int) -> Iterator[tuple[int, int]]:
    """(first, last) of ascending positions that are no further apart than `reach`."""
    if len(positions):
        ends = np.flatnonzero(np.diff(positions) > reach)
        firsts, lasts = np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(positions) - 1]])
        yield from zip(positions[firsts].tolist(), positions[lasts].tolist(), strict=True)


def _merged(regions: Iterator[tuple[int, int]]) -> Regions:
    out: Regions = []
    for first, last in regions:
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], last)
        else:
            out.append((max(0, first), last))
    return out


def _among(values: np.ndarray, ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool and int64 [n]: whether each value is in `ascending`, and where it is (or would be)."""
    if not len(ascending):
        return np.zeros(len(values), bool), np.zeros(len(values), np.int64)
    where = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[where] == values, where


def _within_documents(tokens: np.ndarray, eot_id: int, passage: int) -> np.ndarray:
    """int64 [n]: where the passages of `tokens` begin that hold no end-of-text."""
    ends = np.concatenate([[0], np.cumsum(tokens == eot_id)])
    return np.flatnonzero(ends[passage:] == ends[:-passage])


def _confirmed(
    train: Tokens, regions: Regions, held_out: np.ndarray, starts: np.ndarray, hashes: np.ndarray, passage: int
) -> Iterator[int]:
    """Those of `starts` (int64 [n], of passages in `held_out` with these hashes) whose passage is in one of the regions
    of `train`."""
    if not len(starts):
        return
    theirs = sliding_window_view(held_out, passage)
    keys, first, key_of = np.unique(hashes, return_index=True, return_inverse=True)
    confirmed = np.zeros(len(keys), dtype=bool)
    for a, b in regions:
        for start in range(a, b - passage + 1, STRETCH):
            tokens = np.asarray(train[start : min(start + STRETCH + passage - 1, b)])
            ours = sliding_window_view(tokens, passage)
            among, which = _among(_hashes(tokens, passage), keys)
            at = np.flatnonzero(among & ~confirmed[which])
            while len(at):  # one place of each key at a time: where its text is another, the next is tried
                key, place = np.unique(which[at], return_index=True)
                confirmed[key[_equal(ours, at[place], theirs, starts[first[key]])]] = True
                at = np.delete(at, place)
                at = at[~confirmed[which[at]]]
    chosen = np.flatnonzero(confirmed[key_of])
    alike = _equal(theirs, starts[chosen], theirs, starts[first[key_of[chosen]]])
    yield from starts[chosen[alike]].tolist()


def _equal(left: np.ndarray, rows: np.ndarray, right: np.ndarray, others: np.ndarray) -> np.ndarray:
    """bool [n]: whether left[rows[i]] is right[others[i]], token by token."""
    step = 4096
    parts = [(left[rows[i : i + step]] == right[others[i : i + step]]).all(axis=1) for i in range(0, len(rows), step)]
    return np.concatenate(parts) if parts else np.empty(0, bool)
