import itertools
from pathlib import Path

import numpy as np
import pytest

from data.encoding import Block
from data.shards import ShardedTokens, open_index, open_split
from data.split_writer import SplitWriter


@pytest.mark.parametrize(
    ("shard_tokens", "dtype"), [(1, np.uint16), (7, np.uint16), (64, np.uint16), (64, np.uint32), (100_000, np.uint16)]
)
def test_stream_is_the_same_whatever_the_shard_size(tmp_path: Path, shard_tokens: int, dtype: type) -> None:
    random = np.random.default_rng(0)
    low = 70_000 if dtype is np.uint32 else 0
    documents = [random.integers(low, low + 256, n).astype(dtype) for n in (5, 1, 0, 20, 130)]
    whole = np.concatenate([np.append(ids, 256) for ids in documents])
    writer = SplitWriter(tmp_path, "train", dtype, shard_tokens)
    for ids in documents:
        writer.append(Block(np.append(ids, dtype(256)), np.array([len(ids) + 1]), len(ids)))
    split = writer.close()
    tokens = open_split(tmp_path, split)
    assert split["tokens"] == len(tokens) == len(whole) and split["bytes"] == 156
    assert len(split["shards"]) == -(-len(whole) // shard_tokens)
    assert tokens.dtype == dtype and np.array_equal(np.asarray(tokens), whole)
    for start, stop in random.integers(-170, 170, (200, 2)).tolist():
        assert np.array_equal(tokens[start:stop], whole[start:stop])
    for i in (0, 6, 7, 63, 64, -1, -130):
        assert tokens[i] == whole[i]
    starts = open_index(tmp_path, ["train"])
    assert [tokens[a : b - 1].tolist() for a, b in itertools.pairwise(starts)] == [ids.tolist() for ids in documents]
    assert all(tokens[int(end) - 1] == 256 for end in starts[1:])

    if isinstance(tokens, ShardedTokens):
        with pytest.raises(ValueError, match="step 1"):
            tokens[::2]
        with pytest.raises(IndexError):
            tokens[len(whole)]
