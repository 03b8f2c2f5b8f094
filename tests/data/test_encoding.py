"""Tokenising in threads: the order, the bound on what is ahead, errors."""

import gzip
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data.corpus import prepare
from data.encoding import AHEAD_BYTES, in_order
from data.settings import CorpusSettings


def test_results_come_in_order_and_little_is_ahead() -> None:
    lock, there, most = threading.Lock(), 0, 0
    sizes = np.random.default_rng(0).integers(1, AHEAD_BYTES, 60).tolist()

    def work() -> Iterator[tuple[int, int]]:
        nonlocal there, most
        for number, size in enumerate(sizes):
            with lock:
                there += size
                most = max(most, there)
            yield number, size

    def do(item: tuple[int, int]) -> int:
        time.sleep(0.002 * (item[0] % 3))
        return item[0]

    for number, (given, made) in enumerate(in_order(work(), do, lambda item: item[1], threads=3)):
        assert given[0] == made == number
        with lock:
            there -= given[1]
    assert number == 59 and there == 0
    # what is ahead, what was read and does not fit yet, and what is being used
    assert most <= 4 * AHEAD_BYTES + 2 * max(sizes)
    assert list(in_order([(0, 10 * AHEAD_BYTES), (1, 10 * AHEAD_BYTES)], do, lambda item: item[1], threads=2)) == [
        *(((0, 10 * AHEAD_BYTES), 0), ((1, 10 * AHEAD_BYTES), 1))
    ]


def test_errors_come_through_and_no_thread_is_left() -> None:
    def broken(upto: int) -> Iterator[int]:
        yield from range(upto)
        raise OSError("the source")

    before = threading.active_count()
    with pytest.raises(OSError, match="the source"):
        list(in_order(broken(5), lambda item: item, lambda item: 1))
    with pytest.raises(ZeroDivisionError):
        list(in_order(range(5), lambda item: 1 // (item - 3), lambda item: 1))
    for first, _ in in_order(range(100), lambda item: item, lambda item: AHEAD_BYTES):
        if first == 3:
            break
    assert threading.active_count() == before


def test_the_time_left_is_known_of_compressed_text_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.splitting.BATCH_BYTES", 50_000)
    shown = list[tuple[int, int | None, str]]()
    lines = (json.dumps({"text": f"{i} " + random_words(i)}) for i in range(600))
    with gzip.open(tmp_path / "text.jsonl.gz", "wt") as handle:
        handle.write("\n".join(lines))
    prepare(CorpusSettings(str(tmp_path / "text.jsonl.gz")), tmp_path / "corpus", lambda *line: shown.append(line))
    tokenised = [line for line in shown if "MB/s" in line[2]]
    assert len(tokenised) > 1 and all(line[1] is not None and "left" in line[2] for line in tokenised)
    assert re.fullmatch(r"600 documents, [\d,]+ tokens, [\d.]+ MB/s, about 0 s left", tokenised[-1][2])
    done, total, _ = tokenised[0]
    assert total is not None and done < total and total == pytest.approx(tokenised[-1][0], rel=0.35)


def random_words(seed: int) -> str:
    return " ".join(map(str, np.random.default_rng(seed).integers(0, 10**6, 100).tolist()))
