"""Answers of a model to all prompts of one length: the haystack is read once for all, in one batch of rows.

A clean row walks along the haystack. Where a needle goes, a copy of its state reads the needle and joins the rows that
read theirs before; then all of them read the haystack up to the next needle's place, each from its own state. So a
prompt costs its needle, what follows it and its question, not what precedes it, and the rows make one batch although
their needles lie elsewhere. Nothing here knows the architecture: what a row has read is its DecodeCache. After a needle
everything has to be read again for each row, because every layer's input depends on what the one below made of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from arch.model.cache import DecodeCache
from arch.model.decode import generate_tokens
from flops.state import decode_state

from ..hf_model import HfModel

if TYPE_CHECKING:
    from analysis.evals.model import LoadedModel

    from .prompts import Cell, Prompts

CPU_STATE_BYTES = 1 << 30  # of all rows' states; on a GPU a share of what is free: caches are copied as they grow
PIECE_TOKENS = 16_384  # of all rows in one forward pass, so that activations stay small at any length
STATE_SHARE = 0.2  # of a GPU's free memory


def generate_answers(model: LoadedModel, prompts: Prompts, cells: Sequence[Cell], max_new_tokens: int) -> list[str]:
    """Greedy continuations of these cells' prompts, which have equal lengths in tokens, cut after their first line."""
    if isinstance(model.model, HfModel):
        return [_generate_whole(model, model.model, prompts, cell, max_new_tokens) for cell in cells]
    answers: dict[int, str] = {}
    for batch in batches(cells, rows_at_once(model, cells[0].n_tokens + max_new_tokens)):
        with model.reading():
            state = read_up_to_question(model, prompts, [cells[i] for i in batch])
            questions = _tensor(np.stack([cells[i].question_ids for i in batch]), model)
            answers |= zip(batch, _complete(model, questions, state, max_new_tokens), strict=True)
    return [answers[i] for i in range(len(cells))]


def _generate_whole(model: LoadedModel, hf: HfModel, prompts: Prompts, cell: Cell, max_new_tokens: int) -> str:
    """The answer of transformers' own `generate` to the whole prompt."""
    ids = prompts.ids(cell)
    model.check_length(len(ids) + max_new_tokens)
    with model.reading():
        written = hf.generate(_tensor(ids, model)[None], max_new_tokens)[0].tolist()
    text = model.tokenizer.decode_bytes(written).lstrip()
    return text.partition(b"\n")[0].decode(errors="replace").strip()


def batches(cells: Sequence[Cell], n_rows: int) -> Iterator[list[int]]:
    """Indices of cells that make a batch: needles and questions of equal length in tokens, shallow to deep, at most
    n_rows."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, cell in enumerate(cells):
        groups.setdefault((len(cell.needle_ids), len(cell.question_ids)), []).append(i)
    for group in groups.values():
        group.sort(key=lambda i: cells[i].insert_at)
        for first in range(0, len(group), n_rows):
            yield group[first : first + n_rows]


def rows_at_once(model: LoadedModel, n_tokens: int) -> int:
    """The number of rows whose states fit into memory, each after n_tokens."""
    state_bytes = decode_state(model.config, n_tokens, 2 if model.autocast else 4)["bytes"]
    budget: float = CPU_STATE_BYTES
    if model.device.startswith("cuda"):
        kept = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)  # free for us alone
        budget = STATE_SHARE * (torch.cuda.mem_get_info(model.device)[0] + kept)
    return max(1, int(budget // state_bytes))


def read_up_to_question(model: LoadedModel, prompts: Prompts, cells: Sequence[Cell]) -> DecodeCache:
    """The cache [len(cells)] after haystack and needle. cells: in the order of their needles' places, with needles and
    haystacks of equal length."""
    haystack = _tensor(prompts.haystack, model)
    clean = read(model, _tensor(np.array([prompts.start]), model)[None], None)
    rows: DecodeCache | None = None
    n_read = 0
    for cell in [*cells, None]:
        place = cells[0].n_haystack if cell is None else cell.insert_at
        if place > n_read:
            piece = haystack[None, n_read:place]
            rows = None if rows is None else read(model, piece.expand(len(rows.seen), -1), rows)
            clean = clean if cell is None else read(model, piece, clean)
            n_read = place
        if cell is not None:
            joining = read(model, _tensor(cell.needle_ids, model)[None], clean)
            rows = joining if rows is None else DecodeCache.concat([rows, joining])
    assert rows is not None
    return rows


def read(model: LoadedModel, ids: Tensor, cache: DecodeCache | None) -> DecodeCache:
    """The cache after reading ids [B, T] too, in pieces."""
    for piece in ids.split(max(1, PIECE_TOKENS // len(ids)), dim=1):
        cache = model.model(piece, cache=cache, use_cache=True, logits_to_keep=1).cache
    assert cache is not None
    return cache


def _complete(model: LoadedModel, questions: Tensor, cache: DecodeCache, max_new_tokens: int) -> list[str]:
    """The first line of each row's continuation, stripped; stops when every row has a whole line."""
    tokenizer = model.tokenizer
    spelled = functools.cache(lambda token: tokenizer.decode_bytes([token]))
    answers = [b""] * len(questions)
    unfinished = list(range(len(questions)))
    for ids in generate_tokens(model.model, questions, max_new_tokens, cache=cache):
        tokens = ids.tolist()
        for row in unfinished:
            answers[row] = (answers[row] + spelled(tokens[row])).lstrip()
        unfinished = [row for row in unfinished if tokens[row] != tokenizer.eot_id and b"\n" not in answers[row]]
        if not unfinished:
            break
    return [text.partition(b"\n")[0].decode(errors="replace").strip() for text in answers]


def _tensor(ids: np.ndarray, model: LoadedModel) -> Tensor:
    return torch.from_numpy(ids).to(model.device)
