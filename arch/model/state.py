"""What a model carries from one token to the next: constant in size, except for LLaMA's cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import InputError

State = dict[str, Tensor]  # of one module, by name; axis 0 of every tensor is the batch


@dataclass(frozen=True)
class DecodeState:
    """config: of the model that read; seen: int64 [B], tokens of the current document read in each row; layers: each
    mixer's state; first: that of what precedes the layers (cosFormer2's Tpe); n_read: S, all tokens and padding read so
    far; hidden: bool [B, S], LLaMA: those of them that are padding or of earlier documents, None without such."""

    config: ModelConfig
    seen: Tensor
    layers: list[State]
    first: State
    n_read: int
    hidden: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        for state in (self.first, *self.layers):
            yield from state.values()

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole batch: every module's state, and the position counter (8 a row)."""
        extra = [self.seen] if self.hidden is None else [self.seen, self.hidden]
        return sum(x.numel() * x.element_size() for x in (*self.tensors(), *extra))

    def check(self, config: ModelConfig, batch: int) -> None:
        """Raise InputError where this is not the state of `batch` rows of such a model."""
        if self.config is not config and self.config != config:
            ours, theirs = (x.to_dict() for x in (config, self.config))
            name = next(name for name in ours if ours[name] != theirs.get(name))
            raise InputError(
                f"the state is another model's: {name} is {theirs.get(name)!r} there and {ours[name]!r} here; "
                f"read the tokens again with this model"
            )
        if len(self.seen) != batch:
            raise InputError(
                f"the state is of {len(self.seen)} rows, input_ids of {batch}: give a row of tokens for each, or pick "
                f"the state's rows by DecodeState.select"
            )

    def select(self, rows: Tensor) -> DecodeState:
        """The state of these rows of the batch (int64 [B']), as beam search reorders them."""

        def pick(state: State) -> State:
            return {name: x.index_select(0, rows.to(x.device)) for name, x in state.items()}

        return replace(
            self,
            seen=self.seen.index_select(0, rows.to(self.seen.device)),
            layers=[pick(state) for state in self.layers],
            first=pick(self.first),
            hidden=None if self.hidden is None else self.hidden.index_select(0, rows.to(self.hidden.device)),
        )

    @classmethod
    def concat(cls, states: Sequence[DecodeState]) -> DecodeState:
        """The states' rows as one batch, in order. Raises InputError where they are of several models, or have read
        different numbers of tokens (LLaMA's caches would be of different lengths), or hide some."""
        first, *others = states
        for state in others:
            state.check(first.config, len(state.seen))
        if len({state.n_read for state in states}) > 1 or any(state.hidden is not None for state in states):
            read = ", ".join(str(state.n_read) for state in states)
            raise InputError(
                f"states that have read {read} tokens cannot be one batch: let all read as many, without padding"
            )

        def join(parts: Sequence[State]) -> State:
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        return replace(
            first,
            seen=torch.cat([state.seen for state in states]),
            layers=[join(parts) for parts in zip(*(state.layers for state in states), strict=True)],
            first=join([state.first for state in states]),
        )
