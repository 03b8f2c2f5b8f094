"""The unit of losses, for every label: of tokens that are bytes, nats a byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from data.vocabulary import BYTES, IDS

NATS_A_TOKEN, NATS_A_BYTE, NATS_AN_EXAMPLE = "nats/token", "nats/byte", "nats/example"


def loss_unit(tokenizers: Iterable[Any]) -> str:
    """Of losses of models of these tokenizers, by name; what is no name, as of a run that has not begun, is
    ignored. Of tokenizer `bytes` a token is a byte, or the end of a document."""
    names = {name for name in tokenizers if isinstance(name, str)}
    units = {BYTES: NATS_A_BYTE, IDS: NATS_AN_EXAMPLE}
    return units.get(names.pop(), NATS_A_TOKEN) if len(names) == 1 else NATS_A_TOKEN
