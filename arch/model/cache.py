"""The cache of decoding: constant in size, except for LLaMA's keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import InputError

if TYPE_CHECKING:
    from ..config import ModelConfig

LayerCache = dict[str, Tensor]  # a module's tensors by name; axis 0 is the batch


def alone(cache: LayerCache) -> LayerCache:
    """The cache, of which no tensor keeps one of more than twice its size in memory, as a window of a prompt would."""
    return {name: x.clone() if x.untyped_storage().nbytes() > 2 * x.nbytes else x for name, x in cache.items()}


@dataclass(frozen=True)
class DecodeCache:
    """The decode cache of a batch: the recurrent states of its layers, or LLaMA's keys and values.

    config: the configuration of the model that read the tokens; seen: int64 [B], tokens of the current document read in
    each row; layers: each mixer's cache; first: the cache of the position encoding before the layers (cosFormer2's
    Tpe); n_read: S, all tokens and padding read so far; masked_keys: bool [B, S], LLaMA: True for keys that are padding
    or of earlier documents, None without such keys.
    """

    config: ModelConfig
    seen: Tensor
    layers: list[LayerCache]
    first: LayerCache
    n_read: int
    masked_keys: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        for cache in (self.first, *self.layers):
            yield from cache.values()

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole batch: every module's cache, and the position counter (8 a row)."""
        extra = [self.seen] if self.masked_keys is None else [self.seen, self.masked_keys]
        return sum(x.numel() * x.element_size() for x in (*self.tensors(), *extra))

    def check(self, config: ModelConfig, batch: int) -> None:
        """Raise InputError where this is not a cache of `batch` rows of a model with this configuration."""
        if self.config is not config and self.config != config:
            ours, theirs = (x.to_dict() for x in (config, self.config))
            name = next(name for name in ours if ours[name] != theirs.get(name))
            raise InputError(
                f"the cache is another model's: {name} is {theirs.get(name)!r} there and {ours[name]!r} here; "
                f"read the tokens again with this model"
            )
        if len(self.seen) != batch:
            raise InputError(
                f"the cache is of {len(self.seen)} rows, input_ids of {batch}: give a row of tokens for each, or pick "
                f"the cache's rows by DecodeCache.select"
            )

    def select(self, rows: Tensor) -> DecodeCache:
        """The cache of these rows of the batch (int64 [B']), as beam search reorders them."""

        def pick(x: Tensor) -> Tensor:
            return x.index_select(0, rows.to(x.device))

        def pick_all(cache: LayerCache) -> LayerCache:
            return {name: pick(x) for name, x in cache.items()}

        return replace(
            self,
            seen=pick(self.seen),
            layers=[pick_all(cache) for cache in self.layers],
            first=pick_all(self.first),
            masked_keys=None if self.masked_keys is None else pick(self.masked_keys),
        )

    @classmethod
    def concat(cls, caches: Sequence[DecodeCache]) -> DecodeCache:
        """The caches' rows as one batch, in order. Raises InputError where they are of several models, have read
        different numbers of tokens (LLaMA's keys and values would differ in length), or mask some."""
        first, *others = caches
        for cache in others:
            cache.check(first.config, len(cache.seen))
        if len({cache.n_read for cache in caches}) > 1 or any(cache.masked_keys is not None for cache in caches):
            read = ", ".join(str(cache.n_read) for cache in caches)
            raise InputError(
                f"caches that have read {read} tokens cannot be one batch: let all read as many, without padding"
            )

        def join(parts: Sequence[LayerCache]) -> LayerCache:
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        return replace(
            first,
            seen=torch.cat([cache.seen for cache in caches]),
            layers=[join(parts) for parts in zip(*(cache.layers for cache in caches), strict=True)],
            first=join([cache.first for cache in caches]),
        )
