"""Decoding token by token: the prompt is read once; after that every token costs the same, except for LLaMA.

`arch.hf.auto` has transformers' `generate` with all its sampling methods; this module needs no transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import InputError
from .cache import DecodeCache
from .lm import LanguageModel


def generate_tokens(
    model: LanguageModel,
    input_ids: Tensor,
    n_new: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos_id: int | None = None,
    attention_mask: Tensor | None = None,
    cache: DecodeCache | None = None,
) -> Decoding:
    """Up to `n_new` tokens after input_ids [B, T], as an iterator over the steps' new ids, int64 [B] on the CPU.

    temperature: 0 takes the likeliest token, otherwise the logits are divided by it and a token is drawn; top_k: draw
    only among the k likeliest (0: all); top_p: then only among the likeliest that together reach this probability;
    seed: of the draws, which differ between kinds of device; eos_id: a row that has produced it repeats it, and the
    iteration ends when all rows have produced it; attention_mask: [B, T], 0 for padding on the left; cache: of the
    tokens read before input_ids. Raises InputError for invalid values, and, at the first step, for prompts that the
    model cannot read.
    """
    for name, value, least in (("n_new", n_new, 1), ("top_k", top_k, 0), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
            raise InputError(f"{name} must be an integer, {least} or more, not {value!r}")
    if not (isinstance(temperature, (int, float)) and math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"temperature must be a number, 0 (the likeliest token) or more, not {temperature!r}")
    if not (isinstance(top_p, (int, float)) and 0 < top_p <= 1):
        raise InputError(f"top_p must be above 0 and at most 1 (all tokens), not {top_p!r}")
    vocab_size = model.model_config.vocab_size
    if eos_id is not None and not 0 <= eos_id < vocab_size:
        raise InputError(f"eos_id {eos_id} is outside the vocabulary 0 .. {vocab_size - 1}")
    return Decoding(model, input_ids, attention_mask, cache, n_new, temperature, top_k, top_p, seed, eos_id)


class Decoding(Iterator[Tensor]):
    """The steps of `generate_tokens`. `cache` is the model's cache after all tokens that it has read, which exclude the
    last token returned; before the first step it is the given cache."""

    def __init__(
        self,
        model: LanguageModel,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        cache: DecodeCache | None,
        n_new: int,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
        eos_id: int | None,
    ) -> None:
        self.cache = cache
        self._model, self._left, self._eos_id = model, n_new, eos_id
        self._unread, self._mask = input_ids, attention_mask
        self._ended = torch.zeros(len(input_ids), dtype=torch.bool)
        self._choice = (temperature, top_k, top_p)
        self._generator = torch.Generator(input_ids.device).manual_seed(seed)

    @torch.inference_mode()
    def __next__(self) -> Tensor:
        if not self._left or (self._eos_id is not None and bool(self._ended.all())):
            raise StopIteration
        output = self._model(
            self._unread,
            attention_mask=self._mask,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
            # for one token the recurrence itself is the fastest
            backend="naive" if self._unread.shape[1] == 1 else None,
        )
        ids = choose(output.logits[:, -1], *self._choice, self._generator)
        if self._eos_id is not None:
            ids = ids.masked_fill(self._ended, self._eos_id)
            self._ended = self._ended | (ids == self._eos_id)
        self._unread = ids[:, None].to(self._unread.device)
        self.cache, self._mask, self._left = output.cache, None, self._left - 1
        return ids


def choose(logits: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> Tensor:
    """The next ids [B], on the CPU, from logits [B, V]; arguments as `generate_tokens`'.

    top_p keeps the token that crosses the threshold, so that at least one is left. Raises InputError where a logit is
    not finite.
    """
    finite = logits.isfinite().all()
    if temperature == 0:
        ids = torch.cat([logits.argmax(-1), finite[None]]).cpu()  # both together: a GPU is waited for once
        _check(bool(ids[-1]))
        return ids[:-1]
    _check(bool(finite))
    wide = logits.double()
    if not top_k and top_p == 1:
        return torch.multinomial(_shares(wide, temperature), 1, generator=generator)[:, 0].cpu()
    likeliest, order = wide.sort(dim=-1, descending=True, stable=True)
    shares = _shares(likeliest[:, : top_k or None], temperature)
    if top_p < 1:
        shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0.0)
    return order.gather(-1, torch.multinomial(shares, 1, generator=generator))[:, 0].cpu()


def _check(finite: bool) -> None:
    if not finite:
        raise InputError("the model's logits are not finite: its weights are damaged, or its training diverged")


def _shares(logits: Tensor, temperature: float) -> Tensor:
    """Softmax of float64 logits over a temperature, however small."""
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
