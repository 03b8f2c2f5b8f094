"""Where each token of a batch stands: its position, whether it is padding, where documents begin, what it may see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .state import DecodeState


@dataclass(frozen=True)
class Layout:
    """The tokens of one forward pass. T: tokens of this pass; S: those of LLaMA's cache and this pass.

    positions: index of each token in its document, int64 [T], or [B, T] where rows differ; keep: bool [B, T], False for
    padding; reset: bool [B, T], True where a document begins after another; visible: bool [B or 1, 1, T, S], what
    attention may look at, only where it is asked for and not simply causal; hidden: bool [B, S], those of all tokens so
    far that later ones must not see, for attention alone; seen: int64 [B], tokens of the current document so far. None
    stands for "nothing special".
    """

    positions: Tensor
    seen: Tensor
    keep: Tensor | None = None
    reset: Tensor | None = None
    visible: Tensor | None = None
    hidden: Tensor | None = None


def lay_out(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    documents: Tensor | None,
    state: DecodeState | None,
    history: bool,
    keep_state: bool,
) -> Layout:
    """The layout of input_ids [B, T].

    attention_mask: [B, T] or, after a `state`, [B, all tokens so far], 0 for padding at either end of a row, but not
    between a state's tokens and these;
    documents: int [B, T], ids of packed documents; `history`: whether `visible` is wanted.
    Raises InputError for masks and documents that do not fit together.
    """
    if input_ids.dim() != 2 or not input_ids.shape[1]:
        raise InputError(f"input_ids has shape {list(input_ids.shape)}: give at least one token, as [batch, tokens]")
    batch, length = input_ids.shape
    device = input_ids.device
    steps = torch.arange(length, device=device)
    before = torch.zeros(batch, dtype=torch.int64, device=device) if state is None else state.seen
    past = 0 if state is None else state.n_read
    hidden = None if state is None else state.hidden
    if documents is not None:
        if state is not None or attention_mask is not None:
            raise InputError(
                "documents cannot be given with an attention_mask or a state: make padding a document of its own"
            )
        if documents.shape != input_ids.shape:
            raise InputError(f"documents has shape {list(documents.shape)}, input_ids {list(input_ids.shape)}")
        reset = torch.cat([torch.zeros_like(documents[:, :1], dtype=torch.bool), boundaries(documents)], 1)
        positions = steps - torch.where(reset, steps, 0).cummax(1).values
        number = reset.cumsum(1)  # an id may come again later in the row, as another document
        same = number[:, :, None] == number[:, None, :]
        visible = (causal(length, length, device) & same)[:, None] if history else None
        hidden = number != number[:, -1:] if history and keep_state else None
        return Layout(positions, positions[:, -1] + 1, reset=reset, visible=visible, hidden=hidden)
    keep = _kept(attention_mask, input_ids, past, keep_state)
    if keep is None:
        positions = steps if state is None else before[:, None] + steps
        seen = before + length
        hidden = None if hidden is None else torch.cat([hidden, torch.zeros_like(input_ids, dtype=torch.bool)], 1)
    else:
        positions = (before[:, None] + keep.cumsum(1) - 1).clamp(min=0)
        seen = before + keep.sum(1)
        earlier = torch.zeros(batch, past, dtype=torch.bool, device=device) if hidden is None else hidden
        hidden = torch.cat([earlier, ~keep], 1)
    visible = None
    if history and (hidden is not None or (past and length > 1)):
        visible = causal(length, past + length, device)[None]
        if hidden is not None:
            # a padded token sees itself: a row of the softmax with nothing in it would be no number
            own = causal(length, past + length, device) & ~causal(length, past + length, device, 1)
            visible = (visible & ~hidden[:, None]) | own
        visible = visible[:, None]
    return Layout(positions, seen, keep=keep, visible=visible, hidden=hidden if history else None)


def boundaries(documents: Tensor) -> Tensor:
    """bool [B, T - 1]: True where token t + 1 is of another document than token t."""
    return documents[:, 1:] != documents[:, :-1]


def causal(length: int, total: int, device: torch.device, back: int = 0) -> Tensor:
    """bool [length, total]: the last `length` of `total` tokens see themselves and what is before (`back` less)."""
    return torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length - back)


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Raise InputError for ids that are no integers or outside the vocabulary. The latter not under compile, nor where
    it would make a GPU wait that must not: in training (there the data's own checks stand) and in a CUDA graph."""
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"input_ids are {str(input_ids.dtype).removeprefix('torch.')}: give int64")
    if torch.compiler.is_compiling():
        return
    if input_ids.is_cuda and (torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()):
        return
    low, high = torch.stack(input_ids.aminmax()).tolist()  # both together: a GPU is waited for once
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InputError(
            f"token id {wrong} is outside the vocabulary 0 .. {vocab_size - 1}: is it another tokenizer's?"
        )


def _kept(mask: Tensor | None, input_ids: Tensor, past: int, keep_state: bool) -> Tensor | None:
    """bool [B, T] of these tokens, None where none is padding."""
    if mask is None:
        return None
    batch, length = input_ids.shape
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] not in (length, past + length):
        raise InputError(
            f"attention_mask has shape {list(mask.shape)}, input_ids {[batch, length]}: one entry a token"
            + (f", or one for each of the {past} that the state has read too" if past else "")
        )
    keep = mask[:, -length:].bool()
    if torch.compiler.is_compiling():
        return keep
    if keep.all():
        return None
    ended = (~keep & (keep.cumsum(1) > 0)).cumsum(1) > 0
    if (keep & ended).any():
        raise InputError("attention_mask has zeros between ones: padding may stand at the ends of a row only")
    if past and (~keep[:, 0] & keep.any(1)).any():
        raise InputError(
            "attention_mask has padding between the state's tokens and these: after a state, pad on the right, or not"
        )
    if keep_state and not keep[:, -1].all():
        raise InputError(
            "attention_mask ends with 0, and a decode state goes on at the last token: pad on the left "
            "(tokenizer.padding_side = 'left')"
        )
    return keep
