import itertools
from pathlib import Path

import numpy as np
import pytest

from data.encoding import Block
from data.shards import ShardedTokens, open_index, open_split
from data.split_writer import SplitWriter


def written(directory: Path, documents: list[np.ndarray], shard_tokens: int) -> dict:
    writer = SplitWriter(directory, "train", np.uint16, shard_tokens)
    for ids in documents:
        writer.append(Block(np.append(ids, np.uint16(256)), np.array([len(ids) + 1]), len(ids)))
    return writer.close()


@pytest.mark.parametrize("shard_tokens", [1, 7, 64, 100_000])
def test_stream_is_the_same_whatever_the_shard_size(tmp_path: Path, shard_tokens: int) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 256, n).astype(np.uint16) for n in (5, 1, 0, 20, 130)]
    whole = np.concatenate([np.append(ids, 256) for ids in documents])
    split = written(tmp_path, documents, shard_tokens)
    tokens = open_split(tmp_path, split)
    assert split["tokens"] == len(tokens) == len(whole) and split["bytes"] == 156
    assert len(split["shards"]) == -(-len(whole) // shard_tokens)
    assert tokens.dtype == np.uint16 and np.array_equal(np.asarray(tokens), whole)
    for start, stop in random.integers(-170, 170, (200, 2)).tolist():
        assert np.array_equal(tokens[start:stop], whole[start:stop])
    for i in (0, 6, 7, 63, 64, -1, -130):
        assert tokens[i] == whole[i]
    starts = open_index(tmp_path, ["train"])
    assert [tokens[a : b - 1].tolist() for a, b in itertools.pairwise(starts)] == [ids.tolist() for ids in documents]
    assert all(tokens[int(end) - 1] == 256 for end in starts[1:])


def test_slices_within_a_shard_are_views_and_steps_are_refused(tmp_path: Path) -> None:
    tokens = open_split(tmp_path, written(tmp_path, [np.arange(99, dtype=np.uint16)], 50))
    assert isinstance(tokens, ShardedTokens)
    assert isinstance(tokens[3:40], np.memmap)
    with pytest.raises(ValueError, match="step 1"):
        tokens[::2]
    with pytest.raises(IndexError):
        tokens[100]


def test_large_vocabulary_takes_uint32(tmp_path: Path) -> None:
    writer = SplitWriter(tmp_path, "train", np.uint32, 10)
    writer.append(Block(np.array([70_000, 100_257], np.uint32), np.array([2]), 3))
    assert np.asarray(open_split(tmp_path, writer.close())).tolist() == [70_000, 100_257]
