"""Documents to tokens on all cores: batches are read ahead and tokenised by threads, and come back in their order.

tiktoken and Hugging Face's tokenizers release the interpreter while they work. What is ahead is bounded in bytes, so
that memory is too, whatever the length of the text.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from data.tokenizer import Tokenizer

AHEAD_BYTES = 4 << 20  # of text for each thread

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Block:
    """Documents one after another: `tokens` with an end-of-text after each, the `lengths` in tokens of each, that
    included, and the bytes of their text in UTF-8."""

    tokens: np.ndarray
    lengths: np.ndarray
    n_bytes: int


def n_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_block(tokenizer: Tokenizer, texts: Sequence[str], n_bytes: int) -> Block:
    """`texts`, of `n_bytes` in all, as a block."""
    ids_of_texts = tokenizer.encode_batch(texts)
    lengths = np.array([len(ids) + 1 for ids in ids_of_texts], dtype=np.int64)
    end = np.array([tokenizer.eot_id], dtype=tokenizer.dtype)
    parts = [part for ids in ids_of_texts for part in (ids, end)]
    tokens = np.concatenate(parts) if parts else end[:0]
    return Block(tokens, lengths, n_bytes)


def in_order(
    work: Iterable[Given], do: Callable[[Given], Made], size: Callable[[Given], int], threads: int | None = None
) -> Iterator[tuple[Given, Made]]:
    """Each of `work` with what `do` makes of it, in order; `do` runs in threads. At most AHEAD_BYTES a thread by `size`
    wait or are worked on at once, or one of any size. What `work` or `do` raises is raised here."""
    threads = threads or n_threads()
    waiting: deque[tuple[Given, Future[Made]]] = deque()
    held, most = 0, AHEAD_BYTES * (threads + 1)
    pool = ThreadPoolExecutor(threads)
    try:
        for item in work:
            while waiting and held + size(item) > most:
                first, future = waiting.popleft()
                yield first, future.result()
                held -= size(first)
            waiting.append((item, pool.submit(do, item)))
            held += size(item)
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
