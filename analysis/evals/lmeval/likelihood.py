"""Log-likelihoods of lm-eval's requests: its own batches and sums, with two waits for a GPU a batch.

lm-eval's class moves every request to the device by itself, and waits for it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as nnf
from lm_eval.models.utils import Collator
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from lm_eval.models.huggingface import HFLM

Request = tuple[Any, list[int], list[int]]  # (the texts, or None; context; continuation)


def likelihoods(lm: HFLM, requests: Sequence[Request]) -> list[tuple[float, bool]]:
    """For each request the sum of its continuation's log-probabilities, and whether greedy decoding gives it.

    Requests whose tokens but the last agree are read once. What is longer than lm.max_length loses tokens on its left.
    Raises AssertionError, as lm-eval does, for an empty context and for a continuation longer than that.
    """
    order = Collator(requests, sort_fn=_longest_first, group_by="contexts" if lm.logits_cache else None, group_fn=_read)
    found: list[tuple[float, bool]] = []
    for batch in order.get_batched(n=lm.batch_size):
        assert all(context and 0 < len(continuation) <= lm.max_length for _, context, continuation in batch)
        rows = [torch.tensor(_read(request)[-lm.max_length :]) for request in batch]
        ids = pad_sequence(rows, batch_first=True).to(lm.device)  # zeros on the right, whom nobody asks
        logits = nnf.log_softmax(lm._model_call(ids), dim=-1, dtype=lm.softmax_dtype)
        asked: list[tuple[int, int, list[int]]] = []  # row, its length, continuation
        for i, (texts, context, continuation) in enumerate(batch):
            same = order.get_cache(req_str=texts, cxt_toks=context, cont_toks=continuation, logits=logits[i : i + 1])
            asked += [(i, len(rows[i]), tokens) for _, tokens, _ in same]
        found += _score(logits, asked)
    answers: list[tuple[float, bool]] = order.get_original(found)
    return answers


def _score(logits: Tensor, asked: Sequence[tuple[int, int, list[int]]]) -> list[tuple[float, bool]]:
    """(sum, greedy) of tokens that end at a row's end, from log-probabilities [B, T, V]."""
    lengths = [len(tokens) for _, _, tokens in asked]
    index = np.stack(
        [
            np.repeat([row for row, _, _ in asked], lengths),
            np.concatenate([np.arange(end - len(tokens), end) for _, end, tokens in asked]),
            np.concatenate([np.array(tokens) for _, _, tokens in asked]),
        ]
    )
    rows, positions, expected = torch.from_numpy(index).to(logits.device)
    sums = torch.stack([part.sum() for part in logits[rows, positions, expected].split(lengths)]).tolist()
    greedy = torch.cat([logits[i, end - len(tokens) : end].argmax(-1) for i, end, tokens in asked])
    equal = np.logical_and.reduceat((greedy == expected).cpu().numpy(), np.cumsum([0, *lengths[:-1]]))
    return list(zip(sums, equal.tolist(), strict=True))


def _longest_first(request: Request) -> tuple[int, tuple[int, ...]]:
    tokens = tuple(chain(request[1], request[2]))
    return -len(tokens), tokens


def _read(request: Request) -> list[int]:
    """The tokens that the model reads: all but the last."""
    return request[-2] + request[-1][:-1]
