"""The layout of a batch of tokens: positions, padding, beginnings of documents, and the mask of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .cache import DecodeCache


@dataclass(frozen=True)
class Layout:
    """The tokens of one forward pass. T: tokens of this pass; S: tokens of LLaMA's key-value cache and of this pass.

    positions: index of each token in its document, int64 [T], or [B, T] where rows differ; seen: int64 [B], tokens of
    the current document so far; padding_mask: bool [B, T], True for padding; document_starts: bool [B, T], True where a
    document begins after another; attention_mask: bool [B or 1, 1, T, S], True where token t may attend to key s;
    masked_keys: bool [B, S], True for keys that no later token may attend to. None: no padding, one document, causal
    attention, no masked keys.
    """

    positions: Tensor
    seen: Tensor
    padding_mask: Tensor | None = None
    document_starts: Tensor | None = None
    attention_mask: Tensor | None = None
    masked_keys: Tensor | None = None

    def part(self, tokens: slice) -> Layout:
        """Of a part of each row's tokens; what attends to whole rows keeps their mask."""
        padding, starts = (None if x is None else x[:, tokens] for x in (self.padding_mask, self.document_starts))
        return Layout(self.positions[..., tokens], self.seen, padding, starts, self.attention_mask)


def lay_out(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    documents: Tensor | None,
    cache: DecodeCache | None,
    kv_cache: bool,
    use_cache: bool,
) -> Layout:
    """The layout of input_ids [B, T].

    attention_mask: [B, T] or, with a `cache`, [B, all tokens so far], 0 for padding at either end of a row, but not
    between the cache's tokens and these; documents: int [B, T], ids of packed documents; kv_cache: whether the model
    keeps keys and values, and so needs the layout's attention_mask and masked_keys; use_cache: whether decoding
    continues after these tokens. Raises InputError for masks and documents that do not fit together.
    """
    if input_ids.dim() != 2 or not input_ids.shape[1]:
        raise InputError(f"input_ids has shape {list(input_ids.shape)}: give at least one token, as [batch, tokens]")
    if documents is not None:
        if cache is not None or attention_mask is not None:
            raise InputError(
                "documents cannot be given with an attention_mask or a cache: make padding a document of its own"
            )
        return _packed(input_ids, documents, kv_cache, use_cache)
    batch, length = input_ids.shape
    device = input_ids.device
    steps = torch.arange(length, device=device)
    before = torch.zeros(batch, dtype=torch.int64, device=device) if cache is None else cache.seen
    n_cached = 0 if cache is None else cache.n_read
    masked = None if cache is None else cache.masked_keys
    padding = _padding(attention_mask, input_ids, n_cached, use_cache)
    if padding is None:
        positions = steps if cache is None else before[:, None] + steps
        seen = before + length
        masked = None if masked is None else torch.cat([masked, torch.zeros_like(input_ids, dtype=torch.bool)], 1)
    else:
        tokens = ~padding
        positions = (before[:, None] + tokens.cumsum(1) - 1).clamp(min=0)
        seen = before + tokens.sum(1)
        earlier = torch.zeros(batch, n_cached, dtype=torch.bool, device=device) if masked is None else masked
        masked = torch.cat([earlier, padding], 1)
    mask = None
    if kv_cache and (masked is not None or (n_cached and length > 1)):
        mask = causal(length, n_cached + length, device)[None]
        if masked is not None:
            # a padded token sees itself: a softmax over nothing would give nan
            own = causal(length, n_cached + length, device) & ~causal(length, n_cached + length, device, 1)
            mask = (mask & ~masked[:, None]) | own
        mask = mask[:, None]
    return Layout(positions, seen, padding_mask=padding, attention_mask=mask, masked_keys=masked if kv_cache else None)


def _packed(input_ids: Tensor, documents: Tensor, kv_cache: bool, use_cache: bool) -> Layout:
    """The layout of packed documents."""
    if documents.shape != input_ids.shape:
        raise InputError(f"documents has shape {list(documents.shape)}, input_ids {list(input_ids.shape)}")
    length, device = input_ids.shape[1], input_ids.device
    steps = torch.arange(length, device=device)
    starts = torch.cat([torch.zeros_like(documents[:, :1], dtype=torch.bool), boundaries(documents)], 1)
    positions = steps - torch.where(starts, steps, 0).cummax(1).values
    number = starts.cumsum(1)  # an id may come again later in the row, as another document
    same = number[:, :, None] == number[:, None, :]
    masked = number != number[:, -1:] if kv_cache and use_cache else None
    if masked is not None and not torch.compiler.is_compiling() and not masked.any():
        masked = None  # a row of one document: what is read next may be simply causal
    return Layout(
        positions,
        positions[:, -1] + 1,
        document_starts=starts,
        attention_mask=(causal(length, length, device) & same)[:, None] if kv_cache else None,
        masked_keys=masked,
    )


def boundaries(documents: Tensor) -> Tensor:
    """bool [B, T - 1]: True where token t + 1 is of another document than token t."""
    return documents[:, 1:] != documents[:, :-1]


def causal(length: int, total: int, device: torch.device, back: int = 0) -> Tensor:
    """bool [length, total]: the last `length` of `total` tokens see themselves and all before, less the last `back`."""
    return torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length - back)


_known = False


@contextmanager
def ids_checked() -> Iterator[None]:
    """Inside the block ids are not checked: they passed `check_ids` before, and no pass waits for a GPU to repeat
    it."""
    global _known
    before, _known = _known, True
    try:
        yield
    finally:
        _known = before


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Raise InputError for ids that are not integers or lie outside the vocabulary.

    The vocabulary is not checked under torch.compile, nor where the check would stall a GPU: in training (the data are
    checked when they are tokenised), in a CUDA graph and inside `ids_checked`.
    """
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"input_ids are {str(input_ids.dtype).removeprefix('torch.')}: give int64")
    if torch.compiler.is_compiling():
        return
    if _known or (input_ids.is_cuda and (torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing())):
        return
    low, high = torch.stack(input_ids.aminmax()).tolist()  # both together: a GPU is waited for once
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InputError(
            f"token id {wrong} is outside the vocabulary 0 .. {vocab_size - 1}: is it another tokenizer's?"
        )


def _padding(mask: Tensor | None, input_ids: Tensor, n_cached: int, use_cache: bool) -> Tensor | None:
    """bool [B, T], True where one of these tokens is padding; None where none is."""
    if mask is None:
        return None
    batch, length = input_ids.shape
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] not in (length, n_cached + length):
        raise InputError(
            f"attention_mask has shape {list(mask.shape)}, input_ids {[batch, length]}: one entry a token"
            + (f", or one for each of the {n_cached} in the cache too" if n_cached else "")
        )
    tokens = mask[:, -length:].bool()
    if torch.compiler.is_compiling():
        return ~tokens
    if tokens.all():
        return None
    ended = (~tokens & (tokens.cumsum(1) > 0)).cumsum(1) > 0
    if (tokens & ended).any():
        raise InputError("attention_mask has zeros between ones: padding may stand at the ends of a row only")
    if n_cached and (~tokens[:, 0] & tokens.any(1)).any():
        raise InputError(
            "attention_mask has padding between the cache's tokens and these: with a cache, pad on the right, or not"
        )
    if use_cache and not tokens[:, -1].all():
        raise InputError(
            "attention_mask ends with 0, and decoding goes on at the last token: pad on the left "
            "(tokenizer.padding_side = 'left')"
        )
    return ~tokens
